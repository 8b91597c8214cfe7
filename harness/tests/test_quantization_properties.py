"""Properties that quantize and dequantize keep for every shape, dtype, value and recipe."""

import dataclasses

import numpy as np
import pytest
import torch

from harness.tests.quantized import DTYPES, SIGNS
from reference import quantize
from reference.formats import E4M3, FP8, decode_e8m0, nvfp4_decode_scale
from reference.quantizers import Float8CurrentScalingQuantizer, Float8Quantizer, MXFP8Quantizer, NVFP4Quantizer

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")
given, st = hypothesis.given, hypothesis.strategies

quick = hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
HALF_STEP = {E4M3: (2.0**-4, 2.0**-10), torch.float8_e5m2: (2.0**-3, 2.0**-17)}  # of a normal, of a subnormal
SLACK = 1 + 2.0**-20
magnitudes = st.floats(2.0**-60, 2.0**60, width=32)
moderate = st.one_of(st.just(0.0), magnitudes, magnitudes.map(lambda magnitude: -magnitude))
anything = st.floats(width=32)
fp8 = st.sampled_from(FP8)
dtypes = st.sampled_from(DTYPES)
NVFP4 = {"nearest": {}, "square": {"with_2d_quantization": True}, "stochastic": {"stochastic_rounding": True}}
nvfp4 = st.sampled_from(tuple(NVFP4.values())).map(lambda options: NVFP4Quantizer(**options))


def delayed(dtype=E4M3, **options):
    return Float8Quantizer(torch.tensor([3.7]), torch.zeros(1), dtype, **options)


def matrices(elements, shape=(32, 32)):
    """Eight drawn values, then those times powers of two in an order that a seed gives: wide, and quick to draw."""
    def made(drawn):
        values, seed = drawn
        generator = np.random.default_rng(seed)
        picked = generator.choice(np.float32(values), shape)
        with np.errstate(over="ignore"):
            return torch.from_numpy(np.ldexp(picked, generator.integers(-6, 7, shape)).astype(np.float32))
    return st.tuples(st.lists(elements, min_size=8, max_size=8), st.integers(0, 99)).map(made)


quantizers = st.one_of(
    fp8.map(delayed), st.builds(Float8CurrentScalingQuantizer, fp8, st.booleans()), fp8.map(MXFP8Quantizer), nvfp4)


def same(one, other):
    ours, theirs = one.tensors(), other.tensors()
    return ours.keys() == theirs.keys() and all(
        torch.equal(value.view(torch.uint8), theirs[name].view(torch.uint8)) for name, value in ours.items())


@quick
@given(matrices(moderate), fp8, st.booleans())
def test_error_of_current_scaling(x, dtype, pow2):
    result = quantize(x, Float8CurrentScalingQuantizer(dtype, pow2))
    relative, absolute = HALF_STEP[dtype]
    assert ((result.dequantize() - x).abs() <= SLACK * (x.abs() * relative + absolute * result.scale_inv)).all()


@quick
@given(matrices(moderate), fp8, st.booleans())
def test_error_of_mxfp8(x, dtype, rowwise):
    """No element of a block saturates, and the scale is within a factor of two of the smallest that would do."""
    result = quantize(x, MXFP8Quantizer(dtype, rowwise, not rowwise))
    scales = decode_e8m0(result.rowwise_scale_inv[:32, :1] if rowwise else result.columnwise_scale_inv[:1, :32])
    relative, absolute = HALF_STEP[dtype]
    assert ((result.dequantize() - x).abs() <= SLACK * (x.abs() * relative + absolute * scales)).all()
    amax = x.abs().amax(1 if rowwise else 0, keepdim=True)
    largest = torch.finfo(dtype).max
    assert (amax <= SLACK * largest * scales).all() and (SLACK * 2 * amax >= largest * scales)[amax > 0].all()


@quick
@given(matrices(moderate), nvfp4)
def test_error_of_nvfp4(x, quantizer):
    """At most the step of the largest codes, 2, or half of it to nearest; a flushed block becomes 0."""
    result = quantize(x, quantizer)
    scales = result.rowwise_scale_inv[:32, :2].float() * nvfp4_decode_scale(result.rowwise_amax)
    scales = scales.repeat_interleave(16, 1)
    step = 2 if quantizer.stochastic_rounding else 1
    error = (result.dequantize() - x).abs()
    assert (error <= torch.where(scales == 0, x.abs(), SLACK * step * scales)).all()


@quick
@given(matrices(anything), quantizers, dtypes)
def test_sign(x, quantizer, dtype):
    """−x has the codes of x with the other sign, and the same scales."""
    x = x.to(dtype)
    there, back = quantize(x, quantizer), quantize(-x, quantizer)
    assert same(dataclasses.replace(there, rowwise_data=back.rowwise_data), back)
    ours, theirs = there.dequantize(torch.float32), -back.dequantize(torch.float32)
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    assert (ours.isnan() | (ours.signbit() == theirs.signbit())).all()


@quick
@given(matrices(anything), quantizers, dtypes)
def test_narrow_inputs_are_their_values(x, quantizer, dtype):
    """bfloat16 and float16 give what their values give as float32: nothing is read as another type."""
    narrow = x.to(dtype)
    assert same(quantize(narrow, quantizer), quantize(narrow.float(), quantizer))


