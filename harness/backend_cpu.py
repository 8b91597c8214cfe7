"""Timing on a machine without a GPU: host time of the reference and of torch.compile's version of it."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from harness.cases import Call, Case, for_a_cpu
from harness.options import Options
from harness.subject import Subject
from harness.timing import Meter, interleave

BATCH, MINIMUM, CAP_S = 5, 15, 0.2
ELEMENTS = 1 << 20


def without_gpu(options: Options) -> Options:
    """The same run as far as a CPU goes: the reference and torch.compile, unless others are asked for."""
    names = options.implementations or (
        ("reference", "compiled") if options.verb == "bench" else ("reference",)
    )
    return replace(options, implementations=names)


class Cpu:
    """The host. It has no L2 to flush and no graph: its times stand in the warm column."""

    name = "cpu"
    gpu = None
    ceilings = None
    tick_us = 0.0

    def __init__(self) -> None:
        self._first: dict[str, Case] = {}

    def now(self) -> float:
        """Host seconds, monotonic."""
        return time.perf_counter()

    def chip(self) -> Any:
        """The chip that kernels are compiled for where none is at hand."""
        from optimized.plan import H200

        return H200

    def cases(self, cases: list[Case]) -> list[Case]:
        """The cases cut to what a CPU takes in a moment, each once."""
        return list(dict.fromkeys(for_a_cpu(case, ELEMENTS) for case in cases))

    def names(self, case: Case, asked: Sequence[str]) -> list[str]:
        """The implementations to measure. torch.compile takes seconds here: it is tried once for each
        function, at its first case."""
        first = self._first.setdefault(case.function, case) == case
        return [name for name in asked if name != "compiled" or first]

    def free_bytes(self) -> int | None:
        """Memory of the host that is free now."""
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def alive(self) -> bool:
        """A host that runs this answers."""
        return True

    def time(self, case: Case, call: Call, runs: list[tuple[Subject, Callable[[Call], Any]]]) -> None:
        """Fill in the warm column of every subject; they take turns, A B B A."""
        owner = {Meter(_Calls(self, partial(run, call)), MINIMUM, CAP_S): subject for subject, run in runs}
        interleave(owner, guard=lambda meter: owner[meter].guarded(self))
        for meter, subject in owner.items():
            if subject.ok:
                subject.fields["warm_us"] = meter.timing().to_dict()
                subject.samples = {"warm_us": meter.samples}


@dataclass
class _Calls:
    """Batches of samples of a function that has finished when it returns."""

    device: Cpu
    call: Callable[[], Any]
    throttled = False  # nothing here tells

    def take(self) -> tuple[list[float], int]:
        samples = []
        for _ in range(BATCH):
            start = self.device.now()
            self.call()
            samples.append((self.device.now() - start) * 1e6)
        return samples, 0
