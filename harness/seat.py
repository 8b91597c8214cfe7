"""A device and the worker that sits on it: started when it is needed, replaced when it was lost."""

from collections.abc import Awaitable, Callable
from typing import Any

from harness import case_run
from harness.schedule import Task
from harness.workers import START_S, WorkerLost

ATTEMPTS = 3  # in a row, to start a worker

Keep = Callable[[dict[str, Any], dict[str, list[float]]], None]
"""Called with a row and its samples the moment they are final."""


class CannotStart(Exception):
    """No worker stays alive; one sentence."""


class Seat:
    """One device of a run.

    `make`, which must be picklable, gives the server of its workers; `start(make, limit_s)` starts one; `greet(hello)`
    hears what each says first.
    """

    def __init__(self, make: Callable[[], Any], start: Callable[..., Awaitable[Any]], greet: Callable[[dict], None]):
        self._make, self._start, self._greet = make, start, greet
        self._worker: Any = None
        self._family, self._failures = "", 0

    async def worker(self, family: str) -> Any:
        """The worker of a family of functions: a fresh one where another family's sits there. Raises CannotStart."""
        if self._worker and self._family == family:
            return self._worker
        await self.stop()
        while self._worker is None:
            try:
                self._worker = await self._start(self._make, START_S)
            except WorkerLost as lost:
                self._failed(lost)
        self._family = family
        self._greet(self._worker.hello)
        return self._worker

    async def measure(self, task: Task, kernel: tuple[Any, Any] | None, limit_s: float, keep: Keep) -> None:
        """Every row of a task, each step of it within `limit_s`.

        Whatever takes a worker down costs the implementation that it was at; a fresh worker does the others. Raises
        CannotStart.
        """
        left = list(task.names)
        while left:
            worker, before = await self.worker(task.family), len(left)
            try:
                request = {"case": task.case.name, "names": left[:], "kernel": kernel}
                async for row, samples in worker.run(request, limit_s):
                    self._failures = 0
                    left.remove(row["implementation"])
                    keep(row, samples)
                return
            except WorkerLost as lost:
                await self.stop()
                for name in self._guilty(lost, left, before):
                    left.remove(name)
                    row = case_run.failed(task.case, name, lost.status, str(lost), worker.hello["common"])
                    keep(row | (case_run.kernel_fields(kernel) if name == "optimized" else {}), {})

    async def stop(self) -> None:
        """End the worker, if there is one."""
        worker, self._worker = self._worker, None
        if worker:
            await worker.stop()

    def _guilty(self, lost: WorkerLost, left: list[str], before: int) -> list[str]:
        """The implementations that a lost worker is blamed on: the one it was at, or all where it was at none of
        them and nothing came of the attempt."""
        if lost.culprit in left:
            return [lost.culprit]
        if len(left) < before:
            return []  # the one that it was lost to has its row
        if lost.culprit is None:
            self._failed(lost)
            return []
        return list(left)

    def _failed(self, lost: WorkerLost) -> None:
        self._failures += 1
        if self._failures == ATTEMPTS:
            raise CannotStart(f"No worker stays alive, tried {ATTEMPTS} times in a row: {lost}")
