"""How far quantized values are from what was quantized, and whether the format explains it."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.cases import Expected
from harness.quantized import Side, largest, sides, spacing
from reference.tensors import QuantizedTensor

FLUSHED_BLOCK = 32
"""Length of the stretches that count as blocks where a recipe has none."""

_SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)
_SLACK = 2.0**-8  # of half a step: float32 products, and in a Hadamard transform the rounding to bf16
_BF16_SUBNORMAL = 2.0**-133  # the distance of bf16's numbers below its smallest normal one
_FLT_MAX = torch.finfo(torch.float32).max


class Distortion:
    """Gathers the error of one orientation over stretches of rows, without waiting for the device.

    Errors count where both values are finite. `quantizer` says whether codes are rounded stochastically, and whether
    columnwise data is that of a Hadamard transform, which the errors of that data are relative to.
    """

    def __init__(self, orientation: str, quantizer: Any):
        self.orientation = orientation
        self.stochastic = getattr(quantizer, "stochastic_rounding", False)
        self.rotated = orientation == "columnwise" and getattr(quantizer, "with_rht", False)
        self._parts: list[Tensor] = []

    def add(self, side: Side, value: Tensor, unit: Tensor, slack: Tensor | None = None) -> None:
        """Take in a stretch: the side's part of it, the values (rows, cols) that were quantized, their units (rows, 1)
        and how far each may have been from its value, all float64."""
        if not value.numel():
            return
        slack = torch.zeros_like(value) if slack is None else slack.expand_as(value)
        if self.rotated:
            value, unit, slack = _hadamard(value), _grouped(unit), 4 * _grouped(slack)
        if self.orientation == "columnwise":
            value, unit, slack = value.t(), unit.t(), slack.t()
        codes, units = side.code_values(), side.units()
        found = codes * units
        counted = value.isfinite() & found.isfinite()
        error, truth = (torch.where(counted, each, 0.0) for each in (found - value, value))
        relative = error.abs() / unit.nan_to_num(nan=0.0, posinf=0.0).clamp(min=torch.finfo(torch.float32).tiny)
        blocks = side.block or FLUSHED_BLOCK
        flushed = _whole(found == 0, blocks) & ~_whole(value == 0, blocks)
        wrong = (value.isnan() & ~found.isnan()) | self._unexplained(side, value, codes, units, slack)
        self._parts.append(torch.stack([
            relative.max(), relative.square().sum(), error.square().sum(), truth.square().sum(),
            *(each.sum().double() for each in (counted, flushed, wrong)),
            *(value.new_full((), each.numel()) for each in (flushed, codes)),
        ]))

    def _unexplained(self, side: Side, value: Tensor, codes: Tensor, units: Tensor, slack: Tensor) -> Tensor:
        """Where a code is not among those nearest to its value: more than half a step, or with stochastic rounding a
        whole step, and the slack, from the value in units of codes, the largest code where that is beyond it."""
        most = largest(side.format)
        factor = (1 / units).clamp(max=_FLT_MAX)
        wanted = (value * factor).clamp(-most, most)
        steps = spacing(torch.maximum(wanted.abs(), codes.abs()), side.format) * (1.0 if self.stochastic else 0.5)
        allowed = steps * (1 + _SLACK) + slack * factor
        if self.rotated:
            allowed = allowed + wanted.abs() * _SLACK + _BF16_SUBNORMAL * factor
        return ((codes - wanted).abs() > allowed) & ~value.isnan() & ~units.isnan() & (units > 0)

    def result(self) -> dict[str, float]:
        """max, rms: error in units of the row's largest magnitude; snr_db: Σ value² over Σ error², in dB, infinite
        where nothing was lost; flushed: the share of blocks that became zeros and were not; unexplained: how many
        of all codes the format does not explain, lost NaN among them. Waits for the device."""
        if not self._parts:
            return {"max": 0.0, "rms": 0.0, "snr_db": math.inf, "flushed": 0.0, "unexplained": 0, "codes": 0}
        parts = torch.stack(self._parts)
        worst = parts[:, 0].max().item()
        squares, noise, signal, count, flushed, wrong, blocks, codes = parts[:, 1:].sum(0).tolist()
        snr = 10 * (math.log10(signal / noise) if signal else 0.0) if noise else math.inf
        return {"max": worst, "rms": (squares / max(count, 1)) ** 0.5, "snr_db": snr,
                "flushed": flushed / blocks, "unexplained": int(wrong), "codes": int(codes)}


def _whole(flags: Tensor, block: int) -> Tensor:
    """Whether all of a block of flags, along the rows, are set; what is missing of the last block counts as set."""
    short = -flags.shape[1] % block
    return pad(flags, (0, short), value=True).unflatten(1, (-1, block)).all(-1)


def _hadamard(value: Tensor) -> Tensor:
    """Each 16 elements of a column times diag(signs)·H₁₆/4: H₁₆ the Kronecker power of ((1, 1), (1, −1)). (rows, cols)
    -> the same."""
    pair = value.new_tensor([[1, 1], [1, -1]])
    matrix = torch.kron(torch.kron(pair, pair), torch.kron(pair, pair)) / 4
    signed = value.unflatten(0, (-1, 16)) * value.new_tensor(_SIGNS)[:, None]
    return torch.einsum("gkc,kj->gjc", signed, matrix).flatten(0, 1)


def _grouped(unit: Tensor) -> Tensor:
    """The largest unit among each 16 rows, for each of them."""
    return unit.unflatten(0, (-1, 16)).amax(1, keepdim=True).expand(-1, 16, -1).flatten(0, 1)


class Distortions:
    """The distortion of each orientation of a tensor, over the stretches of one output."""

    def __init__(self, tensor: QuantizedTensor, quantizer: Any):
        self._sides = sides(tensor)
        self._each = {name: Distortion(name, quantizer) for name in self._sides}

    def add(self, part: Expected) -> None:
        """Take in a stretch of what was quantized."""
        unit = part.unit.expand(len(part.value), 1)
        for name, side in self._sides.items():
            self._each[name].add(side.part(part.where, name), part.value, unit, part.slack)

    def result(self) -> dict[str, dict[str, float]]:
        """Orientation -> its distortion; waits for the device."""
        return {name: each.result() for name, each in self._each.items()}
