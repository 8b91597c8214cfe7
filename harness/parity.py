"""Whether a function computes what its reference does; judged before it is timed, and once after.

One trial of a call: the reference runs; the function runs twice, its outputs poisoned with 0xFF and then with
0x00, between guard bands; inputs are compared with what they were, the two runs bit for bit, and the result
with the float64 oracle. There is a trial for each seed, all at the same addresses, and one for each kind of
adversarial values.

Outputs may be quantized tensors: every byte of their data and padded scales is checked like any other, then codes and
scales are compared with the reference's as integers, and their values with what was quantized. Inputs that a function
updates in place are put back after each run, and what it made of them is one more output.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

import reference
from harness import pipelines
from harness.cases import FUSED, Allowance, Call, Case, family_of, with_rows
from harness.guards import Guarded, Inputs, Restored, refill, same_bits, unwritten_bytes
from harness.judgement import Judged, Wrong, judge
from harness.mismatches import Comparison
from harness.quantized import flattened
from reference.tensors import QuantizedTensor

SEEDS = (0, 1, 2)
ADVERSARIAL_ROWS, WHOLE_ROWS = 33, 128
"""Rows of a trial of adversarial values: no multiple of any tile; a whole tile, which quantization may treat apart,
where a case is made of them."""

Run = Callable[[Call], tuple]


@dataclass(frozen=True)
class Parity:
    """The verdict on one case.

    `reason` says what was wrong first, and is "" when `ok`. `errors`: output -> max and rms error of the
    function and of the reference over the seeds, in the units of `harness.oracle`; of a quantized output that is what
    quantization lost. `counts`: quantized output -> what harness.mismatches.COUNTED names, summed over all trials.
    `quantization`: quantized output -> orientation -> max, rms, snr_db and flushed of harness.distortion, and the
    reference's, the worst over the seeds. A flag is None where it could not be observed: guards and unwritten bytes
    need the allocation hook, and nothing after a failure is looked at.
    """

    ok: bool
    reason: str
    errors: dict[str, dict[str, float]]
    guards_ok: bool | None
    fully_written: bool | None
    inputs_unchanged: bool | None
    bitwise_repeatable: bool | None
    seeds: int
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    quantization: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)

    def to_dict(self) -> dict:
        """The same as plain values for a JSON row."""
        return asdict(self)


@dataclass
class _Record:
    """What is allowed, and what has been observed so far."""

    allowance: Allowance | None
    twin: bool = True
    errors: dict[str, dict[str, float]] = field(default_factory=dict)
    flags: dict[str, bool | None] = field(default_factory=lambda: dict.fromkeys(
        ("guards_ok", "fully_written", "inputs_unchanged", "bitwise_repeatable")))
    seeds: int = 0
    counts: dict[str, Counter] = field(default_factory=dict)
    quantization: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)

    def demand(self, flag: str, holds: bool, reason: str) -> None:
        """Set a flag; end the trial with `reason` unless it holds."""
        self.flags[flag] = holds
        if not holds:
            raise Wrong(reason)

    def count(self, name: str, comparison: Comparison) -> None:
        """Add up the counts of an output."""
        self.counts.setdefault(name, Counter()).update(comparison.counts)

    def worst(self, judged: Judged) -> None:
        """Keep the worse of each figure."""
        _keep_worse(self.errors, judged.errors)
        for name, sides in judged.quantization.items():
            _keep_worse(self.quantization.setdefault(name, {}), sides)


def _keep_worse(old: dict[str, dict[str, float]], new: dict[str, dict[str, float]]) -> None:
    """Of each figure the larger, but of a signal-to-noise ratio the smaller."""
    for name, figures in new.items():
        before = old.setdefault(name, figures)
        old[name] = {
            key: (min if "snr" in key else max)(value, before[key]) for key, value in figures.items()
        }


def check(case: Case, run: Run, device, seeds=SEEDS, adversarial: bool = True, allocator=None, *,
          twin: bool = True) -> Parity:
    """Judge `run`, which maps a call of `case` to the function's results.

    A `twin` must give the reference's bytes where the family says so; what is none, and computes the same in its own
    way, has the allowance of what is fused.
    `allocator` is the context manager that replaces the allocation hook of the package under test, or None
    where the package has none. Exceptions of `run` are the caller's to catch.
    """
    reason, family = "", family_of(case.function)
    record = _Record(_allowance(case, twin), twin)
    try:
        call = family.make(case, device, seeds[0])
        for seed in seeds:
            if record.seeds:
                refill(call, family.make(case, device, seed))
            with _told(f"seed {seed}"):
                record.worst(_trial(case, call, run, allocator, record))
            record.seeds += 1
        small = few_rows(case)
        for kind in family.adversarial(small) if adversarial else ():
            with _told(kind):
                _trial(small, family.make(small, device, seeds[0], kind), run, allocator, record)
    except Wrong as wrong:
        reason = str(wrong)
    counts = {name: dict(counted) for name, counted in record.counts.items()}
    return Parity(not reason, reason, record.errors, **record.flags, seeds=record.seeds, counts=counts,
                  quantization=record.quantization)


def few_rows(case: Case) -> Case:
    """The case with as many rows as adversarial values need, on its own way through a kernel."""
    whole = case.recipe != "none" and case.rows and case.rows % WHOLE_ROWS == 0
    return with_rows(case, WHOLE_ROWS if whole else ADVERSARIAL_ROWS)


def after(case: Case, call: Call, results: Any, before: dict[str, Tensor] | None = None, *, twin: bool = True,
          times: int = 1) -> str:
    """Why `results` are wrong for `call`; "" if they are right.

    For what a timed path left behind when it was replayed once: poison its outputs with
    `harness.guards.poison` before the replay. The tolerance is that of `check`. What the replay made of the inputs that
    are updated in place is judged, too: `before` holds, by name, what they were, `times` how often the call was made.
    """
    updated = family_of(case.function).in_place(call)
    taken = tuple(tensor.clone() for tensor in updated.values())
    for name, tensor in (before or {}).items():
        updated[name].copy_(tensor)
    exact = _reference(case, call, Restored(updated), times if updated else 1)
    try:
        pairs = _together(_names(case, call), (*_tuple(results), *taken), exact)
        judge(case, call, pairs, lambda name, comparison: None, _allowance(case, twin), times if updated else 1,
              twin=twin)
    except Wrong as wrong:
        return str(wrong)
    return ""


def _allowance(case: Case, twin: bool) -> Allowance | None:
    allowed = family_of(case.function).allowance
    return allowed if twin or allowed is None else FUSED


class _told:
    """Adds to a failure which trial it happened in."""

    def __init__(self, trial: str):
        self.trial = trial

    def __enter__(self):
        return self

    def __exit__(self, kind, wrong, trace):
        if isinstance(wrong, Wrong):
            raise Wrong(f"{wrong} ({self.trial})") from None


def _trial(case: Case, call: Call, run: Run, allocator, record: _Record) -> Judged:
    names, state = _names(case, call), Restored(family_of(case.function).in_place(call))
    before, exact = Inputs(call), _reference(case, call, state)
    runs = []
    for value in (0xFF, 0x00):  # inputs after each: the second run may put back what the first has changed
        runs.append(_poisoned(run, call, allocator, value, state))
        record.demand("inputs_unchanged", before.unchanged(), "an input was changed")
    (ones, ones_guard), (zeros, zeros_guard) = runs
    del before
    updated = family_of(case.function).in_place(call)
    _same_form(names, ones, exact, updated)
    _same_form(names, zeros, exact, updated)
    if allocator is not None:
        intact = ones_guard.intact() and zeros_guard.intact()
        record.demand("guards_ok", intact, "memory beside an output or workspace was overwritten")
        allocated = len(family_of(case.function).outputs)
        made = [None if name in updated else name for name in names[:allocated]]
        _demand_written(_pairs(made, ones, zeros), ones_guard, zeros_guard, record)
    for name, one, zero in _pairs(names, ones, zeros):
        same = same_bits(one, zero)
        record.demand("bitwise_repeatable", same, f"{name}: two runs on the same input differ")
    return judge(case, call, _together(names, ones, exact), record.count, record.allowance, twin=record.twin)


def _names(case: Case, call: Call) -> tuple[str | None, ...]:
    """Names of the results, and of what is updated in place."""
    family = family_of(case.function)
    return (*family.outputs, *family.in_place(call))


def _together(names, results: tuple, exact: tuple) -> dict[str, tuple]:
    """Name -> result and reference, of those that there are; of a result that was updated in place what was taken."""
    return {name: (found, wanted) for name, found, wanted in zip(names, results, exact) if name and wanted is not None}


def _pairs(names, ones: tuple, zeros: tuple) -> list[tuple[str, Tensor, Tensor]]:
    """Name and tensors of each result that there is, of a quantized one those of each field."""
    both = [(flattened(name, one), flattened(name, zero)) for name, one, zero in zip(names, ones, zeros)
            if name and one is not None]
    return [(name, one, zeros[name]) for ones, zeros in both for name, one in ones.items()]


def _demand_written(pairs, ones_guard: Guarded, zeros_guard: Guarded, record: _Record) -> None:
    """Every output came through the hook, and no byte of it kept both poisons."""
    for name, one, zero in pairs:
        if one.numel() and not (ones_guard.owns(one) and zeros_guard.owns(zero)):
            raise Wrong(f"{name}: not allocated through the hook in this call")
        left = 0 if same_bits(one, zero) else unwritten_bytes(one, zero)
        record.demand("fully_written", not left, f"{name}: {left} of {one.nbytes} bytes were never written")


def _poisoned(run: Run, call: Call, allocator, value: int, state: Restored) -> tuple[tuple, Guarded]:
    """Results over memory poisoned with `value`, and the guard of that memory (empty without a hook)."""
    guard = Guarded(value)
    if allocator is None:
        return (*_tuple(run(call)), *state.take()), guard
    with allocator(guard.allocate):
        return (*_tuple(run(call)), *state.take()), guard


def _reference(case: Case, call: Call, state: Restored, times: int = 1) -> tuple:
    function = pipelines.named(reference, case.function)
    for _ in range(times):
        results = _tuple(function(*call.args, **call.kwargs))
    return (*results, *state.take())


def _tuple(results: Any) -> tuple:
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def _same_form(names, results: tuple, exact: tuple, updated: dict[str, Tensor]) -> None:
    """As many results as the reference has, None where it has None, of its type, with its shapes, dtypes and device;
    dense, where they are new, and without an autograd graph."""
    if len(results) != len(exact):
        raise Wrong(f"{len(results)} results instead of {len(exact)}")
    for name, *pair in zip(names, results, exact):
        forms = list(map(_form, pair))
        if forms[0] != forms[1]:
            raise Wrong(f"{name}: {forms[0]} instead of {forms[1]}")
        for part, tensor in flattened(name, pair[0]).items():
            if name not in updated and not tensor.is_contiguous():
                raise Wrong(f"{part}: strides {tensor.stride()} are not those of a contiguous tensor")
            if tensor.requires_grad:
                raise Wrong(f"{part}: carries an autograd graph")


def _form(result: Any) -> Any:
    if isinstance(result, QuantizedTensor):
        held = {name: _form(tensor) for name, tensor in result.tensors().items()}
        return type(result).__name__, tuple(result.shape), result.dtype, held
    return (tuple(result.shape), result.dtype, result.device) if isinstance(result, Tensor) else result
