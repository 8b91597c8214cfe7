"""Quantized tensors, the layout of their scales, and what the functions of the norms accept.

A tensor of shape (..., cols) is a matrix of rows = the product of the leading dimensions. Rowwise data has blocks
along a row; columnwise data has blocks down a column. An orientation that was not asked for is None. All data is
contiguous. Arrays of block scales are padded with zeros that are never read as data.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from reference import formats, products, quantizers  # products: optimized takes checks from here alone
from reference.arguments import (
    FLOATS, are_apart, are_tensors, is_flag, is_integer, is_number, kind, on_one_device, refuse
)
from reference.quantized import QuantizedTensor

STATISTICS = (torch.float32,)


@dataclass(frozen=True, eq=False, repr=False)
class Float8Tensor(QuantizedTensor):
    """FP8 with one scale for the whole tensor: value = element · scale_inv.

    columnwise_data is the exact transpose of the rowwise bytes.
    """

    rowwise_data: Tensor | None  # shape, float8_e4m3fn or float8_e5m2
    columnwise_data: Tensor | None  # (cols, rows), the same dtype
    scale_inv: Tensor  # (1,), float32
    dtype: torch.dtype
    shape: torch.Size | None = None  # default: rowwise_data's, else (rows, cols) of columnwise_data

    def _matrix_shape(self):
        return self.columnwise_data.shape[::-1] if self.rowwise_data is None else self.rowwise_data.shape

    def _layout(self):
        return {
            "rowwise_data": (self.shape, formats.FP8),
            "columnwise_data": (self._matrix[::-1], formats.FP8),
            "scale_inv": ((1,), (torch.float32,)),
        }

    def _values_rowwise(self):
        return self.rowwise_data.float() * self.scale_inv.float()

    def _values_columnwise(self):
        return self.columnwise_data.t().float() * self.scale_inv.float()


@dataclass(frozen=True, eq=False, repr=False)
class MXFP8Tensor(QuantizedTensor):
    """FP8 with an E8M0 scale for each block of 32: value = element · 2^(scale − 127).

    Both orientations were quantized from the high-precision values, and have the layout of the tensor.
    """

    _block = formats.MXFP8_BLOCK

    rowwise_data: Tensor | None  # shape, float8_e4m3fn or float8_e5m2
    rowwise_scale_inv: Tensor | None  # (⌈rows/128⌉·128, ⌈(cols/32)/4⌉·4), uint8
    columnwise_data: Tensor | None  # shape, the same dtype
    columnwise_scale_inv: Tensor | None  # (⌈(rows/32)/4⌉·4, ⌈cols/128⌉·128), uint8
    dtype: torch.dtype
    shape: torch.Size | None = None  # default: that of the data

    def _matrix_shape(self):
        return (self.columnwise_data if self.rowwise_data is None else self.rowwise_data).shape

    def _layout(self):
        (rows, cols), block = self._matrix, self._block
        return {
            "rowwise_data": (self.shape, formats.FP8),
            "rowwise_scale_inv": (formats.scale_shape(rows, cols // block), (torch.uint8,)),
            "columnwise_data": (self.shape, formats.FP8),
            "columnwise_scale_inv": (formats.scale_shape(cols, rows // block)[::-1], (torch.uint8,)),
        }

    def _values_rowwise(self):
        codes = formats.matrix(self.rowwise_data)
        scales = formats.decode_e8m0(_unpadded(self.rowwise_scale_inv, codes, formats.MXFP8_BLOCK))
        return codes.float() * scales.repeat_interleave(formats.MXFP8_BLOCK, 1)

    def _values_columnwise(self):
        codes = formats.matrix(self.columnwise_data).t()
        scales = formats.decode_e8m0(_unpadded(self.columnwise_scale_inv.t(), codes, formats.MXFP8_BLOCK))
        return (codes.float() * scales.repeat_interleave(formats.MXFP8_BLOCK, 1)).t()


@dataclass(frozen=True, eq=False, repr=False)
class NVFP4Tensor(QuantizedTensor):
    """E2M1 with an E4M3 scale s for each block of 16 and an amax for the tensor: value = element · (s · (1/S_enc)).

    S_enc is formats.nvfp4_encode_scale(amax). Two codes make a byte, the even one in the low nibble. Columnwise data is
    that of the transposed matrix. A random Hadamard transform is not undone by `dequantize`.
    """

    _block = formats.NVFP4_BLOCK

    rowwise_data: Tensor | None  # (..., cols/2), uint8
    rowwise_scale_inv: Tensor | None  # (⌈rows/128⌉·128, ⌈(cols/16)/4⌉·4), float8_e4m3fn
    rowwise_amax: Tensor | None  # (1,), float32
    columnwise_data: Tensor | None  # (cols, rows/2), uint8
    columnwise_scale_inv: Tensor | None  # (⌈cols/128⌉·128, ⌈(rows/16)/4⌉·4), float8_e4m3fn
    columnwise_amax: Tensor | None  # (1,), float32; with a random Hadamard transform that of the transformed matrix
    dtype: torch.dtype
    shape: torch.Size | None = None  # default: that of rowwise_data's elements, else (rows, cols) of columnwise_data's

    def _matrix_shape(self):
        if self.rowwise_data is not None:
            return torch.Size((*self.rowwise_data.shape[:-1], 2 * self.rowwise_data.shape[-1]))
        return torch.Size((2 * self.columnwise_data.shape[1], self.columnwise_data.shape[0]))

    def _layout(self):
        (rows, cols), block = self._matrix, self._block
        return {
            "rowwise_data": ((*self.shape[:-1], cols // 2), (torch.uint8,)),
            "rowwise_scale_inv": (formats.scale_shape(rows, cols // block), (formats.E4M3,)),
            "rowwise_amax": ((1,), (torch.float32,)),
            "columnwise_data": ((cols, rows // 2), (torch.uint8,)),
            "columnwise_scale_inv": (formats.scale_shape(cols, rows // block), (formats.E4M3,)),
            "columnwise_amax": ((1,), (torch.float32,)),
        }

    def _values_rowwise(self):
        return _nvfp4_values(formats.matrix(self.rowwise_data), self.rowwise_scale_inv, self.rowwise_amax)

    def _values_columnwise(self):
        return _nvfp4_values(self.columnwise_data, self.columnwise_scale_inv, self.columnwise_amax).t()


torch.serialization.add_safe_globals([Float8Tensor, MXFP8Tensor, NVFP4Tensor])


def swizzle(scale_inv):
    """A padded array of block scales in the order in which block-scaled tensor cores read it.

    Each tile of 128 rows × 4 scales becomes 512 consecutive bytes, scale (r, c) of the tile at (r mod 32)·16 +
    ⌊r/32⌋·4 + c; tiles follow one another in row-major order.
    Shapes: (128·m, 4·k) -> the same shape, contiguous. MXFP8's columnwise array is given transposed: `scale_inv.t()`.
    Errors: ValueError for other shapes, TypeError for other dtypes.
    Source: cuBLAS documentation, "1D Block Scaling Factors Layout".
    """
    _are_padded_scales("swizzle", scale_inv)
    rows, blocks = scale_inv.shape
    tiles = scale_inv.reshape(rows // 128, 4, 32, blocks // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(rows, blocks)


def unswizzle(scale_inv):
    """The inverse of `swizzle`: same shapes, same errors."""
    _are_padded_scales("unswizzle", scale_inv)
    rows, blocks = scale_inv.shape
    tiles = scale_inv.reshape(rows // 128, blocks // 4, 32, 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(rows, blocks)


def check(function, tensor, dtype):
    """Refuse what `dequantize` does not take: TypeError for types and dtypes, ValueError for shapes and devices."""
    if not isinstance(tensor, QuantizedTensor):
        refuse(TypeError, function, f"tensor is {kind(tensor)}, but must be a Float8Tensor, MXFP8Tensor or NVFP4Tensor")
    tensor.check(function, dtype)


def norm_forward(function, input, weight, bias, *, eps, quantizer, sm_margin, zero_centered_gamma):
    """Refuse what a forward norm does not take: TypeError for types and dtypes, ValueError for the rest."""
    vectors = {"weight": weight} | ({} if bias is None else {"bias": bias})
    are_tensors(function, {"input": input} | vectors, FLOATS)
    on_one_device(function, {"input": input} | vectors)
    is_number(function, "eps", eps)
    _options(function, sm_margin, zero_centered_gamma)
    _hidden(function, "input", input, vectors)
    if quantizer is None:
        return
    if type(quantizer) not in quantizers.QUANTIZERS:
        allowed = ", ".join(cls.__name__ for cls in quantizers.QUANTIZERS)
        refuse(TypeError, function, f"quantizer is {kind(quantizer)}, but must be None or one of {allowed}")
    quantizers.check(function, input, quantizer)
    if isinstance(quantizer, quantizers.Float8Quantizer):
        are_apart(function, {"quantizer.amax": quantizer.amax}, vectors)


def norm_backward(function, x, gamma, *, like_x, statistics, sm_margin, zero_centered_gamma):
    """Refuse what a backward norm does not take: TypeError for types and dtypes, ValueError for the rest.

    `like_x` names the tensors that must have x's shape, `statistics` those that hold one float32 per row.
    """
    are_tensors(function, {"x": x, "gamma": gamma} | like_x, FLOATS)
    are_tensors(function, statistics, STATISTICS)
    on_one_device(function, {"x": x, "gamma": gamma} | like_x | statistics)
    _options(function, sm_margin, zero_centered_gamma)
    _hidden(function, "x", x, {"gamma": gamma})
    for name, tensor in like_x.items():
        if tensor.shape != x.shape:
            refuse(ValueError, function,
                    f"{name} has shape {tuple(tensor.shape)}, but must have x's, {tuple(x.shape)}")
    rows = x.shape[:-1].numel()
    for name, tensor in statistics.items():
        if tensor.numel() != rows:
            refuse(ValueError, function, f"{name} has {tensor.numel()} elements, but x has {rows} rows")


def _hidden(function, name, tensor, vectors):
    """`tensor` has rows of at least one element, and each vector has one element for each of them."""
    if tensor.dim() == 0:
        refuse(ValueError, function, f"{name} has no dimensions, but needs at least one: (..., H)")
    hidden = tensor.shape[-1]
    if hidden == 0:
        refuse(ValueError, function, f"{name} has rows of 0 elements, but needs at least 1")
    for vector, values in vectors.items():
        if values.numel() != hidden:
            refuse(ValueError, function,
                    f"{vector} has {values.numel()} elements, but {name} has rows of {hidden}")


def _options(function, sm_margin, zero_centered_gamma):
    is_integer(function, "sm_margin", sm_margin)
    is_flag(function, "zero_centered_gamma", zero_centered_gamma)


def _are_padded_scales(function, scale_inv):
    are_tensors(function, {"scale_inv": scale_inv}, (torch.uint8, torch.float8_e4m3fn))
    if scale_inv.dim() != 2 or scale_inv.shape[0] % 128 or scale_inv.shape[1] % 4:
        refuse(ValueError, function, f"scale_inv has shape {tuple(scale_inv.shape)}, but must have two dimensions, "
                                     "multiples of 128 and 4")


def _unpadded(scale_inv, codes, block):
    """The scales of the blocks along the rows of `codes`, without the padding."""
    return scale_inv[: codes.shape[0], : codes.shape[1] // block]


def _nvfp4_values(packed, scale_inv, amax):
    codes = formats.unpack_e2m1(packed)
    scales = _unpadded(scale_inv, codes, formats.NVFP4_BLOCK).float() * formats.nvfp4_decode_scale(amax)
    return formats.decode_e2m1(codes) * scales.repeat_interleave(formats.NVFP4_BLOCK, 1)
