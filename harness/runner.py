"""A run: choose the cases, let a worker on each device measure case after case, keep every row."""

import asyncio
import shlex
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from harness import compile_report, rows, schedule, table
from harness.case_server import CaseServer
from harness.compile_ahead import Kernels, started
from harness.compile_report import Request
from harness.folder import RunFolder, shown
from harness.options import Options
from harness.place import Place
from harness.progress import Reporter
from harness.schedule import Task
from harness.seat import CannotStart, Seat
from harness.workers import WorkerProcess

INTERRUPTED, FAILED = 130, 1
MODES = ("--resume", "--rerun-failed", "--fresh")


class Run:
    """One call of `bench` or `check` at a place. This process never touches a GPU: `start(make_server, limit_s)`
    gives the workers that do."""

    def __init__(
        self, options: Options, place: Place, reporter: Reporter,
        start: Callable[..., Awaitable[Any]] = WorkerProcess.start,
    ):
        self.options, self.place, self.reporter = options, place, reporter
        self.timed, self.on_gpu, self.start = options.verb == "bench", place.name == "cuda", start
        self.began, self.written, self.refusals = time.monotonic(), [], []
        self.kernels: asyncio.Future[Kernels | None] | None = None
        self.over = False
        cpu = None if self.on_gpu else place.make(0)
        self.asked, planned = schedule.tasks(options, cpu)
        self.folder = RunFolder(options.out, options.mode, **options.kind)
        self.tasks = self._missing(planned)
        self.queue, self.left = deque(self.tasks), len(self.tasks)
        if schedule.cut(self.asked, planned):
            reporter.say(schedule.CUT)
        if not planned:
            reporter.say(f"Share {'/'.join(map(str, options.shard))} has no case: there are fewer cases than shares.")

    def execute(self) -> int:
        """Do it. Every finished row is kept; the code is 0, 1 where a row failed, no worker could be started or a
        budget left time for nothing, 130 after Ctrl-C."""
        interrupted = False
        try:
            asyncio.run(self._all())
        except (KeyboardInterrupt, asyncio.CancelledError):
            interrupted = True
        finally:
            self.reporter.stop()
            self.folder.close()
        return self._conclude(interrupted)

    def _missing(self, planned: list[Task]) -> list[Task]:
        return schedule.missing(planned, self.options.seed, self.place.name, self.folder.known)

    async def _all(self) -> None:
        loop, main = asyncio.get_running_loop(), asyncio.current_task()
        for sign in (signal.SIGINT, signal.SIGTERM):  # a polite kill is a Ctrl-C: the run says where its rows are
            loop.add_signal_handler(sign, main.cancel)
        self.kernels = loop.create_future()
        self.reporter.start(len(self.tasks), sum(task.about_s for task in self.tasks))
        seats = [Seat(self._server(index), self.start, partial(self._greet, index)) for index in self.place.indices]
        compiling = asyncio.create_task(self._compile(len(seats)))
        await _together([compiling, asyncio.create_task(self._serve_all(seats, compiling))])

    async def _serve_all(self, seats: list[Seat], compiling: asyncio.Task) -> None:
        await _together([asyncio.create_task(self._serve(seat)) for seat in seats])
        if not self.kernels.done():  # nothing was started
            self.kernels.set_result(None)
        self.over = self.on_gpu  # without one, each kernel has a row to come
        if self.over:
            compiling.cancel()

    async def _serve(self, seat: Seat) -> None:
        """Let one seat take case after case, until none is left."""
        try:
            if not self.tasks and not self.on_gpu and self.timed:
                await seat.worker("")  # for the record of the environment: kernels may be missing
            while self.queue and not self._spent():
                task = self.queue.popleft()
                try:
                    await self._measure(seat, task)
                except CannotStart:
                    self.queue.extendleft(self._missing([task]))
                    raise
        except CannotStart as error:
            self.refusals.append(str(error))
        finally:
            await seat.stop()

    async def _measure(self, seat: Seat, task: Task) -> None:
        await seat.worker(task.family)
        self.reporter.begin(task.case.name)
        kernels = await self.kernels
        kernel = await kernels.of(task.case) if kernels and self.on_gpu and "optimized" in task.names else None
        written: list[dict[str, Any]] = []

        def keep(row: dict[str, Any], samples: dict[str, list[float]]) -> None:
            self._write(row, samples)
            written.append(row)

        await seat.measure(task, kernel, self.options.step_limit_s, keep)
        self.left -= 1
        self.reporter.finish(task.case.name, written, task.about_s)

    def _spent(self) -> bool:
        budget_s = self.options.budget_s
        return budget_s is not None and time.monotonic() - self.began > budget_s

    def _write(self, row: dict[str, Any], samples: dict[str, list[float]]) -> None:
        self.folder.write(row, samples)
        self.written.append(row)

    def _server(self, index: int) -> Callable[[], Any]:
        return partial(CaseServer, self.place.make, index, self.options.seed, self.timed)

    def _greet(self, index: int, hello: dict[str, Any]) -> None:
        """Hear a new worker: keep the record of its environment; the first one also tells the chip."""
        self.folder.refuse_other(hello["common"]["gpu"])
        self.folder.describe({
            "hash": hello["common"]["environment"],
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "command": asked(sys.argv[1:]),
            "device_index": index,
            "environment": hello["environment"],
            "ceilings": hello["ceilings"],
            "clocks": hello["clocks"],
        })
        if not self.kernels.done():
            if origin := self.folder.origin_of_others(hello["common"]["environment"]):
                self.reporter.say(f"Rows that are there stay, measured with {origin}; the report names both.")
            if hello["summary"]:
                self.reporter.say(f"{hello['common']['gpu']}: {hello['summary']}")
            self.common = hello["common"]
            self.kernels.set_result(self._planned(hello["chip"]))

    def _planned(self, chip: Any) -> Kernels | None:
        """The kernels that the run wants. Without a GPU they are those of the cases as they were asked for, of which
        each shard has its share: then they are what there is to see of the kernels."""
        if self.on_gpu:
            cases = mine = [task.case for task in self.tasks if "optimized" in task.names]
        else:
            cases = self.asked if self.timed else []
            mine = schedule.share(cases, self.options.shard)
        return Kernels(cases, mine, chip, self.start, self.options.step_limit_s) if mine else None

    async def _compile(self, spare: int) -> None:
        """Compile ahead, on all cores but `spare`. The compiler starts while the first worker does."""
        compiler = None
        try:
            if any("optimized" in task.names for task in self.tasks) if self.on_gpu else self.timed:
                compiler = await started(self.start)
            kernels = await self.kernels
            if kernels:
                self._write_new(self._kernel_rows(compile_report.refused_rows, kernels.refused))
                self.reporter.say(await kernels.compile(spare, partial(self._compiled, kernels), compiler))
        except asyncio.CancelledError:
            if not self.over:  # the end of all cases is no interrupt
                raise
        finally:
            if compiler:
                await compiler.stop()

    def _compiled(self, kernels: Kernels, request: Request, binary: Any) -> None:
        self._write_new(self._kernel_rows(compile_report.compile_rows, kernels.planned, {request: binary}))

    def _kernel_rows(self, make: Callable[..., list[dict[str, Any]]], *of: Any) -> list[dict[str, Any]]:
        """Rows of kernels where there is no GPU; on one, the row of a case says what became of its kernel."""
        return [] if self.on_gpu else make(*of, **self.common)

    def _write_new(self, found: list[dict[str, Any]]) -> None:
        for row in found:
            if not self.folder.known.stands(row):
                self._write(row, {})

    def _conclude(self, interrupted: bool) -> int:
        found, where = rows.latest(rows.read(self.folder.rows_path)), shown(self.folder.path)
        if found and self.timed:
            table.show(self.reporter.console, found)
        elif found:
            table.show_checks(self.reporter.console, found)
        failed = [row for row in self.written if row["status"] in rows.FAILURES]
        counted, seconds = table.counted(len(found), "row"), time.monotonic() - self.began
        self.reporter.say(f"{counted} in {where}/rows.jsonl, {seconds:.0f} s")
        for refusal in self.refusals:
            self.reporter.say(refusal)
        if self.left:
            why = "Interrupted" if interrupted else "Not finished"
            self.reporter.say(f"{why}, cases left: {self.left}; go on with: {self._resume_command(where)}")
        if failed:
            self.reporter.say(f"{table.counted(len(failed), 'row')} failed, as listed above")
        nothing = bool(self.left and not self.written)
        if nothing:
            self.reporter.say("Nothing was measured")
        return INTERRUPTED if interrupted else FAILED if failed or self.refusals or nothing else 0

    def _resume_command(self, where: str) -> str:
        words = [word for word in sys.argv[1:] if word not in MODES]
        out = [] if self.options.out else ["--out", where]
        return shlex.join(["python", "-m", "harness", *words, *out, "--resume"])


async def _together(jobs: list[asyncio.Task]) -> None:
    """Wait for all; where one fails, the others are ended before its exception goes on."""
    try:
        await asyncio.gather(*jobs)
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)


def asked(words: list[str]) -> str:
    """The command line of a run, without the folder that its rows go to: that is the machine's affair."""
    kept = [
        word for i, word in enumerate(words)
        if not word.startswith("--out") and not (i and words[i - 1] == "--out")
    ]
    return shlex.join(["python", "-m", "harness", *kept])
