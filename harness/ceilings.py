"""What this GPU reaches at best: bytes per second copied, read, written; flops per second of a bf16
product."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.cases.base import Work
    from harness.device import Cuda

TOLERANCE = 1.05  # a cold result faster than this share of the limit is not believed


@dataclass(frozen=True)
class Ceilings:
    """Rates in TB/s (decimal) and TFLOP/s; `tick_us` is the resolution of the GPU's events."""

    copy_tbs: float
    read_tbs: float
    write_tbs: float
    product_tflops: float
    tick_us: float

    def __str__(self) -> str:
        rates = f"copy {self.copy_tbs:.2f}, read {self.read_tbs:.2f}, write {self.write_tbs:.2f} TB/s"
        return f"{rates}, bf16 product {self.product_tflops:.0f} TFLOP/s"

    def to_dict(self) -> dict[str, float]:
        """The fields by name, as a run stores them."""
        return asdict(self)

    def limit_us(self, work: "Work") -> float:
        """The least time of some work: max(read / read rate + written / write rate, flops / product rate), in
        µs."""
        moved = work.read_bytes / self.read_tbs + work.written_bytes / self.write_tbs
        return max(moved, work.flops / self.product_tflops) / 1e6

    def percent(self, work: "Work", time_us: float) -> float:
        """Percent of the limit that `time_us` reaches."""
        return 100 * self.limit_us(work) / time_us

    def believable(self, work: "Work", cold_us: float, l2_bytes: int) -> bool:
        """False for a cold time above 105 % of the limit on more bytes than L2 holds: something was not
        done."""
        return work.bytes <= l2_bytes or cold_us * TOLERANCE >= self.limit_us(work)


def measure(device: "Cuda", size: int = 1 << 30) -> Ceilings:
    """Measure the ceilings with buffers of `size` bytes, at most a tenth of the free memory, in about 0.3 s.

    Each rate is the median of 8 runs after 3. No library call reads at the full rate in every layout: the
    best of three is taken, and at least the copy's rate, which reading alone cannot fall below.
    """
    import torch

    size = min(size, torch.cuda.mem_get_info()[0] // 10) // (1 << 20) * (1 << 20)
    source = torch.randn(size // 4, device="cuda")
    target = torch.empty_like(source)
    copy = 2 * size / _best_us(device, [lambda: target.copy_(source)])
    write = size / _best_us(device, [lambda: target.zero_(), lambda: target.fill_(1.0)])
    wide, tall = source.view(-1, 1 << 14), source.view(1 << 8, -1)
    sums, vector = torch.empty(len(wide), device="cuda"), torch.ones(wide.shape[1], device="cuda")
    read = size / _best_us(
        device,
        [
            lambda: torch.sum(wide, dim=1, out=sums),
            lambda: torch.mv(wide, vector, out=sums),
            lambda: torch.amax(tall, dim=1, out=sums[: len(tall)]),
        ],
    )
    return Ceilings(copy / 1e6, max(read, copy) / 1e6, write / 1e6, _product_tflops(device), device.tick_us)


def _best_us(device: "Cuda", candidates: list[Callable[[], Any]]) -> float:
    from harness.timing import Queue

    times = []
    for call in candidates:
        samples, _ = Queue(device, [call] * 11).take()
        times.append(median(samples[3:]))
    return min(times)


def _product_tflops(device: "Cuda", n: int = 8192) -> float:
    """Best bf16 n³ product of a short run: a long one is limited by power. Random data: zeros run faster."""
    import torch

    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * n**3 / _best_us(device, [lambda: torch.mm(a, b, out=out)]) / 1e6
