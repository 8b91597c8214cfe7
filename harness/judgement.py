"""Results that have the right form, judged: against the oracle, and, where they are quantized, against the reference's
codes and scales."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from harness.accuracy import Accuracy, Measure
from harness.cases import DTYPES, EXACT, Allowance, Call, Case, Expected, family_of, quantizer_of
from harness.distortion import Distortions
from harness.guards import same_bits
from harness.mismatches import Comparison
from harness.quantized import flattened
from reference.tensors import QuantizedTensor

CREDIBLE = 2.0**-19
"""A reference may be off by one ulp of the output dtype and 32 roundings of float32, and by what its family grants it;
else it proves nothing."""
MANY = 4096
"""Of so many values the largest error and the rms error are no matter of luck."""
LUCK = 2.0**-23
"""A reference's error counts as at least this, one float32 ulp: one that is smaller in the few values of a
small output is luck, and says nothing about how exact float32 arithmetic in another order can be."""


class Wrong(Exception):
    """Why a trial failed."""


@dataclass
class Judged:
    """What was measured of a call's outputs: see harness.parity.Parity."""

    errors: dict[str, dict[str, float]]
    quantization: dict[str, dict[str, dict[str, float]]]


def judge(
    case: Case, call: Call, pairs: dict[str, tuple], count: Callable[[str, Comparison], None],
    allowance: Allowance | None, times: int = 1, *, twin: bool = True,
) -> Judged:
    """Errors of every output against the oracle. `pairs`: name -> what the function and the reference gave.

    `times`: how often both were called, where that accumulates. `twin`: see harness.parity.check. `count` takes what
    was counted of an output, right or wrong. `allowance`: see Family. Raises Wrong with what is wrong with the first
    output that is not what it should be.
    """
    family = family_of(case.function)
    for name, pair in pairs.items():
        if comparison := _compared(case, name, pair, allowance):
            count(name, comparison)
            if comparison.reason:
                raise Wrong(comparison.reason)
    measured = _measured(case, call, {name: pairs[name] for name in family.outputs if name in pairs}, times)
    judged, credible = Judged({}, {}), CREDIBLE + family.loosely(call)
    for name, (found, wanted) in measured.items():
        if isinstance(wanted, Accuracy):
            dtype = pairs[name][0].dtype
            _demand_accuracy(name, found, wanted, dtype, credible + (times - 1) * torch.finfo(dtype).eps)
            if family.closer and twin and times == 1:
                _demand_closer(name, found, wanted, pairs[name][0])
            judged.errors[name] = {"max": found.max, "rms": found.rms,
                                   "reference_max": wanted.max, "reference_rms": wanted.rms}
        else:
            judged.quantization[name] = _losses(name, found, wanted, allowance)
            judged.errors[name] = {key: max(side[key] for side in judged.quantization[name].values())
                                   for key in ("max", "rms", "reference_max", "reference_rms")}
    return judged


def _compared(case: Case, name: str, pair: tuple, allowance: Allowance | None) -> Comparison | None:
    """An output compared with the reference's, where that is what counts."""
    if allowance is None:
        return None
    (found, wanted), comparison = pair, Comparison(name, allowance)
    if isinstance(wanted, QuantizedTensor):
        return comparison.tensors(found, wanted)
    if name not in family_of(case.function).outputs:
        return comparison.amax(found, wanted, DTYPES[case.dtype])
    return comparison.values(found, wanted) if allowance == EXACT else None


def _measured(case: Case, call: Call, outputs: dict[str, tuple], times: int) -> dict[str, tuple]:
    """What the oracle has to say of each output of the function, and of the reference, in one pass over it; once where
    the two have the same bits."""
    meters = {}
    for name, (found, wanted) in outputs.items():
        alike = all(map(same_bits, flattened(name, found).values(), flattened(name, wanted).values()))
        meters[name] = [_Meter(wanted, call)] if alike else [_Meter(found, call), _Meter(wanted, call)]
    family = family_of(case.function)
    for part in family.expected(call, times) if family.accumulates else family.expected(call):
        for meter in meters[part.name]:
            meter.add(part)
    results = {name: [meter.result() for meter in of] for name, of in meters.items()}
    return {name: (of[0], of[-1]) for name, of in results.items()}


class _Meter:
    """Measures one result of a call, quantized or not."""

    def __init__(self, result: Any, call: Call):
        self._result, quantized = result, isinstance(result, QuantizedTensor)
        self._of = Distortions(result, quantizer_of(call)) if quantized else Measure(result.dtype)
        self.result = self._of.result

    def add(self, part: Expected) -> None:
        if isinstance(self._of, Distortions):
            self._of.add(part)
            return
        value, result = part.value, self._result
        rows = result.reshape(-1) if value.dim() == 1 else result.reshape(result.shape[:-1].numel(), value.shape[-1])
        self._of.add(rows[part.where], part)


def _losses(name: str, found: dict, wanted: dict, allowance: Allowance) -> dict[str, dict[str, float]]:
    """Orientation -> what quantization lost, and what it lost in the reference."""
    for side, figures in wanted.items():
        if figures["unexplained"]:
            raise Wrong(f"{name} {side}: the reference itself is off in {figures['unexplained']} codes")
    for side, figures in found.items():
        if figures["unexplained"] > allowance.codes * figures["codes"]:
            raise Wrong(f"{name} {side}: {figures['unexplained']} of {figures['codes']} codes are not the nearest ones")
    kept = ("max", "rms", "snr_db", "flushed")
    return {side: {key: figures[key] for key in kept} | {f"reference_{key}": wanted[side][key] for key in kept}
            for side, figures in found.items()}


def _demand_accuracy(
    name: str, found: Accuracy, wanted: Accuracy, dtype: torch.dtype, credible: float
) -> None:
    if wanted.misplaced or not wanted.within(credible, credible):
        raise Wrong(f"{name}: the reference itself is off by {wanted.max:.2e}, "
                     f"with {wanted.misplaced} NaN or infinite values on one side only")
    if found.misplaced:
        raise Wrong(f"{name}: {found.misplaced} NaN or infinite values on one side only")
    if found.constant:
        raise Wrong(f"{name}: constant, which the oracle's is not")
    if not found.within(2 * max(wanted.max, LUCK), 2 * max(wanted.rms, LUCK)):
        stray = f"; {found.stray} infinities where the oracle is finite" if found.stray else ""
        raise Wrong(f"{name}: error max {found.max:.2e}, rms {found.rms:.2e}; the reference has "
                     f"{wanted.max:.2e}, {wanted.rms:.2e}; allowed: twice that and one ulp of {dtype}{stray}")


def _demand_closer(name: str, found: Accuracy, wanted: Accuracy, output: torch.Tensor) -> None:
    if output.element_size() == 2 and output.numel() >= MANY and (
            found.max > max(wanted.max, LUCK) or found.rms > max(wanted.rms, LUCK)):
        raise Wrong(f"{name}: error max {found.max:.2e}, rms {found.rms:.2e}; the composition, which rounds more "
                    f"often, has {wanted.max:.2e}, {wanted.rms:.2e}: at most that is allowed")
