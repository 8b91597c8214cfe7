"""Quantization to FP8, MXFP8 and NVFP4, and back: the twins of reference.quantization.

Every call is one launch, to the bytes of the reference. x is read once for delayed scaling and MXFP8, whatever the
orientations; current scaling and NVFP4 read it twice, the second time backwards, so that what the L2 still holds is
read from there. Any compute capability from 8.0; FP8 conversions are instructions from 8.9 on. A tensor whose rows are
not dense or do not lie at one distance from each other is copied first.
"""

import inspect
import math
from dataclasses import dataclass, replace

import numpy
import torch
from torch import Tensor

from optimized import quantize_plan as plans
from optimized.launch import Launch, allocate, chip, untraced
from optimized.operands import Prepared, in_memory, on_gpu, pitch, regular, signature, type_of
from optimized.plan import Chip, Plan
from reference import formats, quantizers, tensors
from reference.quantizers import Float8CurrentScalingQuantizer, Float8Quantizer, MXFP8Quantizer, NVFP4Quantizer
from reference.tensors import Float8Tensor, MXFP8Tensor, NVFP4Tensor

MAX_EXTENT = 2**32 - 128  # rows and columns, as 32 bits count the first ones of a tile of 128×128
CODES = {torch.float8_e4m3fn: "E4M3", torch.float8_e5m2: "E5M2"}
_prepared = Prepared()


def quantize(input, quantizer):
    """reference.quantize on a GPU. `quantizer.amax` of delayed scaling grows in place, in the same launch."""
    if torch.compiler.is_dynamo_compiling():
        return untraced(quantize)(input, quantizer)
    try:
        key = (signature(input), options_of(quantizer, input))
        ready = _prepared.get(key)
    except (AttributeError, TypeError, RuntimeError):
        ready = None  # no dense tensor, or nothing that hashes: the checks say what is wrong
    if ready is None:
        quantizers.check("quantize", input, quantizer)
        on_gpu("quantize", "input", input)
        in_memory("quantize", input=input)
        within_extent("quantize", "input", input.shape)
        dense = regular(input)
        if dense is not input:
            return quantize(dense, quantizer)
        ready = _prepared.keep(key, _prepare(input, quantizer))

    made = [None if each is None else allocate(*each, input.device) for each in ready.outputs]

    ready.launch(input.data_ptr(), *pointers_of(quantizer, made))
    return assembled(quantizer, made, input)


def pointers_of(quantizer, made: list[Tensor | None]) -> tuple[int, ...]:
    """What the kernels take behind x: the state of the quantizer, outputs and workspace, the random stream."""
    kind = type(quantizer)
    state = (quantizer.scale.data_ptr(), quantizer.amax.data_ptr()) if kind is Float8Quantizer else (0, 0)
    stream = (quantizer.seed, quantizer.offset) if kind is NVFP4Quantizer else (0, 0)
    return *state, *[0 if each is None else each.data_ptr() for each in made], *stream


def assembled(quantizer, made: list[Tensor | None], input: Tensor):
    """The outputs as the quantized tensor that they are of something with input's shape and dtype."""
    kind, (scale_inv, *data, _) = type(quantizer), made
    if kind is NVFP4Quantizer:
        return NVFP4Tensor(*data, input.dtype, input.shape)
    if kind is MXFP8Quantizer:
        return MXFP8Tensor(data[0], data[1], data[3], data[4], input.dtype, input.shape)
    return Float8Tensor(data[0], data[3], scale_inv, input.dtype, input.shape)


def dequantize(tensor, dtype):
    """reference.dequantize on a GPU: data and scales are read once."""
    if torch.compiler.is_dynamo_compiling():
        return untraced(dequantize)(tensor, dtype)
    try:
        parts = _parts(tensor)
        key = (type(tensor), *[part if part is None else signature(part) for part in parts], tensor.shape,
               tensor.rowwise_data is None, dtype)
        ready = _prepared.get(key)
    except (AttributeError, TypeError, RuntimeError):
        ready = None
    if ready is None:
        tensors.check("dequantize", tensor, dtype)
        on_gpu("dequantize", "tensor", tensor)
        in_memory("dequantize", **{name: getattr(tensor, name) for name in vars(tensor)})
        within_extent("dequantize", "tensor", tensor.shape)
        ready = _prepared.keep(key, _prepare_back(tensor, dtype))

    y = allocate(*ready.outputs[0], tensor.device)

    parts = [part if part is None else _dense(part) for part in parts]
    ready.launch(*[0 if part is None else part.data_ptr() for part in parts], y.data_ptr())
    return y


