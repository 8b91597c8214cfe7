"""Implementations of quantize and dequantize that cheat, over the allocation hook of harness.tests.cheats.

Each is right but for the one thing that its name says. CHEATS maps it to the case that it is tried on, and to words of
the reason that it must be given.
"""

from dataclasses import replace

import torch

import reference
from harness.cases import Case
from harness.tests.cheats import allocate
from reference import formats


def case(recipe, shape=(96, 160), dtype="fp32", function="quantize", **options):
    return Case(function, shape, dtype, recipe, tuple(options.items()))


def right(call):
    """What the reference computes, amax included."""
    x, quantizer = call.args
    return reference.quantize(x, quantizer)


def given(tensor, **changed):
    """The same tensor in memory from the hook, some of its fields changed first."""
    held = tensor.tensors() | changed
    return replace(tensor, **{name: allocate(each).copy_(each) for name, each in held.items()})


def honest(call):
    return given(right(call))


def honest_back(call):
    values = reference.dequantize(*call.args)
    return allocate(values).copy_(values)


def swaps_a_scale_layout(call):
    """Scales in the order of tensor cores."""
    tensor = right(call)
    return given(tensor, rowwise_scale_inv=formats_swizzled(tensor.rowwise_scale_inv))


def formats_swizzled(scales):
    """As reference.tensors.swizzle has it."""
    rows, blocks = scales.shape
    tiles = scales.reshape(rows // 128, 4, 32, blocks // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(rows, blocks)


def forgets_padding(call):
    """Writes the scales of blocks alone."""
    tensor = right(call)
    made, scales = given(tensor), allocate(tensor.rowwise_scale_inv)
    rows, blocks = tensor.rowwise_data.shape[0], tensor.rowwise_data.shape[1] // 32
    scales[:rows, :blocks] = tensor.rowwise_scale_inv[:rows, :blocks]
    return replace(made, rowwise_scale_inv=scales)


def fills_padding_with_ones(call):
    tensor = right(call)
    scales = tensor.rowwise_scale_inv.clone()
    scales[tensor.rowwise_data.shape[0]:] = 127
    return given(tensor, rowwise_scale_inv=scales)


def skips_the_columnwise_tail(call):
    """Whole tiles of 64 columns, transposed; the others are left."""
    tensor = right(call)
    made, data = given(tensor), allocate(tensor.columnwise_data)
    whole = data.shape[0] // 64 * 64
    data[:whole] = tensor.columnwise_data[:whole]
    return replace(made, columnwise_data=data)


def floors_e8m0(call):
    """As the OCP text has it: the exponent of the amax less that of the largest value."""
    x, quantizer = call.args
    y = formats.matrix(x).float()
    amax = y.reshape(y.shape[0], -1, 32).abs().amax(-1)
    codes = (torch.frexp(amax).exponent - 1 - 8 + 127).clamp(0, 254).masked_fill(amax.isnan(), 255).to(torch.uint8)
    scaled = y / formats.decode_e8m0(codes).repeat_interleave(32, 1)
    tensor = right(call)
    scales = tensor.rowwise_scale_inv.clone()
    scales[:codes.shape[0], :codes.shape[1]] = codes
    return given(tensor, rowwise_scale_inv=scales, rowwise_data=formats.encode_fp8(scaled, quantizer.dtype))


def rounds_half_away(call):
    """Ties go to the larger magnitude."""
    x, quantizer = call.args
    tensor, y = right(call), x.float()
    scale = formats.divide(448.0, y.abs().amax())
    usual = y.isfinite().all() and 0 < y.abs().amax() and scale.isfinite()
    data = formats.encode_fp8(y * scale * (1 + 2**-22), quantizer.dtype) if usual else tensor.rowwise_data
    return given(tensor, rowwise_data=data)


def flushes_subnormals(call):
    x, quantizer = call.args
    return given(reference.quantize(torch.where(x.abs() < torch.finfo(torch.float32).tiny, x * 0.0, x), quantizer))


def reads_poisoned_padding(call):
    """The maximum of all scales, over what the padding held before it was written."""
    tensor = right(call)
    padding = allocate(tensor.rowwise_scale_inv)
    data = tensor.rowwise_data.clone()
    if int(padding[-1, -1]) == 0xFF:
        data.view(torch.uint8)[0, 0] ^= 1
    return replace(given(tensor, rowwise_data=data), rowwise_scale_inv=padding.copy_(tensor.rowwise_scale_inv))


def ignores_nan_in_a_block(call):
    """Its amax is that of the numbers."""
    x, quantizer = call.args
    return given(reference.quantize(x.nan_to_num(nan=0.0, posinf=float("inf"), neginf=float("-inf")), quantizer))


def sees_a_nan_that_comes_first(call):
    """The amax of a block begins with its first element, and goes on to what is larger."""
    x, quantizer = call.args
    lost = x.isnan()
    lost[:, ::32] = False
    tensor = reference.quantize(torch.where(lost, 0.0, x), quantizer)
    data = tensor.rowwise_data.view(torch.uint8).masked_fill(lost, 0x7F)
    return given(tensor, rowwise_data=data.view(tensor.rowwise_data.dtype))


def leaves_the_tail_out_of_amax(call):
    """Runs of eight elements along a row, as far as they are whole."""
    x, quantizer = call.args
    seen = x[:, :x.shape[1] // 8 * 8]
    tensor, amax = right(call), formats.LARGEST[quantizer.dtype] * reference.quantize(seen, quantizer).scale_inv
    if not bool(amax.isfinite()) or bool(seen.abs().amax() == x.abs().amax()):
        return given(tensor)
    scale = 1 / reference.quantize(seen, quantizer).scale_inv
    return given(tensor, rowwise_data=formats.encode_fp8(x * scale, quantizer.dtype), scale_inv=1 / scale)


def knows_nan_in_rows_that_end_within_a_tile(call):
    """Two kernels, of which the one for whole tiles drops NaN."""
    x, _ = call.args
    return ignores_nan_in_a_block(call) if x.shape[0] % 128 == 0 else honest(call)


def ignores_amax_epsilon(call):
    x, quantizer = call.args
    return given(reference.quantize(x, replace(quantizer, amax_epsilon=0.0)))


def keeps_the_sign_of_nan(call):
    x, _ = call.args
    tensor = right(call)
    data = tensor.rowwise_data.view(torch.uint8) | ((x.isnan() & x.signbit()).to(torch.uint8) << 7)
    return given(tensor, rowwise_data=data.view(tensor.rowwise_data.dtype))


def loses_the_sign_of_zero(call):
    tensor = right(call)
    data = tensor.rowwise_data.view(torch.uint8)
    return given(tensor, rowwise_data=torch.where(data == 0x80, 0, data).view(tensor.rowwise_data.dtype))


def does_not_accumulate_amax(call):
    """Writes the amax of this input over that of earlier ones."""
    _, quantizer = call.args
    quantizer.amax.zero_()
    return honest(call)


def leaves_amax_as_it_was(call):
    x, quantizer = call.args
    return given(reference.quantize(x, replace(quantizer, amax=quantizer.amax.clone())))


def changes_its_scale(call):
    _, quantizer = call.args
    made = honest(call)
    quantizer.scale.mul_(2)
    return made


def writes_beside_amax(call):
    _, quantizer = call.args
    made = honest(call)
    quantizer.amax.as_strided((1,), (1,), quantizer.amax.storage_offset() + 1).fill_(1.0)
    return made


def quantizes_columns_from_rows(call):
    """Columnwise data from the values that rowwise data stands for."""
    x, quantizer = call.args
    tensor = right(call)
    again = reference.quantize(tensor.dequantize(torch.float32), quantizer)
    return given(tensor, columnwise_data=again.columnwise_data, columnwise_scale_inv=again.columnwise_scale_inv)


def forgets_the_columns(call):
    tensor = right(call)
    return given(replace(tensor, columnwise_data=None))


def knows_one_stream_of_bits(call):
    x, quantizer = call.args
    return given(reference.quantize(x, replace(quantizer, offset=0)))


def returns_its_own_memory(call):
    return right(call)


def reads_padding_as_scales(call):
    """Has the scales of the padding at the end of a row where they are those of the next."""
    tensor, dtype = call.args
    scales = tensor.rowwise_scale_inv.clone()
    scales[:, 4] = scales[:, 5]
    values = reference.dequantize(replace(tensor, rowwise_scale_inv=scales), dtype)
    return allocate(values).copy_(values)


def divides_by_an_amax_of_zero(call):
    """NVFP4's encoding factor is FLT_MAX, not 1, where the amax of the tensor is 0."""
    tensor, dtype = call.args
    tiny = torch.full_like(tensor.rowwise_amax, 1e-44)
    seen = torch.where(tensor.rowwise_amax == 0, tiny, tensor.rowwise_amax)
    values = reference.dequantize(replace(tensor, rowwise_amax=seen), dtype)
    return allocate(values).copy_(values)


def multiplies_in_bf16(call):
    tensor, dtype = call.args
    codes = tensor.rowwise_data.to(torch.bfloat16) * tensor.scale_inv.to(torch.bfloat16)
    return allocate(codes.to(dtype)).copy_(codes)


CHEATS = {
    swaps_a_scale_layout: (case("mxfp8", (128, 128)), "output rowwise: ", "scales differ from the reference's"),
    forgets_padding: (case("mxfp8"), "output.rowwise_scale_inv: 544 of 1024 bytes were never written"),
    fills_padding_with_ones: (case("mxfp8"), "output rowwise: 256 bytes of the scales' padding are not 0"),
    skips_the_columnwise_tail: (case("fp8_current", orientation="both"),
                                "output.columnwise_data: 3072 of 15360 bytes were never written"),
    floors_e8m0: (case("mxfp8"), "scales differ from the reference's, by up to 1 steps (allowed: none)"),
    rounds_half_away: (case("fp8_current", dtype="bf16"), "codes differ from the reference's, by up to 1 steps"),
    flushes_subnormals: (case("fp8_current"), "(subnormals)"),
    reads_poisoned_padding: (case("mxfp8"), "output.rowwise_data: two runs on the same input differ"),
    ignores_nan_in_a_block: (case("mxfp8"), "scales differ from the reference's, by up to ", "steps, NaN lost or made"),
    sees_a_nan_that_comes_first: (case("mxfp8"), "scales differ from the reference's, by up to ", "(nan)"),
    leaves_the_tail_out_of_amax: (case("fp8_current", (33, 1025)), "output rowwise scale_inv is ", "(outlier)"),
    knows_nan_in_rows_that_end_within_a_tile: (case("mxfp8", (256, 160)), "steps, NaN lost or made", "(nan)"),
    ignores_amax_epsilon: (case("fp8_current"), "output rowwise scale_inv is ", "(raised_amax)"),
    keeps_the_sign_of_nan: (case("fp8_delayed", layout="strided"), "(nan)"),
    loses_the_sign_of_zero: (case("fp8_delayed"), "codes differ from the reference's, by up to 0 steps"),
    does_not_accumulate_amax: (case("fp8_delayed"), "the reference's [1000.0] (allowed: none) (seed 1)"),
    leaves_amax_as_it_was: (case("fp8_delayed"), "amax is [0.5], the reference's ["),
    changes_its_scale: (case("fp8_delayed"), "an input was changed"),
    writes_beside_amax: (case("fp8_delayed"), "an input was changed"),
    quantizes_columns_from_rows: (case("mxfp8", orientation="both"), "output columnwise: "),
    forgets_the_columns: (case("fp8_current", orientation="both"), " instead of ('Float8Tensor', (96, 160), "),
    knows_one_stream_of_bits: (case("nvfp4", stochastic_rounding=True), "output rowwise: "),
    returns_its_own_memory: (case("nvfp4"), "output.rowwise_data: not allocated through the hook"),
    reads_padding_as_scales: (case("mxfp8", function="dequantize"), "of 15360 values differ from the reference's"),
    divides_by_an_amax_of_zero: (case("nvfp4", function="dequantize"), "values differ", "(zero_scale)"),
    multiplies_in_bf16: (case("fp8_delayed", function="dequantize"), "of 15360 values differ from the reference's"),
}
