"""The GPU as `harness.timing.Device`: PyTorch's current stream, events, a blocker and an L2 flush."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch

from harness.timing import HOLD_LIMIT_US, Meter, Queue, SmClock
from optimized.launch import Launch
from optimized.plan import Plan

COLD_BATCH = 20
WARM_US = 100.0  # of back-to-back calls in a sample of a short function
SHORT_US = 20.0  # a function that takes less is called several times a sample
QUEUED = 500  # operations of one batch: a launch queue holds about 1,000
GRAPH_CALLS = 64  # a graph of fewer calls reads up to 10 % slow
GRAPH_REPLAYS = 10
REPLAY_US = 5_000.0  # of a slow function, graph or batch: launching is nothing beside this, the power limit far
STAMP_NS = 50_000  # cycles counted over this time gave the SM clock of an idle H200 to half a per cent
REPORT_WORDS = 3  # overslept, cycles, nanoseconds: Report of kernels/hold.cu
KERNEL = Path(__file__).resolve().parent / "kernels" / "hold.cu"


class Cuda:
    """Device `index`, current in this thread. Allocates max(2 x L2, 128 MiB) once, for the flush; raises
    RuntimeError without a GPU."""

    def __init__(self, index: int = 0):
        torch.cuda.set_device(index)
        self.l2_bytes = torch.cuda.get_device_properties(index).L2_cache_size
        rows = max(2 * self.l2_bytes, 128 << 20) // (4096 * 4)
        self._flushed = torch.ones(rows, 4096, device="cuda")
        self._sums = torch.empty(rows, device="cuda")
        self._words = torch.zeros(1 + REPORT_WORDS, dtype=torch.int64, pin_memory=True)
        self._host = self._words.numpy()  # of the flag, and of what the blocker reports
        # On the GPU, so that nothing waits for a store to reach the host.
        self._stamped, self._unread = torch.zeros(2, REPORT_WORDS, dtype=torch.int64, device="cuda")
        self._hold, self._stamp = _launch(0, HOLD_LIMIT_US * 1e3), _launch(STAMP_NS, STAMP_NS)
        self._nothing = _launch(0, 0)
        self.clock = SmClock()
        self.tick_us = self._tick_us()

    def now(self) -> float:
        """Host seconds, monotonic."""
        return time.perf_counter()

    def rest(self, seconds: float) -> None:
        """Leave the GPU idle."""
        time.sleep(seconds)

    def hold(self) -> None:
        """Occupy the stream until `release`, for HOLD_LIMIT_US at most. The stream must be idle."""
        self._host[:] = 0
        self._hold(self._words.data_ptr(), self._words[1:].data_ptr())

    def release(self) -> None:
        """Let what was issued since `hold` run: the blocker sees it in about a microsecond."""
        self._host[0] = 1

    def stamp(self) -> None:
        """Count cycles of an SM for 50 µs at this point of the stream."""
        self._stamp(self._words.data_ptr(), self._stamped.data_ptr())

    def nothing(self) -> None:
        """Run a kernel that ends at once."""
        self._nothing(self._words.data_ptr(), self._unread.data_ptr())

    def overslept(self) -> bool:
        """After `wait`: whether the blocker ended by its limit."""
        return bool(self._host[1])

    def clock_mhz(self) -> float | None:
        """After `wait`: the lower of the SM clocks during the hold and at the stamp."""
        reports = self._host[1:].tolist(), self._stamped.tolist()
        return min(1e3 * cycles / nanoseconds for _, cycles, nanoseconds in reports)

    def flush(self) -> None:
        """Replace what is in L2 by reading. A written flush leaves dirty lines, evicted during the sample."""
        torch.sum(self._flushed, dim=1, out=self._sums)

    def mark(self) -> torch.cuda.Event:
        """An event at this point of the stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed_us(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Microseconds of GPU time between two marks that have passed."""
        return start.elapsed_time(end) * 1e3

    def wait(self) -> None:
        """Until everything issued has finished. Raises the error of a kernel that failed."""
        torch.cuda.synchronize()

    def _tick_us(self) -> float:
        """The resolution of events: the smallest difference between the distances of successive events."""
        marks = [self.mark() for _ in range(65)]
        self.wait()
        steps = sorted({round(self.elapsed_us(a, b), 3) for a, b in zip(marks, marks[1:])})
        return min((b - a for a, b in zip(steps, steps[1:]) if b - a > 5e-3), default=0.5)


@dataclass(frozen=True)
class Budget:
    """Of one replicate: a row's least numbers of samples and its seconds, split evenly."""

    cap_s: float
    replicates: int = 1

    def least(self, samples: int) -> int:
        """The replicate's part of a row's least number of samples."""
        return -(-samples // self.replicates)


def _launch(least_ns: float, limit_ns: float) -> Launch:
    """kernels/hold.cu for these times, on the current device."""
    plan = Plan(str(KERNEL), "hold<0>", "hold", 1, 1)
    times = numpy.int64(least_ns), numpy.int64(limit_ns)
    return Launch(plan, torch.device("cuda", torch.cuda.current_device()), 2, times)


def capture(calls: Sequence[Callable[[], Any]], rotation: int) -> tuple[torch.cuda.CUDAGraph, list[Any]]:
    """A graph of `calls` in order, and the results of its last `rotation` calls.

    Results come from the graph's private pool. The last `rotation` of them are kept alive while capturing, so
    that as many output buffers take turns as there are inputs, and no more memory than that is taken.
    Captured on a side stream directly: `torch.cuda.graph` would empty the allocator's cache each time.
    """
    graph, stream, alive = torch.cuda.CUDAGraph(), torch.cuda.Stream(), []
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for call in calls:
                alive = alive[-(rotation - 1) :] if rotation > 1 else []
                alive.append(call())
        except BaseException:
            with suppress(RuntimeError):  # it would only say that the capture failed
                graph.capture_end()
            raise
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph, alive


def graph_calls(call_us: float, rotation: int) -> int:
    """How many calls go into one graph, given about what one takes: a multiple of `rotation`."""
    wanted = min(GRAPH_CALLS, max(1, int(REPLAY_US / max(call_us, 1e-3))))
    return -(-wanted // rotation) * rotation


def back_to_back(call_us: float) -> int:
    """How many calls make one warm sample, given about what one takes: of a short function as many as take 100 µs, so
    that the event's resolution and the gap around it do not matter."""
    return 1 if call_us >= SHORT_US else min(QUEUED // 2, round(WARM_US / max(call_us, 0.1)))


def graph_us(device: Cuda, graph: torch.cuda.CUDAGraph, calls: int, budget: Budget) -> Meter:
    """The meter of the graph column: replays back to back, each divided by the calls in it. One replay has
    already run when it starts, so that the graph is uploaded."""
    graph.replay()
    replays = budget.least(GRAPH_REPLAYS)
    return Meter(Queue(device, [graph.replay] * replays), replays, budget.cap_s, calls)


def batch_of(sample_us: float) -> int:
    """How many samples make one batch, given about what one takes: of a slow function fewer."""
    return min(COLD_BATCH, max(1, int(REPLAY_US / max(sample_us, 1e-3))))


def cold_us(device: Cuda, call: Callable[[], Any], about_us: float, budget: Budget) -> Meter:
    """The meter of the cold column: L2 is flushed by reading before each sample, outside the events."""
    return Meter(Queue(device, [call] * batch_of(about_us), cold=True), budget.least(30), budget.cap_s)


def warm_us(device: Cuda, call: Callable[[], Any], about_us: float, budget: Budget) -> Meter:
    """The meter of the warm column: the same call on the same input, again and again."""
    count = back_to_back(about_us)
    sample = call if count == 1 else partial(_repeat, call, count)
    batch = max(1, min(batch_of(count * about_us), QUEUED // count))
    return Meter(Queue(device, [sample] * batch), budget.least(30), budget.cap_s / 4, count)


def _repeat(call: Callable[[], Any], count: int) -> None:
    for _ in range(count):
        call()
