"""One implementation of one case on its way to a row: what is known of it so far, and what went wrong."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from harness.cases import Call, Case, Work


DOUBTS = ("OK", "NOISY", "HOST_BOUND", "THROTTLED")  # a row with one of these has its result and its time


class DeviceLost(Exception):
    """The device no longer answers: an error of a kernel has taken the whole process's context with it."""


@dataclass(eq=False)
class Subject:
    """`fields` collects what the row will hold, `samples` the µs per call of every sample kept of a column; `run`
    maps a call to results. The first failure decides `status`."""

    case: Case
    name: str
    status: str = "OK"
    reason: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    run: Callable[[Call], Any] | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing has failed yet; a row that is only noisy is still fine."""
        return self.status in DOUBTS

    def remark(self, status: str, reason: str) -> None:
        """Note a doubt about a result that is otherwise fine."""
        if self.status == "OK":
            self.status, self.reason = status, reason

    def fail(self, status: str, reason: str) -> None:
        """Note a failure, unless an earlier one stands."""
        if self.ok:
            self.status, self.reason = status, reason

    def fail_with(self, error: Exception) -> None:
        """Note an exception: OOM where memory ran out, UNSUPPORTED where the chip lacks something, else
        CRASH."""
        self.fail(status_of(error), first_line(error))

    @contextmanager
    def guarded(self, backend: Any) -> Iterator[None]:
        """Run a stage: an exception costs this subject alone. Raises DeviceLost when the device went with
        it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever a kernel raises becomes a row
            self.fail_with(error)
            if not backend.alive():
                raise DeviceLost(f"{self.case.name}, {self.name}: {first_line(error)}") from error


def status_of(error: Exception) -> str:
    """The typed status of an exception."""
    name = type(error).__name__
    if name in ("OutOfMemoryError", "MemoryError") or any(
            words in str(error) for words in ("out of memory", "can't allocate memory")):
        return "OOM"
    return "UNSUPPORTED" if isinstance(error, NotImplementedError) else "CRASH"


def first_line(error: Exception) -> str:
    """Type and first line of an exception's message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def work_fields(work: Work) -> dict[str, int]:
    """The work of a case as a row stores it."""
    return {
        "bytes": work.bytes,
        "read_bytes": work.read_bytes,
        "written_bytes": work.written_bytes,
        "flops": work.flops,
    }
