"""One case from inputs to rows: parity of each implementation, then the time of those that are right."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from harness import audit, compile_report, memory, parity, pipelines, rows
from harness.cases import FAMILIES, Call, Case
from harness.implementations import IMPLEMENTATIONS
from harness.options import repeat_command
from harness.samples import speedup
from harness.subject import DeviceLost, Subject, work_fields

STAGES = ("inputs", "parity", "timing")

Announce = Callable[[str, str], None]
"""Called with an implementation's name, or "" where all share it, and the stage that begins."""


def blank(case: Case, name: str, **common: Any) -> dict[str, Any]:
    """The identity of the row of one implementation, before anything was run."""
    return rows.row(
        function=case.function,
        implementation=name,
        shape=case.shape_text,
        dtype=case.dtype,
        recipe=case.recipe,
        options=dict(case.options),
        case=case.name,
        status="SKIPPED",
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **common,
    )


def failed(case: Case, name: str, status: str, reason: str, common: dict[str, Any]) -> dict[str, Any]:
    """The row of an implementation that took its process with it. `common` names device and GPU, too."""
    found = blank(case, name, **common) | work_fields(FAMILIES[case.function].work(case))
    return found | {
        "status": status, "reason": reason, "repeat": repeat_command(case, name, common["seed"])
    }


def kernel_fields(kernel: tuple[Any, Any] | None) -> dict[str, Any]:
    """What a row of `optimized` says of its kernel, from plan and binary."""
    if not kernel:
        return {}
    plan, binary = kernel
    built = {} if isinstance(binary, str) else {"compile_ms": binary.compile_ms, "cache_hit": binary.cache_hit}
    return {"kernel": compile_report.kernel_field(plan, binary)} | built


class Watched(Subject):
    """A subject that announces each of its steps, and adds up the seconds that they take."""

    def __init__(self, case: Case, name: str, announce: Announce):
        super().__init__(case, name)
        self.announce, self.stage, self.seconds = announce, STAGES[0], dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def guarded(self, backend: Any) -> Iterator[None]:
        """A step of the present stage; see Subject.guarded."""
        self.announce(self.name, self.stage)
        began = time.monotonic()
        try:
            with super().guarded(backend):
                yield
        finally:
            self.seconds[self.stage] += time.monotonic() - began


