"""Samples of one function on a device: cold, warm or of a graph, interleaved with those of its rivals.

Nothing here knows CUDA. A `Device` is passed in, so that the logic runs against a virtual clock as well.
All times are microseconds, except `now()`, `rest()` and budgets, which are seconds.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

from harness.samples import Timing, settled, summarize

HOLD_LIMIT_US = 50_000.0  # the blocker ends by itself after this time at the latest
THROTTLED = 0.9  # of the session's median SM clock: a batch that ran slower is dropped
THROTTLED_SHARE = 0.1  # of all samples: more dropped than this, and the row says so
REST_S = 0.05  # before each batch, for a GPU that was throttled


class SmClock:
    """The SM clocks (MHz) of a session's batches."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def throttled(self, mhz: float | None) -> bool:
        """Whether a batch at `mhz` ran under 90 % of the median of all batches so far, itself included."""
        if mhz is None:
            return False
        insort(self.seen, mhz)
        return mhz < THROTTLED * median(self.seen)


class Device(Protocol):
    """What the engine needs of a GPU: a stream that can be held, marked with events, and waited for."""

    tick_us: float
    clock: SmClock

    def now(self) -> float:
        """Seconds on the host."""

    def rest(self, seconds: float) -> None:
        """Leave the device alone for a while."""

    def hold(self) -> None:
        """Occupy the stream until `release`, for HOLD_LIMIT_US at most."""

    def release(self) -> None:
        """Let what was issued since `hold` run."""

    def overslept(self) -> bool:
        """After `wait`: whether the last hold ended by its limit, before the release."""

    def stamp(self) -> None:
        """Take the SM clock at this point of the stream."""

    def nothing(self) -> None:
        """Run what takes no time at this point of the stream."""

    def clock_mhz(self) -> float | None:
        """After `wait`: the lower of the SM clocks during the hold and at the stamp."""

    def flush(self) -> None:
        """Replace what is in L2."""

    def mark(self) -> Any:
        """An event at this point of the stream."""

    def elapsed_us(self, start: Any, end: Any) -> float:
        """GPU time between two marks that have passed."""

    def wait(self) -> None:
        """Until everything issued has finished."""


