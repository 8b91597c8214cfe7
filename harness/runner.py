"""A run: choose the cases, find the device, measure case after case, keep every row."""

import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from harness import compile_report, rows, table
from harness import options as chosen
from harness.case_run import CaseRun
from harness.environment import clocks, digest, record
from harness.folder import RunFolder, shown
from harness.options import Options
from harness.progress import Reporter
from harness.subject import DeviceLost

INTERRUPTED, FAILED = 130, 1


class Run:
    """One call of `bench` or `check`. `make_backend()` gives harness.backend_gpu.Gpu or
    harness.backend_cpu.Cpu; it is called last, when arguments and folder have been found good."""

    def __init__(self, options: Options, make_backend: Callable[[], Any], reporter: Reporter):
        self.options, self.reporter, self.timed = options, reporter, options.verb == "bench"
        self.began = time.monotonic()
        self.cases, self.names = chosen.cases(options), chosen.implementations(options)
        self.folder = RunFolder(options.out, options.resume, options.verb)
        self.backend = make_backend()
        self.on_gpu = self.backend.name == "cuda"
        self.earlier = len(self.folder.known)
        self.left = len(self.cases)

    def execute(self) -> int:
        """Do it. Every finished row is kept; the code is 0, 1 where a row failed, 130 after Ctrl-C."""
        interrupted = False
        try:
            with _termination_as_interrupt():
                common = self._describe()
                self._measure(common, *self._compiled(common))
        except KeyboardInterrupt:
            interrupted = True
        except DeviceLost as lost:
            self.reporter.say(f"The GPU stopped answering at {lost}.")
        finally:
            self.reporter.stop()
            self.folder.close()
        return self._conclude(interrupted)

    def _describe(self) -> dict[str, Any]:
        environment, ceilings = record(), self.backend.ceilings
        common = {"seed": self.options.seed, "environment": digest(environment)}
        self.folder.describe(
            {
                "hash": common["environment"],
                "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "command": asked(sys.argv[1:]),
                "environment": environment,
                "ceilings": ceilings.to_dict() if ceilings else None,
                "clocks": clocks(),
            }
        )
        if ceilings:
            self.reporter.say(f"{self.backend.gpu}: {ceilings}")
        return common

    def _compiled(self, common: dict[str, Any]) -> tuple[dict, dict]:
        """Plans and binaries of the cases' kernels: compiled before the first case, on all cores. Without a
        GPU they are what there is to see of the kernels, and become rows of their own."""
        if not ("optimized" in self.names if self.on_gpu else self.timed):
            return {}, {}
        began, chip = time.monotonic(), self.backend.chip()
        planned, refused = compile_report.plans(self.cases, chip)
        binaries = compile_report.compile_all(map(compile_report.request, planned.values()), chip.arch)
        hits = sum(not isinstance(binary, str) and binary.cache_hit for binary in binaries.values())
        self.reporter.say(
            f"{len(binaries)} kernels for {chip.arch} in {time.monotonic() - began:.1f} s, {hits} cached"
        )
        if not self.on_gpu:  # on a GPU the run of a case says why it has no kernel
            common = {"device": "cpu"} | common
            for row in (
                *compile_report.compile_rows(planned, binaries, **common),
                *compile_report.refused_rows(refused, **common),
            ):
                if not self.folder.has(row):
                    self.folder.write(row)
        return planned, binaries

    def _measure(self, common: dict[str, Any], planned: dict, binaries: dict) -> None:
        cases = self.cases if self.on_gpu else self.backend.cases(self.cases)
        if any(cut not in self.cases for cut in cases):
            self.reporter.say("Cases are cut to about a million elements each, in fewer rows: this is a CPU.")
        self.left = len(cases)
        self.reporter.start(len(cases))
        for case in cases:
            if self.options.budget_s is not None and time.monotonic() - self.began > self.options.budget_s:
                return
            plan = planned.get(case)
            kernel = (plan, binaries[compile_report.request(plan)]) if plan and self.on_gpu else None
            run = CaseRun(case, self.backend, common, kernel)
            names = [
                name for name in self.backend.names(case, self.names) if not self.folder.has(run.blank(name))
            ]
            self.reporter.begin(case.name)
            written = []
            for row in run.run(names, self.timed):
                self.folder.write(row)
                written.append(row)
            self.left -= 1
            self.reporter.finish(case.name, written)

    def _conclude(self, interrupted: bool) -> int:
        # From the file: an interrupt may fall between a row's last byte and its being counted.
        found, where = rows.read(self.folder.rows_path), shown(self.folder.path)
        if found and self.timed:
            table.show(self.reporter.console, found)
        elif found:
            table.show_checks(self.reporter.console, found)
        failed = [row for row in found[self.earlier :] if row["status"] in rows.FAILURES]
        self.reporter.say(f"{len(found)} rows in {where}/rows.jsonl, {time.monotonic() - self.began:.0f} s")
        if self.left:
            why = "Interrupted" if interrupted else "Not finished"
            self.reporter.say(f"{why}, cases left: {self.left}; go on with: {self._resume_command(where)}")
        if failed:
            self.reporter.say(f"{len(failed)} rows failed; they are listed above")
        return INTERRUPTED if interrupted else FAILED if failed else 0

    def _resume_command(self, where: str) -> str:
        words = [word for word in sys.argv[1:] if word != "--resume"]
        out = [] if self.options.out else ["--out", where]
        return shlex.join(["python", "-m", "harness", *words, *out, "--resume"])


def asked(words: list[str]) -> str:
    """The command line of a run, without the folder that its rows go to: that is the machine's affair."""
    kept = [
        word for i, word in enumerate(words)
        if not word.startswith("--out") and not (i and words[i - 1] == "--out")
    ]
    return shlex.join(["python", "-m", "harness", *kept])


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """A polite kill is a Ctrl-C: the run says where its rows are."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
