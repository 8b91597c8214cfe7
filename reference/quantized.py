"""What the kinds of quantized tensors have in common."""

import dataclasses

import torch
from torch import Tensor

from reference.arguments import FLOATS, are_tensors, is_dtype, kind, on_one_device, refuse


class QuantizedTensor:
    """What the three kinds of quantized tensors share: frozen dataclasses of tensors, with `dtype` and `shape`.

    `dtype` is the high-precision dtype that the tensor stands for, `shape` that of the tensor which was quantized.
    `torch.save` keeps them, and `torch.load` takes them with weights_only. A subclass gives `_layout`, the shape and
    the dtypes of each field, and `_block`, the length of what shares a scale, where there are blocks.
    """

    _block = 1

    def __post_init__(self):
        data = self.columnwise_data if self.rowwise_data is None else self.rowwise_data
        if data is None:
            refuse(ValueError, type(self).__name__, "rowwise_data and columnwise_data are None, but one must not be")
        if not isinstance(data, Tensor):
            refuse(TypeError, type(self).__name__, f"data is {kind(data)}, but must be a torch.Tensor")
        if data is self.columnwise_data and data.dim() < 2:
            refuse(ValueError, type(self).__name__, f"columnwise_data has {data.dim()} dimensions, but needs 2")
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

        From rowwise data where there is some, else from columnwise data. Shapes: -> `shape`.
        Errors: those of reference.quantization.dequantize.
        """
        dtype = self.dtype if dtype is None else dtype
        self.check("dequantize", dtype)
        matrix = self._values_columnwise() if self.rowwise_data is None else self._values_rowwise()
        return matrix.to(dtype).reshape(self.shape).contiguous()

    @property
    def _matrix(self):
        return self.shape[:-1].numel(), self.shape[-1]

    def check(self, function, dtype):
        """Refuse fields that contradict the shape or one another, and a dtype that nothing is dequantized to."""
        is_dtype(function, "dtype", dtype, FLOATS)
        if not self.shape:
            refuse(ValueError, function, "tensor has no dimensions, but needs at least one: (..., cols)")
        orientations = [name for name in ("rowwise", "columnwise") if getattr(self, f"{name}_data") is not None]
        for name in orientations:
            along, size = ("cols", self._matrix[1]) if name == "rowwise" else ("rows", self._matrix[0])
            if size % self._block:
                refuse(ValueError, function, f"tensor has shape {tuple(self.shape)}, hence {size} {along}, but {along} "
                                             f"of {name} data must be a multiple of the block, {self._block}")
        absent = {"rowwise", "columnwise"} - set(orientations)
        wanted = {name: rule for name, rule in self._layout().items() if name.split("_")[0] not in absent}
        values = {f"tensor.{name}": getattr(self, name) for name in wanted}
        for (name, value), (shape, dtypes) in zip(values.items(), wanted.values()):
            are_tensors(function, {name: value}, dtypes)
            if value.shape != shape:
                refuse(ValueError, function, f"{name} has shape {tuple(value.shape)}, but must have {tuple(shape)}")
            if not value.is_contiguous():
                refuse(ValueError, function, f"{name} has strides {value.stride()}, but must be contiguous")
        on_one_device(function, values)
        data = [getattr(self, f"{name}_data").dtype for name in orientations]
        is_dtype(function, f"tensor.{orientations[-1]}_data", data[-1], data[:1])

    def __repr__(self):
        given = self.tensors()
        held = [f"{name}={value.dtype}{list(value.shape)}".replace("torch.", "") for name, value in given.items()]
        size = sum(value.numel() * value.element_size() for value in given.values())
        parts = [f"shape={tuple(self.shape)}", f"dtype={self.dtype}", *held, f"device={self.device}", f"{size} bytes"]
        return f"{type(self).__name__}({', '.join(parts)})"
