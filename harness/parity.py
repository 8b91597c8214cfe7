"""Whether a function computes what its reference does; judged before it is timed, and once after.

One trial of a call: the reference runs; the function runs twice, its outputs poisoned with 0xFF and then with
0x00, between guard bands; inputs are compared with what they were, the two runs bit for bit, and the result
with the float64 oracle. There is a trial for each seed, all at the same addresses, and one for each kind of
adversarial values.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

import reference
from harness.accuracy import Accuracy, Measure
from harness.cases import Call, Case, Family, family_of, with_rows
from harness.guards import Guarded, Inputs, refill, same_bits, unwritten_bytes

SEEDS = (0, 1, 2)
ADVERSARIAL_ROWS = 33
CREDIBLE = 2.0**-19
"""A reference may be off by one ulp of the output dtype and 32 roundings of float32; else it proves
nothing."""
LUCK = 2.0**-23
"""A reference's error counts as at least this, one float32 ulp: one that is smaller in the few values of a
small output is luck, and says nothing about how exact float32 arithmetic in another order can be."""

Run = Callable[[Call], tuple]


@dataclass(frozen=True)
class Parity:
    """The verdict on one case.

    `reason` says what was wrong first, and is "" when `ok`. `errors`: output -> max and rms error of the
    function and of the reference over the seeds, in the units of `harness.oracle`. A flag is None where it
    could not be observed: guards and unwritten bytes need the allocation hook, and nothing after a failure is
    looked at.
    """

    ok: bool
    reason: str
    errors: dict[str, dict[str, float]]
    guards_ok: bool | None
    fully_written: bool | None
    inputs_unchanged: bool | None
    bitwise_repeatable: bool | None
    seeds: int

    def to_dict(self) -> dict:
        """The same as plain values for a JSON row."""
        return asdict(self)


class _Wrong(Exception):
    """Why a trial failed."""


@dataclass
class _Record:
    """What has been observed so far."""

    errors: dict[str, dict[str, float]] = field(default_factory=dict)
    flags: dict[str, bool | None] = field(default_factory=lambda: dict.fromkeys(
        ("guards_ok", "fully_written", "inputs_unchanged", "bitwise_repeatable")))
    seeds: int = 0

    def demand(self, flag: str, holds: bool, reason: str) -> None:
        """Set a flag; end the trial with `reason` unless it holds."""
        self.flags[flag] = holds
        if not holds:
            raise _Wrong(reason)

    def worst(self, errors: dict[str, dict[str, float]]) -> None:
        """Keep the larger of each error."""
        for name, new in errors.items():
            old = self.errors.setdefault(name, new)
            self.errors[name] = {key: max(value, old[key]) for key, value in new.items()}


def check(case: Case, run: Run, device, seeds=SEEDS, adversarial: bool = True, allocator=None) -> Parity:
    """Judge `run`, which maps a call of `case` to the function's results.

    `allocator` is the context manager that replaces the allocation hook of the package under test, or None
    where the package has none. Exceptions of `run` are the caller's to catch.
    """
    record, reason, family = _Record(), "", family_of(case.function)
    try:
        call = family.make(case, device, seeds[0])
        for seed in seeds:
            if record.seeds:
                refill(call, family.make(case, device, seed))
            with _told(f"seed {seed}"):
                record.worst(_trial(case, call, run, allocator, record))
            record.seeds += 1
        small = with_rows(case, ADVERSARIAL_ROWS)
        for kind in family.adversarial(small) if adversarial else ():
            with _told(kind):
                _trial(small, family.make(small, device, seeds[0], kind), run, allocator, record)
    except _Wrong as wrong:
        reason = str(wrong)
    return Parity(not reason, reason, record.errors, **record.flags, seeds=record.seeds)


def after(case: Case, call: Call, results: tuple) -> str:
    """Why `results` are wrong for `call`; "" if they are right.

    For what a timed path left behind when it was replayed once: poison its outputs with
    `harness.guards.poison` before the replay. The tolerance is that of `check`.
    """
    try:
        _judge(case, call, _tuple(results), _reference(case, call))
    except _Wrong as wrong:
        return str(wrong)
    return ""


class _told:
    """Adds to a failure which trial it happened in."""

    def __init__(self, trial: str):
        self.trial = trial

    def __enter__(self):
        return self

    def __exit__(self, kind, wrong, trace):
        if isinstance(wrong, _Wrong):
            raise _Wrong(f"{wrong} ({self.trial})") from None


def _trial(case: Case, call: Call, run: Run, allocator, record: _Record) -> dict[str, dict[str, float]]:
    names = family_of(case.function).outputs
    before, exact = Inputs(call), _reference(case, call)
    runs = []
    for value in (0xFF, 0x00):  # inputs after each: the second run may put back what the first has changed
        runs.append(_poisoned(run, call, allocator, value))
        record.demand("inputs_unchanged", before.unchanged(), "an input was changed")
    (ones, ones_guard), (zeros, zeros_guard) = runs
    del before
    _same_form(names, ones, exact)
    _same_form(names, zeros, exact)
    pairs = [(name, one, zero) for name, one, zero in zip(names, ones, zeros) if name]
    if allocator is not None:
        intact = ones_guard.intact() and zeros_guard.intact()
        record.demand("guards_ok", intact, "memory beside an output or workspace was overwritten")
        _demand_written(pairs, ones_guard, zeros_guard, record)
    for name, one, zero in pairs:
        same = same_bits(one, zero)
        record.demand("bitwise_repeatable", same, f"{name}: two runs on the same input differ")
    return _judge(case, call, ones, exact)


def _demand_written(pairs, ones_guard: Guarded, zeros_guard: Guarded, record: _Record) -> None:
    """Every output came through the hook, and no byte of it kept both poisons."""
    for name, one, zero in pairs:
        if one.numel() and not (ones_guard.owns(one) and zeros_guard.owns(zero)):
            raise _Wrong(f"{name}: not allocated through the hook in this call")
        left = 0 if same_bits(one, zero) else unwritten_bytes(one, zero)
        record.demand("fully_written", not left, f"{name}: {left} of {one.nbytes} bytes were never written")


def _poisoned(run: Run, call: Call, allocator, value: int) -> tuple[tuple, Guarded]:
    """Results over memory poisoned with `value`, and the guard of that memory (empty without a hook)."""
    guard = Guarded(value)
    if allocator is None:
        return _tuple(run(call)), guard
    with allocator(guard.allocate):
        return _tuple(run(call)), guard


def _reference(case: Case, call: Call) -> tuple:
    return getattr(reference, case.function)(*call.args, **call.kwargs)


def _tuple(results) -> tuple:
    return (results,) if isinstance(results, Tensor) or results is None else tuple(results)


def _same_form(names, results: tuple, exact: tuple) -> None:
    """As many results as the reference has, None where it has None, with its shapes, dtypes and device; dense,
    and without an autograd graph."""
    if len(results) != len(exact):
        raise _Wrong(f"{len(results)} results instead of {len(exact)}")
    for name, found, wanted in zip(names, results, exact):
        forms = [(tuple(t.shape), t.dtype, t.device) if isinstance(t, Tensor) else t for t in (found, wanted)]
        if forms[0] != forms[1]:
            raise _Wrong(f"{name}: {forms[0]} instead of {forms[1]}")
        if found is not None and not found.is_contiguous():
            raise _Wrong(f"{name}: strides {found.stride()} are not those of a contiguous tensor")
        if found is not None and found.requires_grad:
            raise _Wrong(f"{name}: carries an autograd graph")


def _judge(case: Case, call: Call, results: tuple, exact: tuple) -> dict[str, dict[str, float]]:
    """Errors of every output against the oracle; raises what is wrong with the first that is not accurate."""
    family = family_of(case.function)
    outputs = {name: pair for name, *pair in zip(family.outputs, results, exact) if name}
    found, wanted = _measure(family, call, outputs)
    for name, (tensor, _) in outputs.items():
        _demand_accuracy(name, found[name], wanted[name], tensor.dtype)
    return {name: {"max": found[name].max, "rms": found[name].rms,
                   "reference_max": wanted[name].max, "reference_rms": wanted[name].rms} for name in outputs}


def _measure(family: Family, call: Call, outputs) -> list[dict[str, Accuracy]]:
    """The accuracy of each output of the function, and of the reference, in one pass over the oracle."""
    measures = [{name: Measure(tensor.dtype) for name, (tensor, _) in outputs.items()} for _ in range(2)]
    for part in family.expected(call):
        for measure, tensor in zip(measures, outputs[part.name]):
            rows = tensor.reshape(-1) if part.value.dim() == 1 else tensor.reshape(-1, part.value.shape[-1])
            measure[part.name].add(rows[part.where], part)
    return [{name: each.result() for name, each in measure.items()} for measure in measures]


def _demand_accuracy(name: str, found: Accuracy, wanted: Accuracy, dtype: torch.dtype) -> None:
    if wanted.misplaced or not wanted.within(CREDIBLE, CREDIBLE):
        raise _Wrong(f"{name}: the reference itself is off by {wanted.max:.2e}, "
                     f"with {wanted.misplaced} NaN or infinite values on one side only")
    if found.misplaced:
        raise _Wrong(f"{name}: {found.misplaced} NaN or infinite values on one side only")
    if found.constant:
        raise _Wrong(f"{name}: constant, which the oracle's is not")
    if not found.within(2 * max(wanted.max, LUCK), 2 * max(wanted.rms, LUCK)):
        stray = f"; {found.stray} infinities where the oracle is finite" if found.stray else ""
        raise _Wrong(f"{name}: error max {found.max:.2e}, rms {found.rms:.2e}; the reference has "
                     f"{wanted.max:.2e}, {wanted.rms:.2e}; allowed: twice that and one ulp of {dtype}{stray}")
