"""Quantizers: what to quantize to, as values. `quantize` computes; nothing here does.

Every quantizer has `dtype`, `rowwise` and `columnwise`: the FP8 format of data (of NVFP4: of the block scales) and the
orientations to make, at least one of them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from reference import formats
from reference.arguments import (
    FLOATS, are_apart, are_tensors, is_dtype, is_flag, is_integer, is_number, kind, on_one_device, refuse
)


@dataclass(frozen=True, eq=False)
class Float8Quantizer:
    """Delayed scaling: q = cast(y·scale), scale_inv = 1/scale, and amax ← max(amax, max|y|).

    `scale` and `amax` live on the device of what is quantized. `quantize` writes `amax`, in place; nothing clears it.
    Shapes: scale and amax one element, float32.
    Errors: TypeError for types and dtypes; ValueError for shapes, two devices, memory that both share, and where no
    orientation is asked for.
    """

    scale: Tensor
    amax: Tensor
    dtype: torch.dtype = formats.E4M3
    rowwise: bool = True
    columnwise: bool = False

    def __post_init__(self):
        state = {"scale": self.scale, "amax": self.amax}
        are_tensors("Float8Quantizer", state, (torch.float32,))
        for name, tensor in state.items():
            if tensor.numel() != 1:
                refuse(ValueError, "Float8Quantizer", f"{name} has {tensor.numel()} elements, but must have 1")
        on_one_device("Float8Quantizer", state)
        are_apart("Float8Quantizer", {"amax": self.amax}, {"scale": self.scale})
        _options(self, formats.FP8)


@dataclass(frozen=True)
class Float8CurrentScalingQuantizer:
    """Current scaling: amax = max(max|y|, amax_epsilon), scale = largest/amax, q = cast(y·scale), scale_inv = 1/scale.

    The scale is 1 where amax is 0, Inf or NaN, and FLT_MAX where the quotient is infinite; `force_pow_2_scales` then
    clears its mantissa bits, which rounds it down to a power of two.
    Errors: TypeError for types and dtypes; ValueError for an amax_epsilon that is negative or no finite float32.
    """

    dtype: torch.dtype = formats.E4M3
    force_pow_2_scales: bool = False
    amax_epsilon: float = 0.0
    rowwise: bool = True
    columnwise: bool = False

    def __post_init__(self):
        is_flag("Float8CurrentScalingQuantizer", "force_pow_2_scales", self.force_pow_2_scales)
        is_number("Float8CurrentScalingQuantizer", "amax_epsilon", self.amax_epsilon)
        _options(self, formats.FP8)


@dataclass(frozen=True)
class MXFP8Quantizer:
    """MXFP8: an E8M0 scale for each block of 32, along rows and (or) down columns.

    Errors: TypeError for types and dtypes, ValueError where no orientation is asked for.
    """

    dtype: torch.dtype = formats.E4M3
    rowwise: bool = True
    columnwise: bool = False

    def __post_init__(self):
        _options(self, formats.FP8)


@dataclass(frozen=True)
class NVFP4Quantizer:
    """NVFP4: E2M1 with an E4M3 scale for each block of 16 and one amax for the tensor.

    with_2d_quantization: one scale for 16×16 elements, columnwise codes the exact transpose (for weights).
    stochastic_rounding: with the random bits of reference.philox for (seed, offset), not to nearest (for gradients).
    with_rht: columnwise data is that of the transposed matrix after a random Hadamard transform of each 16 elements.
    The first excludes the other two. `dtype` is that of the block scales.
    Units: seed a 64-bit, offset a 63-bit unsigned integer.
    Errors: TypeError for types and dtypes; ValueError for a seed or offset out of range, and for what excludes another.
    """

    with_2d_quantization: bool = False
    stochastic_rounding: bool = False
    with_rht: bool = False
    seed: int = 0
    offset: int = 0
    dtype: torch.dtype = formats.E4M3
    rowwise: bool = True
    columnwise: bool = False

    def __post_init__(self):
        for name in ("with_2d_quantization", "stochastic_rounding", "with_rht"):
            is_flag("NVFP4Quantizer", name, getattr(self, name))
        is_integer("NVFP4Quantizer", "seed", self.seed, below=2**64)
        is_integer("NVFP4Quantizer", "offset", self.offset, below=2**63)
        for name in ("stochastic_rounding", "with_rht"):
            if self.with_2d_quantization and getattr(self, name):
                refuse(ValueError, "NVFP4Quantizer", f"{name} is True beside with_2d_quantization, but must be False: "
                                                     "columnwise codes would not be the transpose of the rowwise ones")
        _options(self, (formats.E4M3,))


QUANTIZERS = (Float8Quantizer, Float8CurrentScalingQuantizer, MXFP8Quantizer, NVFP4Quantizer)


def check(function, input, quantizer):
    """Refuse what `quantize` does not take: TypeError for types and dtypes, ValueError for shapes, devices, memory."""
    if type(quantizer) not in QUANTIZERS:
        allowed = ", ".join(cls.__name__ for cls in QUANTIZERS)
        refuse(TypeError, function, f"quantizer is {kind(quantizer)}, but must be one of {allowed}")
    rht = isinstance(quantizer, NVFP4Quantizer) and quantizer.with_rht
    are_tensors(function, {"input": input}, (torch.bfloat16,) if rht else FLOATS)
    if isinstance(quantizer, Float8Quantizer):
        on_one_device(function, {"input": input, "quantizer.scale": quantizer.scale, "quantizer.amax": quantizer.amax})
        are_apart(function, {"quantizer.amax": quantizer.amax}, {"input": input})
    least = 2 if quantizer.columnwise else 1
    if input.dim() < least:
        asked = f"columnwise data needs at least {least}" if quantizer.columnwise else f"needs at least {least}"
        refuse(ValueError, function, f"input has {input.dim()} dimensions, but {asked}: (..., cols)")
    _blocks(function, input, quantizer)


def _options(quantizer, dtypes):
    name = type(quantizer).__name__
    is_dtype(name, "dtype", quantizer.dtype, dtypes)
    is_flag(name, "rowwise", quantizer.rowwise)
    is_flag(name, "columnwise", quantizer.columnwise)
    if not (quantizer.rowwise or quantizer.columnwise):
        refuse(ValueError, name, "rowwise and columnwise are False, but at least one must be True")


def _blocks(function, input, quantizer):
    """Blocks lie along a row (cols), down a column (rows), or, where they are square, both ways."""
    block = {MXFP8Quantizer: formats.MXFP8_BLOCK, NVFP4Quantizer: formats.NVFP4_BLOCK}.get(type(quantizer))
    if block is None:
        return
    square = isinstance(quantizer, NVFP4Quantizer) and quantizer.with_2d_quantization
    sizes = {"cols": (input.shape[-1], quantizer.rowwise), "rows": (input.shape[:-1].numel(), quantizer.columnwise)}
    for name, (size, asked) in sizes.items():
        if (asked or square) and size % block:
            refuse(ValueError, function, f"input has shape {tuple(input.shape)}, hence {size} {name}, "
                                         f"but {name} must be a multiple of the block, {block}")
