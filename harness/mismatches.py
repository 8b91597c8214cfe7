"""Quantized outputs compared as integers: how many codes, scales and amax differ from the reference's."""

from collections import Counter

import torch
from torch import Tensor

from harness.cases import EXACT, Allowance
from harness.quantized import NAN_SCALES, Side, sides, spacing, table
from reference.tensors import QuantizedTensor

COUNTED = ("codes", "code_mismatches", "scales", "scale_mismatches", "amax_mismatches", "padding", "apart")
"""Of a quantized output. codes, scales: compared, one scale for each block or tensor; mismatches: other bytes than the
reference's, one NaN of float32 being like another; padding: its bytes that are not 0; apart: codes under a scale or
amax that differs, whose values are compared instead."""


class Comparison:
    """Counts over one output, and, in `reason`, the first difference that is not allowed; "" where all is well."""

    def __init__(self, name: str, allowance: Allowance):
        self.name, self.allowance = name, allowance
        self.counts, self.reason = Counter(), ""

    def tensors(self, found: QuantizedTensor, wanted: QuantizedTensor) -> "Comparison":
        """Compare two quantized tensors of one form."""
        self.counts.update(dict.fromkeys(COUNTED, 0))
        theirs = sides(wanted)
        for name, side in sides(found).items():
            self._side(f"{self.name} {name}", side, theirs[name], wanted.dtype)
        return self

    def amax(self, found: Tensor, wanted: Tensor, dtype: torch.dtype) -> "Comparison":
        """Compare what was accumulated in place, in float32, for an activation of `dtype`."""
        self.counts["amax_mismatches"] += 0
        self._of_tensor(self.name, "amax_mismatches", found, wanted, dtype)
        return self

    def values(self, found: Tensor, wanted: Tensor) -> "Comparison":
        """Compare two float tensors that must be equal."""
        wrong = int((~same_values(found, wanted)).sum())
        self.counts.update({"values": wanted.numel(), "value_mismatches": wrong})
        self._demand(not wrong, f"{self.name}: {wrong} of {wanted.numel()} values differ from the reference's")
        return self

    def _side(self, name: str, found: Side, wanted: Side, dtype: torch.dtype) -> None:
        counts = self.counts
        counts["codes"] += wanted.codes.numel()
        counts["scales"] += 1 if wanted.scales is None else wanted.scales.numel()
        alike = True
        if wanted.kind == "fp8":
            alike = self._of_tensor(f"{name} scale_inv", "scale_mismatches", found.factor, wanted.factor, dtype)
        elif wanted.kind == "nvfp4":
            alike = self._of_tensor(f"{name} amax", "amax_mismatches", found.factor, wanted.factor, dtype)
        same = torch.full_like(wanted.codes, alike, dtype=torch.bool)
        if wanted.scales is not None:
            same &= self._scales(name, found, wanted, alike).repeat_interleave(wanted.block, 1)
            self._padding(name, found)
        self._codes(name, found, wanted, same)
        if not same.all():
            self._values(name, found, wanted, ~same)

    def _of_tensor(self, name: str, kind: str, found: Tensor, wanted: Tensor, dtype: torch.dtype) -> bool:
        """Count and judge one float32; whether it is the same."""
        same = bool(same_values(found, wanted).all())
        self.counts[kind] += not same
        ulp = torch.finfo(dtype).eps * torch.maximum(found.abs(), wanted.abs()).double()
        near = self.allowance.amax and bool(((found.double() - wanted.double()).abs() <= ulp).all())
        self._demand(same or near, f"{name} is {found.tolist()}, the reference's {wanted.tolist()}")
        return same

    def _scales(self, name: str, found: Side, wanted: Side, alike: bool) -> Tensor:
        """Count and judge the scales of blocks; which are the same. Under another amax than the reference's, any of
        them may be a step off."""
        same, nan = found.scales == wanted.scales, NAN_SCALES[wanted.kind]
        wrong, total = int((~same).sum()), same.numel()
        self.counts["scale_mismatches"] += wrong
        steps = _largest((found.scales.int() - wanted.scales.int()).abs())
        lost = ((found.scales == nan) != (wanted.scales == nan)).any()
        few = wrong <= self.allowance.scales * total or (self.allowance.amax and not alike)
        self._demand(few and steps <= 1 and not lost,
                     f"{name}: {wrong} of {total} scales differ from the reference's, by up to {steps} steps"
                     f"{', NaN lost or made' if lost else ''}")
        return same

    def _padding(self, name: str, found: Side) -> None:
        left = int((found.padding() != 0).sum())
        self.counts["padding"] += left
        self._demand(not left, f"{name}: {left} bytes of the scales' padding are not 0")

    def _codes(self, name: str, found: Side, wanted: Side, same: Tensor) -> None:
        """Count and judge the codes under scales that are the same."""
        picked = (found.codes != wanted.codes) & same
        ours, theirs = found.codes[picked], wanted.codes[picked]
        wrong, total = ours.numel(), int(same.sum())
        self.counts["code_mismatches"] += wrong
        steps = (_order(ours, wanted.format) - _order(theirs, wanted.format)).abs()
        values = table(wanted.format, ours.device)
        lost = int((values[ours.int()].isnan() != values[theirs.int()].isnan()).sum())
        fine = wrong <= self.allowance.codes * total and _largest(steps) <= 1 and not lost
        self._demand(fine, f"{name}: {wrong} of {total} codes differ from the reference's, "
                           f"by up to {_largest(steps)} steps{', NaN lost or made' if lost else ''}")

    def _values(self, name: str, found: Side, wanted: Side, apart: Tensor) -> None:
        """Judge codes under scales that differ by their values: within one step of the coarser."""
        values, steps = [], []
        for side in (found, wanted):
            codes = table(side.format, side.codes.device)[side.codes[apart].int()]
            units = side.units().expand_as(apart)[apart]
            values.append(codes * units)
            steps.append(spacing(codes, side.format) * units)
        ours, theirs = values
        near = ((ours - theirs).abs() <= torch.maximum(*steps) * (1 + 1e-6)) | (ours.isnan() & theirs.isnan())
        self.counts["apart"] += ours.numel()
        far = int((~near).sum())
        self._demand(not far, f"{name}: {far} of {ours.numel()} values under other scales are more than a step off")

    def _demand(self, holds: bool, reason: str) -> None:
        if not (holds or self.reason):
            self.reason = f"{reason} (allowed: {_told(self.allowance)})"


def same_values(one: Tensor, other: Tensor) -> Tensor:
    """Where two float tensors have the same bits, or both a NaN."""
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[one.element_size()]
    same = one.contiguous().view(kind) == other.contiguous().view(kind)
    return same | (one.isnan() & other.isnan()) if one.element_size() > 1 else same


def _order(codes: Tensor, name: str) -> Tensor:
    """Codes of a format in the order of their values, both zeros alike, as int32."""
    bits = 3 if name == "e2m1" else 7
    magnitude = codes.int() & (1 << bits) - 1
    return torch.where(codes >> bits == 1, -magnitude, magnitude)


def _largest(counts: Tensor) -> int:
    return int(counts.max()) if counts.numel() else 0


def _told(allowance: Allowance) -> str:
    if allowance == EXACT:
        return "none"
    return f"one step in {allowance.codes:.1%} of codes, {allowance.scales:.1%} of scales"
