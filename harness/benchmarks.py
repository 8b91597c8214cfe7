"""What pytest-benchmark shows: one benchmark for each case and implementation, in the time that the engine measured."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from harness import case_server, compile_report, options
from harness.backend_cpu import Cpu, without_gpu
from harness.case_server import CaseServer
from harness.cases import Case
from harness.implementations import suited
from harness.options import Options
from harness.rows import COLUMNS
from harness.subject import DeviceLost

SHOWN = (
    "function", "implementation", "shape", "dtype", "recipe", "options", "status", "reason", "bytes", "flops",
    "percent_of_limit", "speedup", "host_us", "gpu", "environment", "repeat",
)


class Replay:
    """A timer that samples drive: its seconds stand still but for `advance`, in which the next sample passes."""

    def __init__(self) -> None:
        self.load(())

    def __call__(self) -> float:
        return self._seconds

    def __str__(self) -> str:
        return "time on the device, replayed"

    def load(self, samples_us: Iterable[float]) -> None:
        """Start from 0 with these samples (µs)."""
        self._seconds, self._left = 0.0, iter(samples_us)

    def advance(self) -> None:
        """Let the next sample pass; behind the last one no time does."""
        self._seconds += next(self._left, 0.0) / 1e6


class Measured:
    """Rows and samples of what a pytest session asks for: `asked` is each case with its implementations.

    A case is measured when the first of its benchmarks is asked for, and with all of them: they take turns, which
    is what makes their times comparable.
    """

    def __init__(self, make_backend: Callable[[int], Any], asked: dict[Case, list[str]]):
        self.asked, self._server = asked, CaseServer(make_backend, 0, 0, True)
        self._kernels = self._compiled() if self._server.backend.name == "cuda" else {}
        self._found: dict[tuple[Case, str], tuple[dict[str, Any], dict[str, list[float]]]] = {}
        self._lost = ""

    def of(self, case: Case, name: str) -> tuple[dict[str, Any], str, list[float]]:
        """The row of one benchmark; the column that stands for it, and its samples in µs, in the order taken: "" and
        none where it was not timed. Status SKIPPED where the device was lost before."""
        if (case, name) not in self._found and not self._lost:
            self._measure(case)
        lost = {"status": "SKIPPED", "reason": f"The GPU stopped answering at {self._lost}."}
        row, samples = self._found.get((case, name), (lost, {}))
        column = next((column for column in COLUMNS if samples.get(column)), "")
        return row, column, samples.get(column, [])

    def _measure(self, case: Case) -> None:
        request = {"case": case.name, "names": self.asked[case], "kernel": self._kernels.get(case)}
        try:
            for row, samples in self._server.run(request, lambda name, stage: None):
                self._found[case, row["implementation"]] = row, samples
        except DeviceLost as lost:
            self._lost = str(lost)

    def _compiled(self) -> dict[Case, tuple[Any, Any]]:
        """Plan and binary of each case's kernel, compiled on all cores."""
        chip = self._server.backend.chip()
        wanted = [case for case, names in self.asked.items() if "optimized" in names]
        planned, _ = compile_report.plans(wanted, chip)
        binaries = compile_report.compile_all(map(compile_report.request, planned.values()), chip.arch)
        return {case: (plan, binaries[compile_report.request(plan)]) for case, plan in planned.items()}


def backend(index: int) -> Any:
    """The GPU with the profile `quick`, or the CPU where there is none."""
    return case_server.gpu(options.PROFILES["quick"], index) if torch.cuda.is_available() else case_server.cpu(index)


def chosen(sweep: str) -> list[tuple[Case, str]]:
    """Cases and implementations of `bench --sweep SWEEP`: on a CPU those cut to what it takes in a moment."""
    asked = Options(sweep=sweep)
    if torch.cuda.is_available():
        names = options.implementations(asked)
        return [(case, name) for case in options.cases(asked) for name in suited(case, names, False)]
    asked, cpu = without_gpu(asked), Cpu()
    names = options.implementations(asked)
    return [(case, name) for case in cpu.cases(options.cases(asked))
            for name in cpu.names(case, suited(case, names, True))]


def extra_info(row: dict[str, Any], column: str) -> dict[str, Any]:
    """What a benchmark's JSON tells besides its times: the row in short, and every column's median in µs."""
    medians = {name: row[name]["median"] for name in COLUMNS if row.get(name)}
    return {name: row.get(name) for name in SHOWN} | medians | {"column": column}
