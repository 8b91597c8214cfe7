"""What can be run for a case: one name, one way to find out whether it is there, one way to prepare it.

More implementations are more entries of IMPLEMENTATIONS; nothing else in the harness knows their names.
"""

import importlib.util
import itertools
import os
import shutil
import sysconfig
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch

import reference
from harness import pipelines, rivals
from harness.cases import PIPELINES, Call, Case, family_of
from harness.cases.base import IN_TWO

ROTATION_BYTES = 256 << 20
"""A copy goes through this much memory before it touches the same bytes again: more than any L2 holds."""

ALIGNMENT = 256
"""Of sources and targets of a copy, in bytes; what an allocator gives."""

KERNELS = Path(__file__).parent / "kernels"


@dataclass(frozen=True)
class Implementation:
    """One way to compute, or to be compared with.

    `available()` says why it cannot run here, or None; `prepare(case, call)` gives what is timed: a function
    of a call that returns the results. `checked` is False where there are no results to compare, `twin` where they
    need not be the reference's to the bit: a compiler may divide and round in its own way. `functions`: those that it
    computes, None for all.
    """

    name: str
    available: Callable[[], str | None]
    prepare: Callable[[Case, Call], Callable[[Call], tuple]]
    checked: bool = True
    twin: bool = True
    functions: tuple[str, ...] | None = None


def _always() -> str | None:
    return None


def _compiler_missing() -> str | None:
    """What torch.compile lacks: it builds C++ on a CPU, Triton kernels and their launchers in C on a GPU."""
    if torch.cuda.is_available():
        if importlib.util.find_spec("triton") is None:
            return "torch.compile needs Triton, which is not installed"
        compilers = [os.environ.get("CC"), "gcc", "clang", "cc"]
    else:
        compilers = [os.environ.get("CXX") or "g++"]
    if not any(shutil.which(compiler) for compiler in compilers if compiler):
        return f"torch.compile needs a compiler; not found: {', '.join(filter(None, compilers))}"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "torch.compile needs Python.h, which is not installed"
    return None


def _cuda_missing() -> str | None:
    return None if torch.cuda.is_available() else "no CUDA GPU was found"


def _gpu_missing() -> str | None:
    if missing := _cuda_missing():
        return missing
    if importlib.util.find_spec("cuda.core") is None:
        return "cuda-python, with its cuda.core, is not installed"
    return None


def _caller(function: Callable) -> Callable[[Call], tuple]:
    def run(call: Call) -> tuple:
        return function(*call.args, **call.kwargs)

    return run


def _reference(case: Case, call: Call) -> Callable[[Call], tuple]:
    return _caller(pipelines.named(reference, case.function))


def _optimized(case: Case, call: Call) -> Callable[[Call], tuple]:
    import optimized
    run = _caller(pipelines.named(optimized, case.function))
    if case.option("path") is None:
        return run

    def run_on_path(call: Call) -> tuple:
        with on_path(case):
            return run(call)

    return run_on_path


def on_path(case: Case) -> AbstractContextManager:
    """What forces the path of a norm that the case names, if any."""
    if case.option("path") is None:
        return nullcontext()
    from optimized.normalization import Path as NormPath, forced_path
    path = case.option("path")
    return forced_path(NormPath(path.removesuffix(IN_TWO)), in_two=path.endswith(IN_TWO))


def _compiled(case: Case, call: Call) -> Callable[[Call], tuple]:
    """The reference compiled for the shapes of this case alone; compiled before it is returned.

    It rounds where the reference does: left to itself, Inductor keeps in float32 what it fuses. Earlier compilations
    are forgotten first: past a number of shapes, torch would run the function uncompiled. Of a pipeline it is the block
    as PyTorch has it, left to itself.
    """
    if case.function in PIPELINES:
        return _caller(pipelines.function_of("compiled"))
    torch.compiler.reset()
    rounded = {"emulate_precision_casts": True}
    run = _caller(torch.compile(getattr(reference, case.function), dynamic=False, options=rounded))
    run(call)
    return run


def _cublas(case: Case, call: Call) -> Callable[[Call], tuple]:
    return rivals.cublas(case)


def _unfused(case: Case, call: Call) -> Callable[[Call], tuple]:
    if case.function in PIPELINES:
        return _caller(pipelines.function_of("unfused"))
    return rivals.unfused(case)


def _eager(case: Case, call: Call) -> Callable[[Call], tuple]:
    return _caller(pipelines.function_of("eager"))


def _copy(case: Case, call: Call) -> Callable[[Call], tuple]:
    """A copy of half the case's bytes: read and written, they are as many as the case reads and writes."""
    half, device = family_of(case.function).work(case).bytes // 2, call.tensors()[0].device
    size = -(-half // ALIGNMENT) * ALIGNMENT
    sources = torch.randint(256, (_pairs(size, device), size), dtype=torch.uint8, device=device)
    turns = itertools.cycle(zip(sources, torch.empty_like(sources)))
    copy = _torch_copy if device.type == "cpu" else _copy_kernel(size, device)

    def run(call: Call) -> tuple:
        source, target = next(turns)
        copy(source, target)
        return (target,)

    return run


def _torch_copy(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source)


def _copy_kernel(size: int, device: torch.device) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """kernels/copy.cu: copy_ of a dense tensor is a memcpy, whose speed jumps with sizes and alignments."""
    from optimized.launch import Launch
    from optimized.plan import Plan

    units, threads = size // 16, 256
    plan = Plan(str(KERNELS / "copy.cu"), f"copy<{threads}>", "copy", max(1, -(-units // threads)), threads)
    launch = Launch(plan, device, 2, (numpy.int64(units),))
    return lambda source, target: launch(source.data_ptr(), target.data_ptr())


def _pairs(size: int, device: torch.device) -> int:
    """How many sources and targets of `size` bytes outgrow the L2 cache; 64 at most, as the inputs rotate."""
    return 1 if device.type == "cpu" else min(1 + ROTATION_BYTES // max(2 * size, 1), 64)


IMPLEMENTATIONS = {each.name: each for each in (
    Implementation("reference", _always, _reference),
    Implementation("compiled", _compiler_missing, _compiled, twin=False),
    Implementation("optimized", _gpu_missing, _optimized),
    Implementation("cublas", _cuda_missing, _cublas, twin=False, functions=tuple(rivals.CUBLAS)),
    Implementation("unfused", _cuda_missing, _unfused, twin=False, functions=(*rivals.UNFUSED, *PIPELINES)),
    Implementation("eager", _always, _eager, twin=False, functions=PIPELINES),
    Implementation("copy", _always, _copy, checked=False),
)}
"""Name -> implementation, in the order of tables."""


def suited(case: Case, names: Sequence[str], asked: bool) -> list[str]:
    """Those of the implementations that compute the function of the case.

    Unless it is `asked` for, what multiplies matrices in float32 is not timed beside cuBLAS: the reference proves what
    is right, and would take most of a run. Nor is a copy of what products read and write: it is not what limits them.
    """
    found = [name for name in names if (of := IMPLEMENTATIONS[name].functions) is None or case.function in of]
    left = () if asked or "cublas" not in found else ("reference", "compiled", "copy")
    if case.function in PIPELINES and not asked:
        left = ("reference", "copy")
    return [name for name in found if name not in left]
