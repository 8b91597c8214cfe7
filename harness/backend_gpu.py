"""Timing on a GPU: graph, cold and warm columns and host cost of every implementation of a case,
interleaved."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from harness import ceilings, device, guards, parity, rotation, timing
from harness.cases import Call, Case, Work, family_of
from harness.implementations import IMPLEMENTATIONS
from harness.options import Profile
from harness.subject import Subject

COLUMNS = ("graph_us", "cold_us", "warm_us")


@dataclass
class Timed:
    """A subject with what its columns need. `results` are the outputs of the graph's last call, on `last`."""

    subject: Subject
    last: Call
    calls: list[Callable[[], Any]]
    graph: torch.cuda.CUDAGraph
    results: tuple
    meters: dict[str, timing.Meter]


class Gpu:
    """The current CUDA device. Warms it up, then measures its ceilings."""

    name = "cuda"

    def __init__(self, limits: Profile):
        self.limits = limits
        self.device = device.Cuda()
        self.gpu = torch.cuda.get_device_name()
        self._warm_up(limits.warm_up_s)
        self.ceilings = ceilings.measure(self.device)
        torch.cuda.empty_cache()

    def chip(self) -> Any:
        """This GPU, as kernels are planned and compiled for it."""
        from optimized.launch import chip

        return chip(torch.device("cuda", torch.cuda.current_device()))

    def names(self, case: Case, asked: Sequence[str]) -> list[str]:
        """The implementations to measure: all that are asked for."""
        return list(asked)

    def alive(self) -> bool:
        """Whether the device still answers; memory that a failed case held is given back."""
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            return True
        except RuntimeError:
            return False

    def time(self, case: Case, call: Call, runs: list[tuple[Subject, Callable[[Call], Any]]]) -> None:
        """Fill in the time columns of every subject, each with what runs it.

        All implementations of the case take turns, A B B A, over the same rotating inputs.
        """
        work = family_of(case.function).work(case)
        inputs = rotation.inputs(call, work.bytes, self.device.l2_bytes)
        timed: list[Timed] = []
        for subject, run in runs:
            with subject.guarded(self):
                timed.append(self._prepared(subject, inputs, [partial(run, one) for one in inputs]))
        for column in COLUMNS:
            owner = {one.meters[column]: one.subject for one in timed if one.subject.ok}
            timing.interleave(owner, guard=lambda meter, owner=owner: owner[meter].guarded(self))
        while timed:
            self._conclude(timed.pop(0), work)
        torch.cuda.empty_cache()  # the graphs' private pools

    def _conclude(self, one: Timed, work: Work) -> None:
        if one.subject.ok:
            with one.subject.guarded(self):
                self._columns(one, work)
                self._confirm(one)

    def _prepared(self, subject: Subject, inputs: list[Call], calls: list[Callable[[], Any]]) -> Timed:
        count = device.graph_calls(self._about_us(calls[0]), len(calls))
        graph, results = device.capture([calls[i % len(calls)] for i in range(count)], len(calls))
        cap_s = self.limits.cap_s
        meters = {
            "graph_us": device.graph_us(self.device, graph, count, cap_s),
            "cold_us": device.cold_us(self.device, calls[0], cap_s),
            "warm_us": device.warm_us(self.device, calls[0], cap_s / 4),
        }
        subject.fields["rotation"] = {"inputs": len(calls), "calls": count}
        return Timed(subject, inputs[-1], calls, graph, results[-1], meters)

    def _about_us(self, call: Callable[[], Any]) -> float:
        """About what one call takes, while 25 ms of calls warm the case up."""
        call()
        self.device.wait()
        took = []
        while sum(took) < 25e3 and len(took) < 200:
            start = self.device.mark()
            call()
            end = self.device.mark()
            self.device.wait()
            took.append(self.device.elapsed_us(start, end))
        return min(took)

    def _columns(self, one: Timed, work: Work) -> None:
        subject, meters = one.subject, one.meters
        if not IMPLEMENTATIONS[subject.name].checked:  # the copy moves the same bytes, half each way
            work = Work(work.bytes // 2, work.bytes // 2, 0)
        columns = {name: meter.timing() for name, meter in meters.items()}
        subject.fields |= {name: column.to_dict() for name, column in columns.items()}
        subject.fields["host_us"] = timing.host_us(self.device, one.calls[0])
        subject.fields["percent_of_limit"] = self.ceilings.percent(work, columns["graph_us"].median)
        if not self.ceilings.believable(work, columns["cold_us"].median, self.device.l2_bytes):
            subject.fail("INVALID", f"cold time above {ceilings.TOLERANCE:.0%} of this GPU's limit")
        if any(meter.queue.starved for meter in meters.values()):
            subject.remark("HOST_BOUND", "the host could not issue a batch while the GPU was held")
        if not (meters["graph_us"].settled and meters["cold_us"].settled):
            subject.remark(
                "NOISY", f"median not known to {timing.PRECISION:.1%} within {self.limits.cap_s:g} s"
            )

    def _confirm(self, one: Timed) -> None:
        """What was timed is what was right: poison the graph's last outputs, replay it, compare with the
        oracle."""
        if not IMPLEMENTATIONS[one.subject.name].checked:
            return
        guards.poison(one.results)
        one.graph.replay()
        reason = parity.after(one.subject.case, one.last, one.results)
        if reason:
            one.subject.fail("FAIL_PARITY", f"the timed graph, replayed: {reason}")

    def _warm_up(self, seconds: float) -> None:
        a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        began = self.device.now()
        while self.device.now() - began < seconds:
            for _ in range(20):
                torch.mm(a, a)
            self.device.wait()