@dataclass
class Queue:
    """Batches of event-timed samples behind a blocker that holds the GPU until the host has issued them all.

    Each sample is [flush] - event - call - event in stream order. `calls` is one batch: one function, or the
    same function over several inputs. Where the blocker had to end by its limit, the host is slow or its launch
    queue was full, and the GPU may have waited inside a sample: the batch is dropped, and halved from then on. One
    call that still takes the host longer is kept, and sets `starved`.

    The SM clock is taken before and after a batch rather than inside its samples, which stay as short as they are;
    `throttled` says that the last batch ran under 90 % of the session's.
    """

    device: Device
    calls: Sequence[Callable[[], Any]]
    cold: bool = False
    starved: bool = False
    throttled: bool = False

    def take(self) -> tuple[list[float], int]:
        """One batch: (samples in µs, how many samples were dropped on the way)."""
        dropped = 0
        while True:
            samples = self._issue()
            if not self.device.overslept():
                break
            if len(self.calls) == 1:
                self.starved = True
                break
            dropped += len(samples)
            self.calls = self.calls[: len(self.calls) // 2]
        self.throttled = self.device.clock.throttled(self.device.clock_mhz())
        return samples, dropped

    def _issue(self) -> list[float]:
        device, marks = self.device, []
        device.wait()
        device.hold()
        try:
            for call in self.calls:
                if self.cold:
                    device.flush()
                start = device.mark()
                call()
                marks.append((start, device.mark()))
            device.stamp()
        finally:
            device.release()
        device.wait()
        return [device.elapsed_us(*pair) for pair in marks]


@dataclass(eq=False)
class Meter:
    """Takes batches until the median is known well enough or `cap_s` seconds are spent.

    `calls_per_sample` divides every sample (a replayed graph of many calls). At least `minimum` samples, if the
    GPU keeps its clock: samples of a throttled batch go into `slow`.
    """

    queue: Queue
    minimum: int = 30
    cap_s: float = 0.1
    calls_per_sample: int = 1
    samples: list[float] = field(default_factory=list)
    slow: list[float] = field(default_factory=list)
    dropped: int = 0
    spent_s: float = 0.0

    def step(self) -> None:
        """Take one batch."""
        device = self.queue.device
        began = device.now()
        batch, dropped = self.queue.take()
        kept = self.slow if self.queue.throttled else self.samples
        kept += [sample / self.calls_per_sample for sample in batch]
        self.dropped += dropped
        self.spent_s += device.now() - began

    @property
    def settled(self) -> bool:
        """Whether there are enough samples and their median is known to the precision wanted."""
        tick_us = self.queue.device.tick_us / self.calls_per_sample
        return len(self.samples) >= self.minimum and settled(self.timing(), tick_us)

    @property
    def done(self) -> bool:
        """Whether to stop: settled, or out of budget with the least number of samples."""
        enough = len(self.samples) + len(self.slow) >= self.minimum
        return self.settled or (enough and self.spent_s >= self.cap_s)

    @property
    def kept(self) -> list[float]:
        """The samples that count: those at the session's clock, or, where there is none, the slow ones."""
        return self.samples or self.slow

    def timing(self) -> Timing:
        """What the samples taken so far say."""
        return summarize(self.kept, self.dropped + (len(self.slow) if self.samples else 0))


def pooled(meters: Iterable[Meter]) -> Timing:
    """What the samples of one column say over all replicates."""
    meters = list(meters)
    each = [meter.timing() for meter in meters]
    return summarize([sample for meter in meters for sample in meter.kept], sum(one.dropped for one in each))


def pooled_settled(meters: Sequence[Meter]) -> bool:
    """Whether the median over all replicates is known to the precision wanted."""
    first = meters[0]
    return settled(pooled(meters), first.queue.device.tick_us / first.calls_per_sample)


def throttled(meters: Iterable[Meter]) -> bool:
    """Whether more than a tenth of the samples ran at a lower clock than the session's."""
    meters = list(meters)
    slow, fine = (sum(len(getattr(meter, name)) for meter in meters) for name in ("slow", "samples"))
    return slow > THROTTLED_SHARE * (slow + fine)


class Pace:
    """How meters that are compared take their steps. Once the GPU was throttled in the step of any, it rests before
    each, in that meter's time: a rest behind the one that was slow would be a head start for the next."""

    def __init__(self) -> None:
        self.tired = False

    def step(self, meter: Meter) -> None:
        """Let the meter take one batch."""
        if self.tired:
            meter.queue.device.rest(REST_S)
            meter.spent_s += REST_S
        meter.step()
        self.tired |= meter.queue.throttled


def interleave(
    meters: Iterable[Meter], guard: Callable[[Meter], Any] = nullcontext, pace: Pace | None = None
) -> None:
    """Step all meters in turn, forwards then backwards (A B B A), until each is done.

    Drift of the clock or of the temperature then falls on all of them alike. `guard(meter)` is a context
    around each step; a meter whose exception it swallows is left out from then on. `pace`: that of earlier
    columns of the same meters' functions.
    """
    pending, pace = list(meters), pace or Pace()
    while pending:
        unfinished = []
        for meter in pending:
            with guard(meter):
                pace.step(meter)
                if not meter.done:
                    unfinished.append(meter)
        pending = unfinished[::-1]


def host_us(
    device: Device, call: Callable[[], Any], batches: int = 5, size: int = 10, cap_s: float = 0.1
) -> float:
    """Median host time of issuing one call, in µs. Nothing is waited for inside a sample, and the queue is
    emptied between batches, so that it never fills. At least two batches, then until `cap_s` is spent."""
    samples, began = [], device.now()
    for batch in range(batches):
        device.wait()
        for _ in range(size):
            start = device.now()
            call()
            samples.append((device.now() - start) * 1e6)
        if batch and device.now() - began > cap_s:
            break
    device.wait()
    return median(samples)
