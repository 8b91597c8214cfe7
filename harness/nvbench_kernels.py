"""What is compared with NVBench on a GPU: ten kernels from about 4 to 300 µs, and the engine's two devices."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any

import torch
from cuda.bindings import driver

from harness import rotation
from harness.cases import Call, Case, family_of
from harness.device import Cuda, capture
from harness.implementations import IMPLEMENTATIONS
from harness.nvbench import Engine, Kernel

CASES = (
    ("copy", Case("rmsnorm_fwd", (512, 2048))),
    ("copy", Case("rmsnorm_fwd", (8192, 8192))),
    ("optimized", Case("rmsnorm_fwd", (1024, 2048))),
    ("optimized", Case("rmsnorm_fwd", (4096, 8192))),
    ("optimized", Case("layernorm_fwd", (4096, 4096))),
    ("optimized", Case("layernorm_fwd", (16384, 8192))),
    ("optimized", Case("rmsnorm_bwd", (4096, 4096))),
    ("optimized", Case("layernorm_bwd", (16384, 8192))),
    ("optimized", Case("rmsnorm_bwd_add", (16384, 8192))),
)
PRODUCT = 4096


class LikeNvbench(Cuda):
    """Before each hold L2 is written over, as many bytes as it has, and the GPU idles; within it nothing is flushed."""

    def __init__(self) -> None:
        super().__init__()
        self._written = torch.empty(self.l2_bytes, dtype=torch.uint8, device="cuda")

    def hold(self) -> None:
        """Flush, wait, and occupy the stream until `release`."""
        stream = torch.cuda.current_stream().cuda_stream
        error, = driver.cuMemsetD8Async(self._written.data_ptr(), 0, self.l2_bytes, stream)
        if error:
            raise RuntimeError(f"CUDA driver: {error.name}")
        self.wait()
        super().hold()

    def flush(self) -> None:
        """Done before the hold."""


@cache
def _stream(address: int) -> torch.cuda.ExternalStream:
    return torch.cuda.ExternalStream(address)


def _on(address: int) -> AbstractContextManager:
    return torch.cuda.stream(_stream(address))


def engine() -> Engine:
    """The engine on the first GPU."""
    return Engine(Cuda(), LikeNvbench(), capture, _on)


def kernels() -> dict[str, Callable[[], Kernel]]:
    """Name -> what makes the kernel."""
    named = {f"{name} {case.name}": partial(_of_case, name, case) for name, case in CASES}
    return named | {f"product {PRODUCT}x{PRODUCT}x{PRODUCT} bf16": _product}


def _of_case(name: str, case: Case) -> Kernel:
    call = family_of(case.function).make(case, "cuda", 0)
    run = IMPLEMENTATIONS[name].prepare(case, call)
    return _rotating(family_of(case.function).work(case).bytes, run, call)


def _product() -> Kernel:
    """Of ones: random operands draw so much power that the clock falls within milliseconds, and then the two would
    compare how long each had kept the GPU busy."""
    a, b = (torch.ones(PRODUCT, PRODUCT, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return _rotating(3 * a.nbytes, lambda call: torch.mm(*call.args, out=out), Call((a, b), {}))


def _rotating(size: int, run: Callable[[Call], Any], call: Call) -> Kernel:
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    return Kernel(size, [partial(run, one) for one in rotation.inputs(call, size, l2_bytes)])