@quick
@given(matrices(anything), quantizers)
def test_repeatable(x, quantizer):
    assert same(quantize(x, quantizer), quantize(x, quantizer))


@quick
@given(matrices(moderate), st.integers(-30, 30), st.sampled_from(("current", "mxfp8", "nvfp4")))
def test_powers_of_two_move_only_the_scale(x, exponent, recipe):
    quantizer = {"current": Float8CurrentScalingQuantizer, "mxfp8": MXFP8Quantizer, "nvfp4": NVFP4Quantizer}[recipe]()
    result, moved = quantize(x, quantizer), quantize(x * 2.0**exponent, quantizer)
    assert torch.equal(moved.rowwise_data.view(torch.uint8), result.rowwise_data.view(torch.uint8))
    assert torch.equal(moved.dequantize(), result.dequantize() * 2.0**exponent)


@quick
@given(matrices(anything), fp8)
def test_blocks_of_mxfp8_are_alone(x, dtype):
    """What one block holds changes no other, whatever it is."""
    result, part = (quantize(values, MXFP8Quantizer(dtype)) for values in (x, x[5:9]))
    assert torch.equal(part.rowwise_data.view(torch.uint8), result.rowwise_data[5:9].view(torch.uint8))
    assert torch.equal(part.rowwise_scale_inv[:4], result.rowwise_scale_inv[5:9])


@quick
@given(matrices(anything, (32, 64)), st.sampled_from(("mxfp8", "nearest", "square")), dtypes)
def test_columnwise_is_rowwise_of_the_transpose(x, kind, dtype):
    x = x.to(dtype)
    quantizer = MXFP8Quantizer() if kind == "mxfp8" else NVFP4Quantizer(**NVFP4[kind])
    down = quantize(x, dataclasses.replace(quantizer, rowwise=False, columnwise=True))
    along = quantize(x.t(), quantizer)
    for name, value in along.tensors().items():
        other = getattr(down, name.replace("rowwise", "columnwise"))
        other = other.t() if kind == "mxfp8" else other
        assert torch.equal(value.view(torch.uint8), other.contiguous().view(torch.uint8))


@quick
@given(matrices(anything, (32, 64)), dtypes)
def test_squares_of_nvfp4_transpose_exactly(x, dtype):
    result = quantize(x.to(dtype), NVFP4Quantizer(with_2d_quantization=True, columnwise=True))
    down = dataclasses.replace(result, rowwise_data=None)
    np.testing.assert_array_equal(down.dequantize().float().numpy(), result.dequantize().float().numpy())


@quick
@given(matrices(moderate), fp8)
def test_what_mxfp8_holds_it_keeps(x, dtype):
    """Values that came out of blocks go in and out unchanged, where the block's largest code leaves room."""
    once = quantize(x, MXFP8Quantizer(dtype))
    keep = once.rowwise_data.float().abs().amax(1) < torch.finfo(dtype).max
    values = once.dequantize()
    assert torch.equal(quantize(values, MXFP8Quantizer(dtype)).dequantize()[keep], values[keep])


def test_stochastic_rounding_is_unbiased():
    """The mean over many offsets is the tensor, within five standard errors of the largest step, without saturation."""
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    total, n = torch.zeros(64, 64, dtype=torch.float64), 100
    for offset in range(n):
        result = quantize(x, NVFP4Quantizer(stochastic_rounding=True, seed=1, offset=offset))
        total += result.dequantize().double()
    scales = result.rowwise_scale_inv[:64, :4].float() * nvfp4_decode_scale(result.rowwise_amax)
    scales = scales.repeat_interleave(16, 1)
    inside = x.abs() <= 6 * scales
    deviation = (total / n - x).abs()[inside] / scales[inside]
    assert inside.float().mean() > 0.9 and deviation.max() < 5 * 1 / n**0.5 + 2 / 256
    assert abs((total / n - x)[inside].mean() / scales[inside].mean()) < 5 / (n * inside.sum()) ** 0.5 + 1 / 256


def test_orientations_round_differently():
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    result = quantize(x, NVFP4Quantizer(stochastic_rounding=True, columnwise=True))
    along, down = (dataclasses.replace(result, **{name: None}).dequantize()
                   for name in ("columnwise_data", "rowwise_data"))
    mirrored = quantize(x.t(), NVFP4Quantizer(stochastic_rounding=True)).dequantize().t()
    assert not torch.equal(along, down) and not torch.equal(down, mirrored)


def test_hadamard_transform_turns_back():
    """Rotating the columnwise values back gives x, with the error that four bits have."""
    x = torch.randn(256, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    h = np.ones((1, 1))
    for _ in range(4):
        h = np.kron([[1, 1], [1, -1]], h)
    back = torch.from_numpy(np.float32(h.T / 4 * SIGNS))
    rotated = quantize(x, NVFP4Quantizer(with_rht=True, rowwise=False, columnwise=True)).dequantize(torch.float32)
    restored = (rotated.t().reshape(64, 16, 16) @ back).reshape(64, 256).t()
    error = (restored - x.float()).square().mean().sqrt()
    assert 0.05 < error / x.float().square().mean().sqrt() < 0.15
