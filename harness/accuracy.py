"""How far an output is from the oracle: non-finite values first, then errors in the oracle's units."""

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.cases import Expected


@dataclass(frozen=True)
class Accuracy:
    """One output against the oracle. Errors are in units, see `harness.oracle`.

    max: the largest error; rms: the root of the mean square; excess: the largest of error − one ulp of the
    output dtype at its unit; ulp: that ulp, its root mean square; misplaced: how many values are NaN or
    infinite on one side only; stray: how many are infinite where the oracle is finite; constant: all values
    equal, and the oracle's are not.
    """

    max: float
    rms: float
    excess: float
    ulp: float
    misplaced: int
    stray: int
    constant: bool

    def within(self, allowed_max: float, allowed_rms: float) -> bool:
        """Whether both errors keep to what is allowed, one ulp of the output dtype on top."""
        return self.excess <= allowed_max and self.rms <= allowed_rms + self.ulp


class Measure:
    """Gathers the accuracy of one output of `dtype` over stretches, without waiting for the device.

    An infinity where the oracle is finite counts as far off as the oracle is from overflowing to that side:
    rounding to the output dtype may go either way there, and nowhere else.
    """

    def __init__(self, dtype: torch.dtype):
        self._dtype, self._limits = dtype, torch.finfo(dtype)
        self._parts: list[Tensor] = []

    def add(self, found: Tensor, expected: Expected) -> None:
        """Take in a stretch of the output, shaped as expected.value is."""
        oracle, values = expected.value, found.double()
        if not oracle.numel():
            return
        unit, ulp = self._unit_and_ulp(expected.unit)
        finite, stray = oracle.isfinite(), values.isinf() & oracle.isfinite()
        overflow = (self._limits.max - oracle * values.sign()).clamp(min=0)
        error = torch.where(stray, overflow, (values - oracle).abs())
        error = torch.where(finite & ~values.isnan(), error, 0.0) / unit
        misplaced = (oracle.isnan() != values.isnan()).sum() + (oracle.isinf() & (values != oracle)).sum()
        rounded = oracle.to(self._dtype).double()
        self._parts.append(torch.stack([
            error.max(), (error - ulp / unit).max(),
            error.square().sum(), (ulp / unit).square().mean() * error.numel(),
            values.amin(), values.amax(), rounded.amin(), rounded.amax(), misplaced, stray.sum(),
            error.new_full((), error.numel()),
        ]))

    def result(self) -> Accuracy:
        """The accuracy of all stretches together; waits for the device."""
        if not self._parts:
            return Accuracy(0.0, 0.0, 0.0, 0.0, 0, 0, False)
        parts = torch.stack(self._parts)
        most, total, least = parts.amax(0).tolist(), parts.sum(0).tolist(), parts.amin(0).tolist()
        count = total[10]
        return Accuracy(max=most[0], rms=(total[2] / count) ** 0.5,
                        excess=most[1], ulp=(total[3] / count) ** 0.5,
                        misplaced=int(total[8]), stray=int(total[9]),
                        constant=least[4] == most[5] and least[6] != most[7])

    def _unit_and_ulp(self, unit: Tensor) -> tuple[Tensor, Tensor]:
        """Units, and the distance between neighbours of the output dtype at each.

        None is under the smallest normal float32: below it float32 arithmetic has no relative precision.
        """
        smallest = self._limits.tiny * self._limits.eps
        unit = unit.nan_to_num(nan=0.0, posinf=0.0).clamp(min=torch.finfo(torch.float32).tiny)
        exponent = torch.frexp(unit).exponent - 1
        return unit, (torch.exp2(exponent.double()) * self._limits.eps).clamp(min=smallest)
