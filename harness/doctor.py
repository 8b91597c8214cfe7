"""`doctor`: what this GPU reaches, and whether its state suits a measurement."""

from rich.table import Table

from harness.environment import clocks, record
from harness.options import PROFILES
from harness.progress import open_console


def examine() -> int:
    """Warm the GPU up, measure its ceilings and print them; the exit code is 0."""
    import torch

    from harness.backend_gpu import Gpu

    console = open_console()
    if not torch.cuda.is_available():
        console.print(f"PyTorch {torch.__version__} cannot use the GPU.")
        return 3
    backend = Gpu(PROFILES["quick"])
    table = Table(title=backend.gpu, title_justify="left", box=None, show_header=False)
    found = backend.ceilings
    for name, value in (
        ("copy", f"{found.copy_tbs:.2f} TB/s"),
        ("read", f"{found.read_tbs:.2f} TB/s"),
        ("write", f"{found.write_tbs:.2f} TB/s"),
        ("bf16 product", f"{found.product_tflops:.0f} TFLOP/s"),
        ("event tick", f"{found.tick_us:.3f} µs"),
        *(clocks() or {}).items(),
        *record()["gpu"].items(),
    ):
        table.add_row(name, "unavailable" if value is None else str(value))
    console.print(table)
    return 0
