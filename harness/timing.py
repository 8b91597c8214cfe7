"""Samples of one function on a device, and what they say: median, spread, confidence interval.

Nothing here knows CUDA. A `Device` is passed in, so that the logic runs against a virtual clock as well.
All times are microseconds, except `now()` and budgets, which are seconds.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Protocol

PRECISION = 0.005  # half width of the 95 % interval, relative to the median
HOLD_LIMIT_US = 50_000.0  # the blocker ends by itself after this time at the latest


class Device(Protocol):
    """What the engine needs of a GPU: a stream that can be held, marked with events, and waited for."""

    tick_us: float

    def now(self) -> float: ...

    def hold(self, us: float) -> None: ...

    def flush(self) -> None: ...

    def mark(self) -> Any: ...

    def passed(self, mark: Any) -> bool: ...

    def elapsed_us(self, start: Any, end: Any) -> float: ...

    def wait(self) -> None: ...


@dataclass(frozen=True)
class Timing:
    """Order statistics of `n` samples in µs; [ci_low, ci_high] is the 95 % interval of the median."""

    median: float
    p20: float
    p80: float
    min: float
    ci_low: float
    ci_high: float
    n: int
    dropped: int = 0

    def to_dict(self) -> dict[str, float]:
        """The fields by name, as a row stores them."""
        return asdict(self)


def median_interval(n: int, confidence: float = 0.95) -> tuple[int, int]:
    """Indices (0-based, into the sorted samples) of an interval that covers the median.

    With k of n samples below the median binomial(n, 1/2), [x_(j), x_(n+1-j)] covers it with probability
    1 - 2 P(k < j); j is the largest that keeps `confidence`. Under six samples no interval reaches 95 %:
    the extremes are returned.
    """
    tail, j = 0.0, 0
    while j < n // 2:
        tail += math.exp(math.lgamma(n + 1) - math.lgamma(j + 1) - math.lgamma(n - j + 1) - n * math.log(2))
        if 2 * tail > 1 - confidence:
            break
        j += 1
    low = max(j - 1, 0)
    return low, n - 1 - low


def summarize(samples: Sequence[float], dropped: int = 0) -> Timing:
    """The `Timing` of at least one sample (µs). Raises ValueError for none."""
    if not samples:
        raise ValueError("summarize: no samples")
    x = sorted(samples)
    low, high = median_interval(len(x))
    p20, p80 = (x[round(share * (len(x) - 1))] for share in (0.2, 0.8))
    return Timing(median(x), p20, p80, x[0], x[low], x[high], len(x), dropped)


def settled(timing: Timing, tick_us: float) -> bool:
    """Whether the interval's half width is within 0.5 % of the median, or within half an event tick."""
    return (timing.ci_high - timing.ci_low) / 2 <= max(PRECISION * timing.median, tick_us / 2)


@dataclass
class Queue:
    """Batches of event-timed samples behind a blocker that outlasts the host's issuing.

    Each sample is [flush] - event - call - event in stream order. `calls` is one batch: one function, or the
    same function over several inputs. When the blocker ended before the host had issued the batch, the GPU
    may have waited inside a sample: the batch is dropped and repeated behind a longer blocker, three times at
    most; after that its samples are kept and `starved` is set.
    """

    device: Device
    calls: Sequence[Callable[[], Any]]
    cold: bool = False
    hold_us: float = 300.0
    starved: bool = False

    def take(self) -> tuple[list[float], int]:
        """One batch: (samples in µs, how many samples were dropped on the way)."""
        dropped = 0
        for _ in range(3):
            samples, host_us, early = self._issue()
            self.hold_us = min(HOLD_LIMIT_US, max(self.hold_us, 1.5 * host_us))
            if not early:
                return samples, dropped
            dropped += len(samples)
        self.starved = True
        return samples, dropped - len(samples)

    def _issue(self) -> tuple[list[float], float, bool]:
        device, marks = self.device, []
        device.wait()
        device.hold(self.hold_us)
        released = device.mark()
        began = device.now()
        for call in self.calls:
            if self.cold:
                device.flush()
            start = device.mark()
            call()
            marks.append((start, device.mark()))
        host_us = (device.now() - began) * 1e6
        early = device.passed(released)
        device.wait()
        return [device.elapsed_us(*pair) for pair in marks], host_us, early


@dataclass(eq=False)
class Meter:
    """Takes batches until the median is known well enough or `cap_s` seconds are spent.

    `calls_per_sample` divides every sample (a replayed graph of many calls). At least `minimum` samples.
    """

    queue: Queue
    minimum: int = 30
    cap_s: float = 0.1
    calls_per_sample: int = 1
    samples: list[float] = field(default_factory=list)
    dropped: int = 0
    spent_s: float = 0.0

    def step(self) -> None:
        """Take one batch."""
        began = self.queue.device.now()
        batch, dropped = self.queue.take()
        self.samples += [sample / self.calls_per_sample for sample in batch]
        self.dropped += dropped
        self.spent_s += self.queue.device.now() - began

    @property
    def settled(self) -> bool:
        """Whether there are enough samples and their median is known to the precision wanted."""
        tick_us = self.queue.device.tick_us / self.calls_per_sample
        return len(self.samples) >= self.minimum and settled(self.timing(), tick_us)

    @property
    def done(self) -> bool:
        """Whether to stop: settled, or out of budget with the least number of samples."""
        return self.settled or (len(self.samples) >= self.minimum and self.spent_s >= self.cap_s)

    def timing(self) -> Timing:
        """What the samples taken so far say."""
        return summarize(self.samples, self.dropped)


def interleave(meters: Iterable[Meter], guard: Callable[[Meter], Any] = nullcontext) -> None:
    """Step all meters in turn, forwards then backwards (A B B A), until each is done.

    Drift of the clock or of the temperature then falls on all of them alike. `guard(meter)` is a context
    around each step; a meter whose exception it swallows is left out from then on.
    """
    pending = list(meters)
    while pending:
        unfinished = []
        for meter in pending:
            with guard(meter):
                meter.step()
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
