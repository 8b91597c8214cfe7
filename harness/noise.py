"""The A/A noise floor: one kernel measured as if it were two, by the engine that measures everything else."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from harness.cases import Case, family_of
from harness.implementations import IMPLEMENTATIONS
from harness.samples import speedup
from harness.subject import Subject

CLASSES_US = (2, 10, 50, 250)
HIDDEN, BYTES = 4096, 4  # columns; bytes that rmsnorm_fwd moves for each element of bf16
LEAST_US, LEAST_ROWS = 2.0, 16  # what a kernel takes that moves next to nothing
PERCENT, SHORT_PERCENT, SHORT_US = 1.0, 3.0, 20.0  # noise that a measurement can bear; shorter ones see the event tick


@dataclass(frozen=True)
class Noise:
    """What two runs of one kernel differ by, in a size class, by replicates i of graph medians A and B.

    `noise_percent` is the half width of the 95 % t interval of the mean of log(A / B), `bias_percent` that mean,
    `largest_percent` the largest |log(A / B)|; `status` is the worse of the two subjects' statuses. Figures are None
    where nothing could be measured.
    """

    class_us: float
    shape: str
    status: str
    reason: str
    time_us: float | None = None
    noise_percent: float | None = None
    bias_percent: float | None = None
    largest_percent: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields and properties by name."""
        return asdict(self) | {"floor_percent": self.floor_percent, "bearable": self.bearable}

    @property
    def floor_percent(self) -> float | None:
        """The end of the interval that is farther from no difference: what A and B may differ by in another run, also
        where it is the same in every replicate of this one."""
        return None if self.noise_percent is None else abs(self.bias_percent) + self.noise_percent

    @property
    def bearable(self) -> bool:
        """Whether the floor is low enough for a measurement: 1 %, under 20 µs 3 %."""
        limit = SHORT_PERCENT if self.class_us < SHORT_US else PERCENT
        return self.floor_percent is not None and self.floor_percent <= limit


def spread(a: Sequence[float], b: Sequence[float]) -> dict[str, float]:
    """The figures of `Noise` for the medians of at least two replicates (µs). Raises ValueError for fewer."""
    if len(a) < 2:
        raise ValueError(f"spread: {len(a)} replicates, but a spread needs 2")
    ratio = speedup(a, b)
    low, high = math.log(ratio["ci_low"]), math.log(ratio["ci_high"])
    return {
        "time_us": median([*a, *b]),
        "noise_percent": 50 * (high - low),
        "bias_percent": 50 * (high + low),
        "largest_percent": 100 * max(abs(math.log(one / other)) for one, other in zip(a, b, strict=True)),
    }


def case_of(class_us: float, copy_tbs: float) -> Case:
    """The rmsnorm_fwd that takes about so long on a GPU that copies at `copy_tbs` TB/s."""
    rows = (class_us - LEAST_US) * copy_tbs * 1e6 / (BYTES * HIDDEN)
    return Case("rmsnorm_fwd", (max(LEAST_ROWS, round(rows)), HIDDEN))


def measure(backend: Any) -> list[Noise]:
    """The noise of each size class on a `harness.backend_gpu.Gpu` whose profile takes at least two replicates."""
    return [_measured(backend, each) for each in CLASSES_US]


def _measured(backend: Any, class_us: float) -> Noise:
    case = case_of(class_us, backend.ceilings.copy_tbs)
    pair = [Subject(case, "optimized"), Subject(case, "optimized")]
    with pair[0].guarded(backend):
        call = family_of(case.function).make(case, backend.name, seed=0)
        run = IMPLEMENTATIONS["optimized"].prepare(case, call)
        backend.time(case, call, [(subject, run) for subject in pair])
    worse = next((subject for subject in pair if not subject.ok), None)
    worse = worse or next((subject for subject in pair if subject.status != "OK"), pair[0])
    named = {"class_us": class_us, "shape": case.shape_text, "status": worse.status, "reason": worse.reason}
    if not all(subject.ok and subject.fields.get("replicates") for subject in pair):
        return Noise(**named)
    return Noise(**named, **spread(*(subject.fields["replicates"]["graph_us"] for subject in pair)))
