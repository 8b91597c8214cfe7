"""What a worker serves: cases measured on a backend, or kernels compiled ahead."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from typing import Any

from harness import compile_report
from harness.case_run import CaseRun
from harness.compile_report import Request
from harness.environment import clocks, digest, record
from harness.options import Profile, parse_case


class CaseServer:
    """Measures cases on the backend that `make_backend(index)` gives, one after the other.

    A request is {case: its name, names: implementations, kernel: (plan, binary) or None}; a result is a row and the
    samples of its columns.
    """

    def __init__(self, make_backend: Callable[[int], Any], index: int, seed: int, timed: bool):
        self.backend, self.index, self.timed = make_backend(index), index, timed
        self.environment = record(index)
        self.common = {
            "seed": seed,
            "environment": digest(self.environment),
            "device": self.backend.name,
            "gpu": self.backend.gpu,
        }

    def hello(self) -> dict[str, Any]:
        """What the parent needs to know: the device, what was found of it, and what stands in every row."""
        ceilings = self.backend.ceilings
        return {
            "common": self.common,
            "environment": self.environment,
            "chip": self.backend.chip(),
            "ceilings": ceilings and ceilings.to_dict(),
            "summary": ceilings and str(ceilings),
            "clocks": clocks(self.index),
        }

    def run(self, request: dict[str, Any], announce: Callable) -> Iterator[tuple[dict, dict]]:
        """Rows of one case, each with its samples, as soon as they are final."""
        case = parse_case(request["case"])
        run = CaseRun(case, self.backend, self.common, request["kernel"], announce)
        for row in run.run(request["names"], self.timed):
            yield row, run.samples.get(row["implementation"], {})


class CompileServer:
    """Compiles kernels into the disk cache, where workers find them. Needs no GPU."""

    def __init__(self) -> None:
        from optimized.jit import build  # here, for what the start takes is not the first kernel's time

        self._build = build

    def hello(self) -> None:
        """Nothing needs to be known of it."""

    def run(self, request: dict[str, Any], announce: Callable) -> Iterator[tuple[Any, Any]]:
        """Each of `requests` for `arch` with its Binary, less the image, or the message of its error.

        Those that come first are compiled first, by `threads` threads; where `alone`, one after the other, and each
        is announced.
        """
        requests, threads = request["requests"], request["threads"]
        compiled = partial(compile_report.compile_all, arch=request["arch"], build=partial(self._build, threads=1))
        if request["alone"]:
            for one in requests:
                announce(one, "compilation")
                yield one, _told(compiled([one])[one])
            return
        with ThreadPoolExecutor(threads) as pool:
            for job in as_completed([pool.submit(compiled, group) for group in programs(requests, threads)]):
                yield from ((one, _told(binary)) for one, binary in job.result().items())


def programs(requests: list[Request], threads: int) -> list[list[Request]]:
    """Requests in groups of one source, which share its headers, in the order of the first of each: few enough in a
    group to keep the threads busy."""
    size = max(1, min(4, -(-len(requests) // threads)))
    groups: list[list[Request]] = []
    open_groups: dict[str, list[Request]] = {}
    for one in requests:
        group = open_groups.get(one[0])
        if group is None or len(group) == size:
            group = open_groups[one[0]] = []
            groups.append(group)
        group.append(one)
    return groups


def _told(binary: Any) -> Any:
    return binary if isinstance(binary, str) else replace(binary, image=b"")


def cpu(index: int) -> Any:
    """The backend of a machine without a GPU: one thread, for several wait for one another whenever another process
    takes a core."""
    import torch

    from harness.backend_cpu import Cpu

    torch.set_num_threads(1)
    return Cpu()


def gpu(limits: Profile, index: int) -> Any:
    """The backend of CUDA device `index`."""
    from harness.backend_gpu import Gpu

    return Gpu(limits, index)