def plan_of(function: str, *args, chip: Chip, **kwargs) -> Plan:
    """The plan that a call of `function` takes on `chip`; tensors may be on any device, "meta" included.

    Errors: those of the call, but for the device.
    """
    given = inspect.signature(globals()[function]).bind(*args, **kwargs).arguments
    if function == "quantize":
        quantizers.check(function, **given)
        within_extent(function, "input", given["input"].shape)
        return plans.quantize(work_of(regular(given["input"]), given["quantizer"]), chip)
    tensors.check(function, **given)
    within_extent(function, "tensor", given["tensor"].shape)
    return _planned_back(given["tensor"], given["dtype"], chip)[0]


@dataclass(frozen=True)
class _Ready:
    """What is kept of a call for the next one like it: `launch`, and (shape, dtype) of each output and workspace in the
    order of the kernel's pointers, None for those that are not asked for."""

    launch: Launch
    outputs: tuple[tuple[tuple[int, ...], torch.dtype] | None, ...]


def _prepare(input: Tensor, quantizer) -> _Ready:
    work = work_of(input, quantizer)
    plan = plans.quantize(work, chip(input.device))
    workspace = ((plan.workspace_bytes // 4,), torch.float32) if plan.workspace_bytes else None
    launch = Launch(plan, input.device, 13, scalars_of(work, input, quantizer))
    return _Ready(launch, (*outputs_of(input, quantizer), workspace))


def scalars_of(work: plans.Work, input: Tensor, quantizer) -> tuple:
    """What the kernels take behind the pointers."""
    return (
        numpy.int64(work.rows), numpy.int64(work.cols), numpy.int64(pitch(input)),
        numpy.int32(_on_16_bytes(input, work)), numpy.int32(work.flat),
        numpy.int32(getattr(quantizer, "force_pow_2_scales", False)),
        numpy.float32(getattr(quantizer, "amax_epsilon", 0.0)),
    )


def work_of(input: Tensor, quantizer) -> plans.Work:
    """What is done with x."""
    rows, cols = _matrix(input.shape)
    scheme, block = _scheme(quantizer)
    flat = rows < 2 or (pitch(input) == cols and (block is None or cols // block % 4 == 0))
    columns = quantizer.columnwise or scheme[-1] == "Squares"
    x = type_of(input.dtype)
    work = plans.Work(scheme, x, rows, cols, tiles=True, columns=columns, flat=flat)
    tiled = replace(work, whole=cols % 8 == 0 and _on_16_bytes(input, work))
    if columns or (tiled.whole and plans.fills_tiles(rows, cols)):
        return tiled
    work, runs = replace(work, tiles=False), rows * cols if flat else cols
    return replace(work, whole=runs % 8 == 0 and _on_16_bytes(input, work))


def _on_16_bytes(input: Tensor, work: plans.Work) -> bool:
    """Whether runs of eight elements begin at multiples of 16 bytes."""
    rows_do = work.rows < 2 or (work.flat and not work.tiles) or pitch(input) * input.element_size() % 16 == 0
    return input.data_ptr() % 16 == 0 and rows_do


def _scheme(quantizer) -> tuple[tuple[str, ...], int | None]:
    """Family and policies of the kernels' work type, and the block of a scale."""
    code = CODES[quantizer.dtype]
    if isinstance(quantizer, Float8Quantizer):
        return ("Fp8", code, "Delayed"), None
    if isinstance(quantizer, Float8CurrentScalingQuantizer):
        return ("Fp8", code, "Current"), None
    if isinstance(quantizer, MXFP8Quantizer):
        return ("Mxfp8", code), formats.MXFP8_BLOCK
    blocks = "Squares" if quantizer.with_2d_quantization else "Lines"
    if quantizer.with_rht and quantizer.columnwise:
        blocks = "Transformed"
    return ("Nvfp4", "Stochastic" if quantizer.stochastic_rounding else "Nearest", blocks), formats.NVFP4_BLOCK


def outputs_of(input: Tensor, quantizer) -> tuple:
    """scale_inv; data, scales and amax rowwise; the same columnwise: (shape, dtype) or None."""
    rows, cols = _matrix(input.shape)
    shape, dtype, one = tuple(input.shape), quantizer.dtype, ((1,), torch.float32)
    if isinstance(quantizer, NVFP4Quantizer):
        block, scale_inv = formats.NVFP4_BLOCK, None
        rowwise = (((*shape[:-1], cols // 2), torch.uint8), (formats.scale_shape(rows, cols // block), dtype), one)
        columnwise = (((cols, rows // 2), torch.uint8), (formats.scale_shape(cols, rows // block), dtype), one)
    elif isinstance(quantizer, MXFP8Quantizer):
        block, scale_inv = formats.MXFP8_BLOCK, None
        rowwise = ((shape, dtype), (formats.scale_shape(rows, cols // block), torch.uint8), None)
        columnwise = ((shape, dtype), (formats.scale_shape(cols, rows // block)[::-1], torch.uint8), None)
    else:
        scale_inv, rowwise, columnwise = one, ((shape, dtype), None, None), (((cols, rows), dtype), None, None)
    absent = (None, None, None)
    return scale_inv, *(rowwise if quantizer.rowwise else absent), *(columnwise if quantizer.columnwise else absent)


def _parts(tensor) -> tuple[Tensor | None, ...]:
    """Data, block scales and tensor scale (of NVFP4 its amax) of the orientation that is dequantized."""
    side = "columnwise" if tensor.rowwise_data is None else "rowwise"
    data, scales = getattr(tensor, f"{side}_data"), getattr(tensor, f"{side}_scale_inv", None)
    return data, scales, tensor.scale_inv if isinstance(tensor, Float8Tensor) else getattr(tensor, f"{side}_amax", None)


def _prepare_back(tensor, dtype) -> _Ready:
    plan, flat = _planned_back(tensor, dtype, chip(tensor.device))
    rows, cols = _matrix(tensor.shape)
    scalars = (numpy.int64(rows), numpy.int64(cols), numpy.int32(flat))
    return _Ready(Launch(plan, tensor.device, 4, scalars), ((tuple(tensor.shape), dtype),))


def _planned_back(tensor, dtype, chip: Chip) -> tuple[Plan, bool]:
    columnwise = tensor.rowwise_data is None
    family = {Float8Tensor: "Fp8", MXFP8Tensor: "Mxfp8", NVFP4Tensor: "Nvfp4"}[type(tensor)]
    data = tensor.columnwise_data if columnwise else tensor.rowwise_data
    layout = f"{family}{'Columns' if columnwise else 'Rows'}" + (f"<{CODES[data.dtype]}>" if family != "Nvfp4" else "")
    rows, cols = _matrix(tensor.shape)
    block = {"Fp8": None, "Mxfp8": formats.MXFP8_BLOCK, "Nvfp4": formats.NVFP4_BLOCK}[family]
    flat = rows < 2 or block is None or (not columnwise and cols // block % 4 == 0)
    y = type_of(dtype)
    return plans.dequantize(layout, y, (rows, cols), chip), flat


def within_extent(function: str, name: str, shape) -> None:
    """ValueError where a matrix is larger than kernels count."""
    if max(_matrix(shape)) > MAX_EXTENT:
        raise ValueError(f"{function}: {name} has shape {tuple(shape)}, but optimized takes at most {MAX_EXTENT} rows "
                         "and columns")


def options_of(quantizer, input: Tensor) -> tuple:
    """All of a quantizer that checks, plans and outputs depend on: of one storage for amax and input their distance,
    too. Seed and offset go to the kernel anew each time."""
    if type(quantizer) is Float8Quantizer:
        q = quantizer
        shared = q.amax.untyped_storage().data_ptr() == input.untyped_storage().data_ptr()
        distance = q.amax.data_ptr() - input.data_ptr() if shared else None
        return Float8Quantizer, q.dtype, q.rowwise, q.columnwise, q.scale.device, q.amax.device, distance
    if type(quantizer) is NVFP4Quantizer:
        q = quantizer
        return NVFP4Quantizer, q.with_2d_quantization, q.stochastic_rounding, q.with_rht, q.rowwise, q.columnwise
    return type(quantizer), quantizer


def _matrix(shape) -> tuple[int, int]:
    return math.prod(shape[:-1]), shape[-1]


def _dense(t: Tensor) -> Tensor:
    """`t` itself where it is contiguous and on 16 bytes, else a copy that is."""
    if t.is_contiguous() and t.data_ptr() % 16 == 0:
        return t
    return t.clone(memory_format=torch.contiguous_format)
