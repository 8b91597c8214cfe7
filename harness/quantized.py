"""Quantized tensors as the harness reads them: from the formats alone, not by what the packages decode with."""

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from reference.tensors import Float8Tensor, MXFP8Tensor, NVFP4Tensor, QuantizedTensor

_BITS = {"e4m3": (4, 3, 7), "e5m2": (5, 2, 15), "e2m1": (2, 1, 1)}  # of exponent and mantissa, and the bias
_FLT_MAX = torch.finfo(torch.float32).max
NAN_SCALES = {"mxfp8": 255, "nvfp4": 0x7F}
"""Kind of tensor -> the block scale that is NaN."""


@dataclass(frozen=True)
class Side:
    """One orientation, turned so that its blocks lie along the rows of a matrix (outer, inner).

    codes: one a byte, (outer, inner). scales: of blocks, (outer, inner/block), cut from `padded`, both bytes; None
    where there is one for the tensor, which is then `factor`. factor: float32 (1,): scale_inv, or NVFP4's amax.
    """

    kind: str
    format: str
    block: int | None
    codes: Tensor
    scales: Tensor | None
    padded: Tensor | None
    factor: Tensor | None

    def part(self, rows: slice, orientation: str) -> "Side":
        """The stretch `rows` of the matrix that was quantized; it begins with a block."""
        if orientation == "rowwise":
            return replace(self, codes=self.codes[rows], scales=None if self.scales is None else self.scales[rows])
        blocks = self.block and slice(rows.start // self.block, -(-rows.stop // self.block))
        return replace(self, codes=self.codes[:, rows], scales=None if blocks is None else self.scales[:, blocks])

    def units(self) -> Tensor:
        """What a code of 1 stands for, float64, of each element or (1,): products of scales as float32 has them."""
        if self.kind == "fp8":
            return self.factor.double()
        if self.kind == "mxfp8":
            exact = torch.exp2(self.scales.double() - 127)
            units = exact.masked_fill(self.scales == NAN_SCALES["mxfp8"], float("nan"))
        else:
            units = (table("e4m3", self.codes.device)[self.scales.int()].float() * _decoding(self.factor)).double()
        return units.repeat_interleave(self.block, 1)

    def code_values(self) -> Tensor:
        """What each code stands for, float64."""
        return table(self.format, self.codes.device)[self.codes.int()]

    def values(self) -> Tensor:
        """code · scale of each element, float64."""
        return self.code_values() * self.units()

    def padding(self) -> Tensor:
        """The bytes of the scales' array that belong to no block."""
        if self.padded is None:
            return self.codes.new_zeros(0)
        outer, blocks = self.scales.shape
        return torch.cat((self.padded[:outer, blocks:].flatten(), self.padded[outer:].flatten()))


def sides(tensor: QuantizedTensor) -> dict[str, Side]:
    """The orientations that a tensor holds, by name."""
    read = {Float8Tensor: _fp8, MXFP8Tensor: _mxfp8, NVFP4Tensor: _nvfp4}[type(tensor)]
    held = {"rowwise": tensor.rowwise_data, "columnwise": tensor.columnwise_data}
    return {name: read(tensor, name) for name, data in held.items() if data is not None}


@functools.cache
def table(name: str, device: torch.device) -> Tensor:
    """The value of every code of a format, float64."""
    exponents, mantissas, bias = _BITS[name]
    codes = torch.arange(1 << 1 + exponents + mantissas, device=device)
    mantissa = (codes & (1 << mantissas) - 1).double() / (1 << mantissas)
    exponent = codes >> mantissas & (1 << exponents) - 1
    normal = (1 + mantissa) * torch.exp2(exponent.double() - bias)
    values = torch.where(exponent == 0, mantissa * 2.0 ** (1 - bias), normal)
    if name == "e4m3":
        values[[0x7F, 0xFF]] = float("nan")
    elif name == "e5m2":
        infinite = exponent == (1 << exponents) - 1
        values = torch.where(infinite, torch.where(mantissa == 0, float("inf"), float("nan")), values)
    return torch.where(codes >> exponents + mantissas == 1, -values, values)


def largest(name: str) -> float:
    """The largest finite value of a format."""
    values = table(name, torch.device("cpu"))
    return float(values[values.isfinite()].max())


def spacing(values: Tensor, name: str) -> Tensor:
    """The distance of a format's neighbours at each magnitude, in the units of codes, float64."""
    _, mantissas, bias = _BITS[name]
    lowest = torch.finfo(torch.float64).tiny
    magnitude = values.abs().nan_to_num(nan=0.0, posinf=0.0).clamp(lowest, largest(name))
    exponent = torch.frexp(magnitude).exponent - 1
    return torch.exp2(exponent.clamp(min=1 - bias).double() - mantissas)


def _decoding(amax: Tensor) -> Tensor:
    """NVFP4's 1/S_enc of an amax, float32, correctly rounded at each step: S_enc = min(448·6/amax, FLT_MAX), or 1."""
    encoding = (2688.0 / amax.double()).float().clamp(max=_FLT_MAX)  # the quotient of two floats survives two roundings
    encoding = torch.where((amax == 0) | (encoding == 0) | amax.isnan(), 1.0, encoding)
    return (1.0 / encoding.double()).float()


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8)


def _rows(tensor: Tensor) -> Tensor:
    return _bytes(tensor).reshape(tensor.shape[:-1].numel(), tensor.shape[-1])


def _format(data: Tensor) -> str:
    return {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}[data.dtype]


def _fp8(tensor: Float8Tensor, name: str) -> Side:
    data = getattr(tensor, f"{name}_data")
    return Side("fp8", _format(data), None, _rows(data), None, None, tensor.scale_inv)


def _mxfp8(tensor: MXFP8Tensor, name: str) -> Side:
    data, padded = getattr(tensor, f"{name}_data"), getattr(tensor, f"{name}_scale_inv")
    codes = _rows(data)
    if name == "columnwise":
        codes, padded = codes.t(), padded.t()
    return Side("mxfp8", _format(data), 32, codes, padded[:codes.shape[0], :codes.shape[1] // 32], padded, None)


def _nvfp4(tensor: NVFP4Tensor, name: str) -> Side:
    packed, amax = _rows(getattr(tensor, f"{name}_data")), getattr(tensor, f"{name}_amax")
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1)
    padded = _bytes(getattr(tensor, f"{name}_scale_inv"))
    return Side("nvfp4", "e2m1", 16, codes, padded[:codes.shape[0], :codes.shape[1] // 16], padded, amax)


def flattened(name: str, result: Any) -> dict[str, Tensor]:
    """The tensors of one result by name: of a quantized tensor those of its fields, "output.rowwise_data"."""
    if isinstance(result, QuantizedTensor):
        return {f"{name}.{field}": tensor for field, tensor in result.tensors().items()}
    return {} if result is None else {name: result}
