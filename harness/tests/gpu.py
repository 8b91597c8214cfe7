"""Calls of the optimized norms, for tests that need a GPU."""

import torch

import optimized
from harness import compile_report, parity
from harness.cases import Case, family_of
from harness.guards import same_bits
from harness.implementations import on_path
from optimized import jit
from optimized.launch import chip

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
    here = chip(torch.device(DEVICE, torch.cuda.current_device()))
    planned, _ = compile_report.plans(cases, here)
    jit.build(map(compile_report.request, planned.values()), here.arch)
