"""Timing on a GPU: graph, cold and warm columns and host cost of every implementation of a case,
interleaved."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from harness import ceilings, confirm, device, rotation, timing
from harness.cases import Call, Case, Work, family_of
from harness.implementations import IMPLEMENTATIONS
from harness.options import Profile
from harness.rows import COLUMNS
from harness.samples import PRECISION
from harness.subject import Subject
from harness.telemetry import Telemetry

HOST_BOUND = 1.5  # x host cost: a function that takes less is not what decides the time of calls one by one
WARM_UP_S = 0.025  # of a case, before each replicate


@dataclass
class Timed:
    """A subject with what its columns need. `results` are the outputs of the graph's last call, on the last of
    `inputs`; `meters` has for each column a meter a replicate."""

    subject: Subject
    inputs: list[Call]
    calls: list[Callable[[], Any]]
    graph: torch.cuda.CUDAGraph
    results: tuple
    make: dict[str, Callable[[], timing.Meter]]
    meters: dict[str, list[timing.Meter]]


class Gpu:
    """CUDA device `index`, made current in this thread. Warms it up, then measures its ceilings."""

    name = "cuda"

    def __init__(self, limits: Profile, index: int = 0):
        self.limits, self.index = limits, index
        self.device = device.Cuda(index)
        self.gpu = torch.cuda.get_device_name()
        self._warm_up(limits.warm_up_s)
        self.ceilings = ceilings.measure(self.device)
        torch.cuda.empty_cache()

    def free_bytes(self) -> int | None:
        """Memory that an allocation can get now, what PyTorch's allocator holds unused included."""
        held = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return torch.cuda.mem_get_info()[0] + held

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

        All implementations of the case take turns, A B B A within a replicate and from one to the next, over the same
        rotating inputs.
        """
        work = family_of(case.function).work(case)
        inputs = rotation.inputs(call, work.bytes, self.device.l2_bytes)
        timed: list[Timed] = []
        for subject, run in runs:
            with subject.guarded(self):
                timed.append(self._prepared(subject, inputs, [partial(run, one) for one in inputs]))
        pace = timing.Pace()
        with Telemetry(self.index) as telemetry:
            for number in range(self.limits.replicates):
                ready = [one for one in timed if one.subject.ok]
                self._replicate(ready[::-1] if number % 2 else ready, pace)
        for subject, _ in runs:
            subject.fields["gpu_state"] = telemetry.state()
        for one in timed:
            if one.subject.ok:
                with one.subject.guarded(self):
                    self._columns(one, work)
        while timed:
            self._confirm(timed.pop(0))
        torch.cuda.empty_cache()  # the graphs' private pools

    def _replicate(self, timed: list[Timed], pace: timing.Pace) -> None:
        """Warm every implementation up, then measure column after column, each with all of them in turns."""
        for one in timed:
            with one.subject.guarded(self):
                self._warm(one.calls[0])
        for column in COLUMNS:
            owner = {one.make[column](): one for one in timed if one.subject.ok}
            timing.interleave(owner, lambda meter, owner=owner: owner[meter].subject.guarded(self), pace)
            for meter, one in owner.items():
                one.meters[column].append(meter)

    def _prepared(self, subject: Subject, inputs: list[Call], calls: list[Callable[[], Any]]) -> Timed:
        about_us = self._warm(calls[0])
        count = device.graph_calls(about_us, len(calls))
        graph, results = device.capture([calls[i % len(calls)] for i in range(count)], len(calls))
        budget = device.Budget(self.limits.cap_s / self.limits.replicates, self.limits.replicates)
        make = {
            "graph_us": partial(device.graph_us, self.device, graph, count, budget),
            "cold_us": partial(device.cold_us, self.device, calls[0], about_us, budget),
            "warm_us": partial(device.warm_us, self.device, calls[0], about_us, budget),
        }
        subject.fields["rotation"] = {"inputs": len(calls), "calls": count}
        return Timed(subject, inputs, calls, graph, results[-1], make, {column: [] for column in COLUMNS})

    def _warm(self, call: Callable[[], Any]) -> float:
        """At least 10 calls and 25 ms of them; gives about what one takes, in µs."""
        call()
        self.device.wait()
        took, began = [], self.device.now()
        while len(took) < 10 or self.device.now() - began < WARM_UP_S:
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
        columns = {name: timing.pooled(meters) for name, meters in one.meters.items()}
        subject.fields |= {name: column.to_dict() for name, column in columns.items()}
        subject.fields["replicates"] = {
            name: [meter.timing().median for meter in meters] for name, meters in one.meters.items()
        }
        subject.samples = {
            name: [sample for meter in meters for sample in meter.kept] for name, meters in one.meters.items()
        }
        subject.fields["host_us"] = timing.host_us(self.device, one.calls[0])
        subject.fields["host_bound"] = columns["warm_us"].median < HOST_BOUND * subject.fields["host_us"]
        subject.fields["percent_of_limit"] = self.ceilings.percent(work, columns["graph_us"].median)
        self._doubt(one, work, columns["cold_us"].median)

    def _doubt(self, one: Timed, work: Work, cold_us: float) -> None:
        """Say what speaks against the times of a subject; what is worst first."""
        subject, every = one.subject, [meter for meters in one.meters.values() for meter in meters]
        if not self.ceilings.believable(work, cold_us, self.device.l2_bytes):
            subject.fail("INVALID", f"cold time above {ceilings.TOLERANCE:.0%} of this GPU's limit")
        if timing.throttled(every):
            subject.remark("THROTTLED", f"over {timing.THROTTLED_SHARE:.0%} of the samples ran under "
                                        f"{timing.THROTTLED:.0%} of the session's SM clock")
        if any(meter.queue.starved for meter in every):
            subject.remark("HOST_BOUND", "one call takes the host longer than the GPU can be held")
        if not all(timing.pooled_settled(one.meters[name]) for name in ("graph_us", "cold_us")):
            subject.remark("NOISY", f"median not known to {PRECISION:.1%} within {self.limits.cap_s:g} s")

    def _confirm(self, one: Timed) -> None:
        """What was timed is what is right: the graph and the call once more, on values that neither has seen."""
        subject, twin = one.subject, IMPLEMENTATIONS[one.subject.name].twin
        if not subject.ok or not IMPLEMENTATIONS[subject.name].checked:
            return
        with subject.guarded(self):
            times = subject.fields["rotation"]["calls"] // subject.fields["rotation"]["inputs"]
            reason = confirm.replayed(
                subject.case, one.inputs[-1], self.device, one.graph.replay, one.results, twin=twin, times=times
            )
            if reason:
                subject.fail("FAIL_PARITY", f"the timed graph, replayed: {reason}")
            reason = confirm.called(
                subject.case, one.inputs[0], self.device, lambda _: one.calls[0](), twin=twin
            )
            if reason:
                subject.fail("FAIL_PARITY", f"called as it was timed: {reason}")
            reason = confirm.clock(self.device)
            if reason:
                subject.fail("INVALID", reason)

    def _warm_up(self, seconds: float) -> None:
        """Read memory until the clocks are up. Products would run into the power limit, which then still lowers the
        rates of the ceilings."""
        began = self.device.now()
        while self.device.now() - began < seconds:
            for _ in range(20):
                self.device.flush()
            self.device.wait()
