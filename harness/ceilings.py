"""What this GPU reaches at best: bytes per second copied, read, written; flops per second of matrix products."""

from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, dataclass, fields
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.cases.base import Work
    from harness.device import Cuda

TOLERANCE = 1.05  # a cold result faster than this share of the limit is not believed
RUNS, UNCOUNTED = 11, 3  # of each candidate; the first ones find caches and clocks cold
PRODUCT_S = 0.2  # for the products of one dtype


@dataclass(frozen=True)
class Ceilings:
    """Rates in TB/s (decimal) and TFLOP/s; `tick_us` is the resolution of the GPU's events.

    `product_tflops` is of bf16 operands, fp32's is of exact products; the others are None where the chip or PyTorch has
    no such product.
    """

    copy_tbs: float
    read_tbs: float
    write_tbs: float
    product_tflops: float
    tick_us: float
    fp16_tflops: float | None = None
    fp8_tflops: float | None = None
    fp32_tflops: float | None = None

    def __str__(self) -> str:
        rates = f"copy {self.copy_tbs:.2f}, read {self.read_tbs:.2f}, write {self.write_tbs:.2f} TB/s"
        known = {name: rate for name, rate in self.products().items() if rate}
        return f"{rates}; product {', '.join(f'{name} {rate:,.0f}' for name, rate in known.items())} TFLOP/s"

    def products(self) -> dict[str, float | None]:
        """TFLOP/s of products by the dtype of their operands."""
        return {"bf16": self.product_tflops, "fp16": self.fp16_tflops, "fp8": self.fp8_tflops, "fp32": self.fp32_tflops}

    def to_dict(self) -> dict[str, float | None]:
        """The fields by name, as a run stores them."""
        return asdict(self)

    def limit_us(self, work: "Work") -> float:
        """The least time of some work: max(read / read rate + written / write rate, flops / product rate), in µs.

        The product rate is that of the work's operands; bf16's where theirs is not known.
        """
        moved = work.read_bytes / self.read_tbs + work.written_bytes / self.write_tbs
        rate = self.products().get(work.operands) or self.product_tflops
        return max(moved, work.flops / rate) / 1e6

    def percent(self, work: "Work", time_us: float) -> float:
        """Percent of the limit that `time_us` reaches."""
        return 100 * self.limit_us(work) / time_us

    def believable(self, work: "Work", cold_us: float, l2_bytes: int) -> bool:
        """False for a cold time above 105 % of the limit on more bytes than L2 holds: something was not
        done."""
        return work.bytes <= l2_bytes or cold_us * TOLERANCE >= self.limit_us(work)


def recorded(found: dict[str, Any]) -> bool:
    """Whether `found` is what `to_dict` gives: every field a number; those that may be None, that or missing."""
    optional = {field.name for field in fields(Ceilings) if field.default is not MISSING}
    names = {field.name for field in fields(Ceilings)}
    return names - optional <= found.keys() <= names and all(
        isinstance(value, (int, float)) or (value is None and name in optional) for name, value in found.items()
    )


def measure(device: "Cuda", size: int = 1 << 30) -> Ceilings:
    """Measure the ceilings with buffers of `size` bytes, at most a tenth of the free memory, in under a second.

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
    del source, target, wide, tall
    rates = (copy / 1e6, max(read, copy) / 1e6, write / 1e6)
    return Ceilings(*rates, tick_us=device.tick_us, **_products(device))


def _best_us(device: "Cuda", candidates: list[Callable[[], Any]]) -> float:
    from harness.timing import Queue

    times = []
    for call in candidates:
        samples, _ = Queue(device, [call] * RUNS).take()
        times.append(median(samples[UNCOUNTED:] or samples))
    return min(times)


def _products(device: "Cuda") -> dict[str, float | None]:
    """The product rates by field. Random data: zeros run faster. Of sizes whose 128 x 256 tiles fill every SM equally
    often, and of 8192³; all short, because a long run is limited by power."""
    import torch

    sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    shapes = [(32 * sms, 4096, 8192), (8192, 8192, 8192), (64 * sms, 8192, 8192)]
    most = max((m + n) * k for m, n, k in shapes)
    values = torch.randn(most, device="cuda", dtype=torch.bfloat16)
    best = partial(product_tflops, device, shapes=shapes)
    rates = {"product_tflops": best(values)}
    others = {"fp16_tflops": torch.float16, "fp8_tflops": torch.float8_e4m3fn, "fp32_tflops": torch.float32}
    for name, dtype in others.items():
        try:
            rates[name] = best(values.to(dtype))
        except RuntimeError:  # PyTorch's way to say that this chip has no such product
            rates[name] = None
    return rates


def product_tflops(device: "Cuda", values: Any, shapes: Iterable[tuple[int, int, int]]) -> float:
    """Best rate of (M, K) @ (N, K)ᵀ over `shapes`, (M, N, K), with operands from the tensor `values`, in TFLOP/s.

    Sizes that would take longer than 0.2 s in all are left out, all but the first. FP8 operands are multiplied with
    fast accumulation into bf16, as cuBLASLt's best is. Raises RuntimeError where there is no such product.
    """
    import torch

    spent_s = best = 0.0
    for m, n, k in shapes:
        flops = 2 * m * n * k
        if best and spent_s + RUNS * flops / best / 1e12 > PRODUCT_S:
            continue
        a, b = values[: m * k].view(m, k), values[m * k :][: n * k].view(n, k).t()
        if values.dtype == torch.float8_e4m3fn:
            one, kind = torch.ones((), device=values.device), torch.bfloat16
            out = torch.empty(m, n, device=values.device, dtype=kind)
            scaled = {"scale_a": one, "scale_b": one, "out_dtype": kind, "use_fast_accum": True}
            call = partial(torch._scaled_mm, a, b, **scaled, out=out)
        else:
            call = partial(torch.mm, a, b, out=torch.empty(m, n, device=values.device, dtype=values.dtype))
        call()  # loads its kernel before anything is held
        took_us = _best_us(device, [call])
        best, spent_s = max(best, flops / took_us / 1e6), spent_s + RUNS * took_us / 1e6
    return best
