"""Kernels of the cases to come, compiled by a process of its own while others are measured."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from harness import compile_report
from harness.case_server import CompileServer
from harness.cases import Case
from harness.compile_report import Request
from harness.table import counted
from harness.workers import START_S, WorkerLost

ATTEMPTS = 3  # to start a process, before it is given up


class Kernels:
    """Plan and binary of each case's kernel on `chip`, compiled where the first case that uses it is one of `mine`.

    A request that came to nothing has a message for a binary. `start(make_server, limit_s)` gives a worker.
    """

    def __init__(
        self, cases: Iterable[Case], mine: Iterable[Case], chip: Any, start: Callable[..., Awaitable[Any]],
        limit_s: float,
    ):
        self.chip, self._start, self._limit_s = chip, start, limit_s
        self.planned, refused = compile_report.plans(cases, chip)
        mine, first, loop = set(mine), {}, asyncio.get_running_loop()
        for case, plan in self.planned.items():
            first.setdefault(compile_report.request(plan), case)
        self.refused = {case: why for case, why in refused.items() if case in mine}
        self._binaries = {one: loop.create_future() for one, case in first.items() if case in mine}

    async def of(self, case: Case) -> tuple[Any, Any] | None:
        """Plan and binary of a case, when it is compiled; None where no kernel is planned for it."""
        plan = self.planned.get(case)
        return plan and (plan, await asyncio.shield(self._binaries[compile_report.request(plan)]))

    async def compile(self, spare: int, keep: Callable[[Request, Any], None], compiler: Any = None) -> str:
        """Compile them all, the first case's first, on all cores but `spare`; says in one line how that went.
        `keep(request, binary)` is called as soon as one is there; `compiler` is the worker to begin with, if any.

        A compiler that dies or hangs is started again with one kernel at a time: the error costs that one alone.
        """
        began, alone, failures = time.monotonic(), False, 0
        while missing := [one for one, binary in self._binaries.items() if not binary.done()]:
            try:
                compiler = compiler or await self._start(CompileServer, START_S)
                await self._attempt(compiler, missing, max(1, cores() - spare), alone, keep)
            except WorkerLost as lost:
                compiler = None
                alone, failures = True, failures + 1
                if lost.culprit in self._binaries:
                    failures = 0
                    self._found(lost.culprit, f"{lost.status}: {lost}", keep)
                elif failures == ATTEMPTS:
                    for one in missing:
                        self._found(one, f"no compiler could be started: {lost}", keep)
        found = [binary.result() for binary in self._binaries.values()]
        hits = sum(not isinstance(binary, str) and binary.cache_hit for binary in found)
        kernels, spent_s = counted(len(found), "kernel"), time.monotonic() - began
        return f"{kernels} for {self.chip.arch} in {spent_s:.1f} s, {hits} cached"

    async def _attempt(self, compiler: Any, missing: list[Request], threads: int, alone: bool, keep: Callable) -> None:
        try:
            request = {"requests": missing, "arch": self.chip.arch, "threads": threads, "alone": alone}
            async for one, binary in compiler.run(request, self._limit_s):
                self._found(one, binary, keep)
        finally:
            await compiler.stop()

    def _found(self, one: Request, binary: Any, keep: Callable) -> None:
        if not self._binaries[one].done():
            self._binaries[one].set_result(binary)
            keep(one, binary)


async def started(start: Callable[..., Awaitable[Any]]) -> Any:
    """A compiler, started before it is known what there is to compile; None where it could not be: later attempts
    tell why."""
    try:
        return await start(CompileServer, START_S)
    except WorkerLost:
        return None


def cores() -> int:
    """How many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1
