"""What samples say: order statistics of one function's times, and ratios of two functions over replicates.

Times are microseconds.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median, stdev

PRECISION = 0.005  # half width of the 95 % interval, relative to the median
STUDENT_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 97.5 % quantile of Student's t for 1, 2, … degrees of freedom; more of them would only lower it."""


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


def speedup(theirs: Sequence[float], ours: Sequence[float]) -> dict[str, float | None]:
    """theirs / ours over pairs of replicate medians: {median, ci_low, ci_high}.

    The interval is Student's for the mean of log(theirs / ours), 95 %: replicates are few, and each pair was measured
    in turns. It says nothing of what is the same in every replicate of a run, as where buffers lie: see harness.noise.
    Null for a single replicate. Raises ValueError where the two have not as many replicates.
    """
    logs = [math.log(their / our) for their, our in zip(theirs, ours, strict=True)]
    middle = math.exp(median(logs))
    if len(logs) < 2:
        return {"median": middle, "ci_low": None, "ci_high": None}
    half = STUDENT_95[min(len(logs), len(STUDENT_95) + 1) - 2] * stdev(logs) / math.sqrt(len(logs))
    return {"median": middle, "ci_low": math.exp(mean(logs) - half), "ci_high": math.exp(mean(logs) + half)}
