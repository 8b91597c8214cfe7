"""One case from inputs to rows: parity of each implementation, then the time of those that are right."""

import time
from collections.abc import Iterator
from typing import Any

from harness import compile_report, parity, rows
from harness.cases import FAMILIES, Call, Case
from harness.implementations import IMPLEMENTATIONS
from harness.options import repeat_command
from harness.subject import DeviceLost, Subject, work_fields


class CaseRun:
    """Runs `case` on a backend. `kernel` is its (plan, binary) where it has one; `common` goes into each
    row."""

    def __init__(
        self, case: Case, backend: Any, common: dict[str, Any], kernel: tuple[Any, Any] | None = None
    ):
        self.case, self.backend, self.common, self.kernel = case, backend, common, kernel
        self.family = FAMILIES[case.function]
        self.call: Call | None = None

    def blank(self, name: str) -> dict[str, Any]:
        """The identity of the row of one implementation, before anything was run."""
        case = self.case
        return rows.row(
            function=case.function,
            implementation=name,
            shape=case.shape_text,
            dtype=case.dtype,
            recipe=case.recipe,
            options=dict(case.options),
            case=case.name,
            status="SKIPPED",
            device=self.backend.name,
            gpu=self.backend.gpu,
            time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            **self.common,
        )

    def run(self, names: list[str], timed: bool = True) -> Iterator[dict[str, Any]]:
        """The rows of the implementations, as soon as each is final. Ctrl-C loses none that was yielded.

        Raises DeviceLost after the row of the implementation that the device was lost to.
        """
        subjects = [Subject(self.case, name) for name in names]
        try:
            self._run(subjects, timed)
        except DeviceLost:
            yield from (self._row(subject) for subject in subjects if subject.status == "CRASH")
            raise
        yield from map(self._row, subjects)

    def _run(self, subjects: list[Subject], timed: bool) -> None:
        for subject in subjects:
            self._available(subject)
        for subject in _still_ok(subjects):
            with subject.guarded(self.backend):
                self._prepare(subject)
                self._check(subject)
        ready = _still_ok(subjects)
        if timed and ready:
            self._time(ready)
            _compare(ready)

    def _time(self, ready: list[Subject]) -> None:
        try:
            self.backend.time(self.case, self.call, [(subject, subject.run) for subject in ready])
        except DeviceLost:
            raise
        except Exception as error:  # noqa: BLE001 - the backend guards each subject; this is what they share
            for subject in ready:
                with subject.guarded(self.backend):
                    raise error

    def _available(self, subject: Subject) -> None:
        reason = IMPLEMENTATIONS[subject.name].available()
        if reason:
            subject.fail("SKIPPED", reason)
        elif subject.name == "optimized" and self.kernel and isinstance(self.kernel[1], str):
            subject.fail("COMPILE_ERROR", self.kernel[1])

    def _prepare(self, subject: Subject) -> None:
        """Inputs once for the case, and what is checked and timed: the same function both times."""
        if self.call is None:
            self.call = self.family.make(self.case, self.backend.name, self.common["seed"])
        subject.fields |= work_fields(self.family.work(self.case))
        subject.run = IMPLEMENTATIONS[subject.name].prepare(self.case, self.call)

    def _check(self, subject: Subject) -> None:
        if not IMPLEMENTATIONS[subject.name].checked:
            return
        allocator = None
        if subject.name == "optimized":
            from optimized.launch import allocator
        # Adversarial inputs have another shape, for which torch.compile would compile once more.
        adversarial = subject.name != "compiled"
        found = parity.check(
            self.case, subject.run, self.backend.name, adversarial=adversarial, allocator=allocator
        )
        subject.fields["parity"] = found.to_dict()
        if not found.ok:
            subject.fail("FAIL_PARITY", found.reason)

    def _row(self, subject: Subject) -> dict[str, Any]:
        found = (
            self.blank(subject.name) | subject.fields | {"status": subject.status, "reason": subject.reason}
        )
        if subject.name == "optimized" and self.kernel:
            plan, binary = self.kernel
            found["kernel"] = compile_report.kernel_field(plan, binary)
            if not isinstance(binary, str):
                found |= {"compile_ms": binary.compile_ms, "cache_hit": binary.cache_hit}
        return found | {"repeat": repeat_command(self.case, subject.name, self.common["seed"])}


def _still_ok(subjects: list[Subject]) -> list[Subject]:
    return [subject for subject in subjects if subject.ok]


def _compare(ready: list[Subject]) -> None:
    """Write the times of the copy and of the reference, measured in turns with the rest, into every row."""
    medians = {
        subject.name: (subject.fields.get("graph_us") or subject.fields.get("warm_us")) for subject in ready
    }
    for subject in ready:
        for name in ("copy", "reference"):
            if medians.get(name):
                subject.fields[f"{name}_us"] = medians[name]["median"]
