"""Calls of the optimized norms, and kernels that are compiled ahead, for tests that need a GPU."""

import fcntl
import sys
from contextlib import contextmanager

import torch

import optimized
from harness import compile_report, parity
from harness.cases import Case, family_of
from harness.guards import same_bits
from harness.implementations import on_path
from optimized import jit
from optimized.launch import Launch, chip
from optimized.operands import Prepared

FUNCTIONS = ("layernorm_fwd", "rmsnorm_fwd", "layernorm_bwd", "rmsnorm_bwd", "rmsnorm_bwd_add")
DEVICE = "cuda"


def case_of(function, shape, dtype="bf16", **options):
    return Case(function, shape, dtype, options=tuple(options.items()))


def made(case, seed=0, values="normal", device=DEVICE):
    """Inputs of the case."""
    return family_of(case.function).make(case, device, seed, values)


def run(case, call, **options):
    """Results of the optimized function, on the path that the case names; `options` replace the call's."""
    with on_path(case):
        return getattr(optimized, case.function)(*call.args, **(call.kwargs | options))


def same(results, others):
    """Equal bit for bit, with None only where the other is None."""
    return all(one is None and other is None or one.shape == other.shape and same_bits(one, other)
               for one, other in zip(results, others, strict=True))


def assert_right(case, call, results):
    """Within the harness's tolerance of the float64 oracle."""
    assert parity.after(case, call, results) == ""


def compile_ahead(cases):
    """Every kernel that the cases need, on all cores: one by one they would take minutes."""
    planned, _ = compile_report.plans(cases, here())
    build(map(compile_report.request, planned.values()))


def compile_ahead_of(*calls):
    """Every kernel that the calls launch, in the same way: first they are made without a launch."""
    with not_launched() as requests:
        for call in calls:
            call()
    build(requests)


@contextmanager
def not_launched():
    """Within it calls of optimized launch nothing, and give what was in memory; -> (source, kernel) of each plan."""
    requests, kept = [], (Launch.__init__, Launch.__call__)
    prepared = [each for name, module in list(sys.modules.items()) if name.startswith("optimized.")
                for each in vars(module).values() if isinstance(each, Prepared)]
    Launch.__init__ = lambda self, plan, *_, **__: requests.append((plan.source, plan.kernel))
    Launch.__call__ = lambda self, *_: None
    try:
        for each in prepared:
            each.clear()
        yield requests
    finally:
        Launch.__init__, Launch.__call__ = kept
        for each in prepared:  # or their launches would come to nothing later, too
            each.clear()


def build(requests):
    """Compile, on all cores; one process at a time, so that the others find it compiled."""
    jit.CACHE.mkdir(parents=True, exist_ok=True)
    with open(jit.CACHE / "tests.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        jit.build(requests, here().arch)


def here():
    """The current GPU as plans see it."""
    return chip(torch.device(DEVICE, torch.cuda.current_device()))
