"""Quantized tensors, the layout of their scales, and what the functions of the norms accept.

A tensor of shape (..., cols) is a matrix of rows = the product of the leading dimensions. Rowwise data has blocks
along a row; columnwise data has blocks down a column. An orientation that was not asked for is None. All data is
contiguous. Arrays of block scales are padded with zeros that are never read as data.
"""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from reference import formats
from reference.arguments import (
    FLOATS, are_tensors, is_dtype, is_flag, is_integer, is_number, kind, on_one_device, refuse
)

STATISTICS = (torch.float32,)


class QuantizedTensor:
    """What the three kinds of quantized tensors share: frozen dataclasses of tensors, with `dtype` and `shape`.

    `dtype` is the high-precision dtype that the tensor stands for, `shape` that of the tensor which was quantized.
    `torch.save` keeps them, and `torch.load` takes them with weights_only. `_layout` gives the shape and the dtypes
    of each field that the orientations at hand need.
    """

    def __post_init__(self):
        data = self.columnwise_data if self.rowwise_data is None else self.rowwise_data
        if data is None:
            refuse(ValueError, type(self).__name__, "rowwise_data and columnwise_data are None, but one must not be")
        if not isinstance(data, Tensor):
            refuse(TypeError, type(self).__name__, f"data is {kind(data)}, but must be a torch.Tensor")
        shape = self._matrix_shape() if self.shape is None else self.shape
        object.__setattr__(self, "shape", torch.Size(shape))

    @property
    def device(self):
        """Where the data is."""
        return next(iter(self.tensors().values())).device

    def tensors(self):
        """The tensors that the fields hold, by name, without those that are None."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in fields.items() if isinstance(value, Tensor)}

    def to(self, device):
        """The same tensor on `device`; the tensors that are there already are shared, not copied."""
        return dataclasses.replace(self, **{name: value.to(device) for name, value in self.tensors().items()})

    @torch.no_grad()
    def dequantize(self, dtype=None):
        """float32 element · scale_inv, rounded once, to `dtype` or the dtype that the tensor stands for.

        From rowwise data where there is some, else from columnwise data. Shapes: -> `shape`. Errors: those of `check`.
        """
        dtype = self.dtype if dtype is None else dtype
        check("dequantize", self, dtype)
        matrix = self._values_columnwise() if self.rowwise_data is None else self._values_rowwise()
        return matrix.to(dtype).reshape(self.shape)

    def __repr__(self):
        given = self.tensors()
        held = [f"{name}={value.dtype}{list(value.shape)}".replace("torch.", "") for name, value in given.items()]
        size = sum(value.numel() * value.element_size() for value in given.values())
        parts = [f"shape={tuple(self.shape)}", f"dtype={self.dtype}", *held, f"device={self.device}", f"{size} bytes"]
        return f"{type(self).__name__}({', '.join(parts)})"


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
            "columnwise_data": (_matrix(self.shape)[::-1], formats.FP8),
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

    rowwise_data: Tensor | None  # shape, float8_e4m3fn or float8_e5m2
    rowwise_scale_inv: Tensor | None  # (⌈rows/128⌉·128, ⌈(cols/32)/4⌉·4), uint8
    columnwise_data: Tensor | None  # shape, the same dtype
    columnwise_scale_inv: Tensor | None  # (⌈(rows/32)/4⌉·4, ⌈cols/128⌉·128), uint8
    dtype: torch.dtype
    shape: torch.Size | None = None  # default: that of the data

    def _matrix_shape(self):
        return (self.columnwise_data if self.rowwise_data is None else self.rowwise_data).shape

    def _layout(self):
        (rows, cols), block = _matrix(self.shape), formats.MXFP8_BLOCK
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
        (rows, cols), block = _matrix(self.shape), formats.NVFP4_BLOCK
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
    is_dtype(function, "dtype", dtype, FLOATS)
    absent = [name for name in ("rowwise", "columnwise") if getattr(tensor, f"{name}_data") is None]
    wanted = {name: rule for name, rule in tensor._layout().items() if name.split("_")[0] not in absent}
    values = {f"tensor.{name}": getattr(tensor, name) for name in wanted}
    for (name, value), (shape, dtypes) in zip(values.items(), wanted.values()):
        are_tensors(function, {name: value}, dtypes)
        if value.shape != shape:
            refuse(ValueError, function, f"{name} has shape {tuple(value.shape)}, but must have {tuple(shape)}")
        if not value.is_contiguous():
            refuse(ValueError, function, f"{name} has strides {value.stride()}, but must be contiguous")
    on_one_device(function, values)


def norm_forward(function, input, weight, bias, *, eps, quantizer, sm_margin, zero_centered_gamma):
    """Refuse what a forward norm does not take: TypeError for types and dtypes, ValueError for the rest."""
    vectors = {"weight": weight} | ({} if bias is None else {"bias": bias})
    are_tensors(function, {"input": input} | vectors, FLOATS)
    on_one_device(function, {"input": input} | vectors)
    if quantizer is not None:
        refuse(TypeError, function, f"quantizer is {kind(quantizer)}, but only None is supported: "
                                     "this version has no quantized output")
    is_number(function, "eps", eps)
    _options(function, sm_margin, zero_centered_gamma)
    _hidden(function, "input", input, vectors)


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


def _matrix(shape):
    return shape[:-1].numel(), shape[-1]


def _unpadded(scale_inv, codes, block):
    """The scales of the blocks along the rows of `codes`, without the padding."""
    return scale_inv[: codes.shape[0], : codes.shape[1] // block]


def _nvfp4_values(packed, scale_inv, amax):
    codes = formats.unpack_e2m1(packed)
    scales = _unpadded(scale_inv, codes, formats.NVFP4_BLOCK).float() * formats.nvfp4_decode_scale(amax)
    return formats.decode_e2m1(codes) * scales.repeat_interleave(formats.NVFP4_BLOCK, 1)
