"""The GPU as `harness.timing.Device`: PyTorch's current stream, events, a blocker and an L2 flush."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from harness.timing import Meter, Queue

COLD_BATCH = 20  # a launch queue holds about 1,000 operations: 20 samples of 20 kernels stay under 500
GRAPH_CALLS = 64  # a graph of fewer calls reads up to 10 % slow
GRAPH_REPLAYS = 10
REPLAY_US = 20_000.0  # slow functions need fewer calls a graph: launching it is nothing beside this


class Cuda:
    """Device `index`. Allocates max(2 x L2, 128 MiB) once, for the flush; raises RuntimeError without a
    GPU."""

    def __init__(self, index: int = 0):
        properties = torch.cuda.get_device_properties(index)
        self.l2_bytes = properties.L2_cache_size
        self._cycles_per_us = getattr(properties, "clock_rate", 1_980_000) / 1e3
        rows = max(2 * self.l2_bytes, 128 << 20) // (4096 * 4)
        self._flushed = torch.ones(rows, 4096, device=f"cuda:{index}")
        self._sums = torch.empty(rows, device=f"cuda:{index}")
        self.tick_us = self._tick_us()

    def now(self) -> float:
        """Host seconds, monotonic."""
        return time.perf_counter()

    def hold(self, us: float) -> None:
        """Occupy the stream for about `us` microseconds, by a kernel that counts clocks and so always
        ends."""
        torch.cuda._sleep(int(us * self._cycles_per_us))

    def flush(self) -> None:
        """Replace what is in L2 by reading. A written flush leaves dirty lines, evicted during the sample."""
        torch.sum(self._flushed, dim=1, out=self._sums)

    def mark(self) -> torch.cuda.Event:
        """An event at this point of the stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def passed(self, mark: torch.cuda.Event) -> bool:
        """Whether the GPU is past the mark."""
        return mark.query()

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


def graph_us(device: Cuda, graph: torch.cuda.CUDAGraph, calls: int, cap_s: float) -> Meter:
    """The meter of the graph column: replays back to back, each divided by the calls in it. One replay has
    already run when it starts, so that the graph is uploaded."""
    graph.replay()
    return Meter(Queue(device, [graph.replay] * GRAPH_REPLAYS), GRAPH_REPLAYS, cap_s, calls)


def cold_us(device: Cuda, call: Callable[[], Any], cap_s: float) -> Meter:
    """The meter of the cold column: L2 is flushed by reading before each sample, outside the events."""
    return Meter(Queue(device, [call] * COLD_BATCH, cold=True), 30, cap_s)


def warm_us(device: Cuda, call: Callable[[], Any], cap_s: float) -> Meter:
    """The meter of the warm column: the same call on the same input, again and again."""
    return Meter(Queue(device, [call] * COLD_BATCH), 30, cap_s)