class CaseRun:
    """Runs `case` on a backend. `kernel` is its (plan, binary) where it has one; `common` goes into each
    row. `samples` holds, for each row that was yielded, every sample kept: name -> column -> µs."""

    def __init__(
        self, case: Case, backend: Any, common: dict[str, Any], kernel: tuple[Any, Any] | None = None,
        announce: Announce = lambda name, stage: None,
    ):
        self.case, self.backend, self.kernel, self.announce = case, backend, kernel, announce
        self.common = {"device": backend.name, "gpu": backend.gpu} | common
        self.family = FAMILIES[case.function]
        self.call: Call | None = None
        self.samples: dict[str, dict[str, list[float]]] = {}

    def run(self, names: list[str], timed: bool = True) -> Iterator[dict[str, Any]]:
        """The rows of the implementations, each as soon as it is final. Ctrl-C loses none that was yielded.

        Raises DeviceLost after the row of the implementation that the device was lost to.
        """
        subjects = [Watched(self.case, name, self.announce) for name in names]
        left = list(subjects)
        try:
            self._admit(subjects, timed)
            for subject in subjects:
                self._judge(subject)
                if not (timed and subject.ok):
                    left.remove(subject)
                    yield self._row(subject)
            if timed and left:
                self._time(left)
                _compare([subject for subject in left if subject.ok])
            yield from map(self._row, left)
        except DeviceLost:
            yield from (self._row(subject) for subject in left if not subject.ok)
            raise

    def _admit(self, subjects: list[Subject], timed: bool) -> None:
        """Turn away what is not there, and what would not fit into the memory that is free: nothing is allocated."""
        for subject in subjects:
            if reason := IMPLEMENTATIONS[subject.name].available():
                subject.fail("SKIPPED", reason)
            elif subject.name == "optimized" and self.kernel and isinstance(self.kernel[1], str):
                subject.fail("COMPILE_ERROR", self.kernel[1])
        names = [subject.name for subject in subjects]
        needed = memory.needed_bytes(self.case, names, self.backend.name, timed)
        free = self.backend.free_bytes()
        if free is not None and needed > free:
            for subject in subjects:
                subject.fail("OOM", f"needs about {needed / 1e9:.3g} GB, and {free / 1e9:.3g} GB are free")

    def _judge(self, subject: Watched) -> None:
        if not subject.ok:
            return
        with subject.guarded(self.backend):
            self._prepare(subject)
        subject.stage = "parity"
        if subject.ok and IMPLEMENTATIONS[subject.name].checked:
            with subject.guarded(self.backend):
                self._check(subject)

    def _time(self, ready: list[Watched]) -> None:
        for subject in ready:
            subject.stage = "timing"
        self.announce("", "timing")
        try:
            self.backend.time(self.case, self.call, [(subject, subject.run) for subject in ready])
        except DeviceLost:
            raise
        except Exception as error:  # noqa: BLE001 - the backend guards each subject; this is what they share
            for subject in ready:
                with subject.guarded(self.backend):
                    raise error

    def _prepare(self, subject: Subject) -> None:
        """Inputs once for the case, and what is checked and timed: the same function both times."""
        if self.call is None:
            self.call = self.family.make(self.case, self.backend.name, self.common["seed"])
        subject.fields |= work_fields(self.family.work(self.case)) | pipelines.row_fields(self.case)
        subject.run = IMPLEMENTATIONS[subject.name].prepare(self.case, self.call)

    def _check(self, subject: Subject) -> None:
        """Parity, then the audit of the case's bytes and flops."""
        allocator = None
        if subject.name == "optimized":
            from optimized.launch import allocator
        # Adversarial inputs have another shape, for which torch.compile would compile once more.
        adversarial = subject.name != "compiled"
        found = parity.check(
            self.case, subject.run, self.backend.name, adversarial=adversarial, allocator=allocator,
            twin=IMPLEMENTATIONS[subject.name].twin,
        )
        subject.fields["parity"] = found.to_dict()
        if not found.ok:
            subject.fail("FAIL_PARITY", found.reason)
            return
        subject.fields["audit"], reason = audit.audit(self.case, self.call, subject.run(self.call))
        if reason:
            subject.fail("INVALID", reason)

    def _row(self, subject: Watched) -> dict[str, Any]:
        if subject.samples:
            self.samples[subject.name] = subject.samples
        seconds = {stage: round(seconds, 6) for stage, seconds in subject.seconds.items()}
        return blank(self.case, subject.name, **self.common) | subject.fields | {
            "status": subject.status,
            "reason": subject.reason,
            "seconds": seconds,
            "repeat": repeat_command(self.case, subject.name, self.common["seed"]),
        } | (kernel_fields(self.kernel) if subject.name == "optimized" else {})


def _compare(ready: list[Subject]) -> None:
    """Write the times of the copy and of the reference, measured in turns with the rest, into every row, and the
    speed-up over the reference, or over cuBLAS where it does the same."""
    medians = {
        subject.name: (subject.fields.get("graph_us") or subject.fields.get("warm_us")) for subject in ready
    }
    replicates = {subject.name: (subject.fields.get("replicates") or {}).get("graph_us") for subject in ready}
    base = replicates.get("cublas") or replicates.get("reference")
    for subject in ready:
        for name in ("copy", "reference"):
            if medians.get(name):
                subject.fields[f"{name}_us"] = medians[name]["median"]
        if base and replicates[subject.name]:
            subject.fields["speedup"] = speedup(base, replicates[subject.name])
