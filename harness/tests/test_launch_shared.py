"""Launches of one kernel with more and with less dynamic shared memory."""

import pytest
import torch

from harness import compile_report
from harness.tests.gpu import assert_right, case_of, here, made, run
from optimized import launch
from optimized.plan import H200, Plan

TURNS = [("layernorm_fwd", 20_480, 16_384), ("rmsnorm_bwd", 12_288, 10_240)]  # function, wide, narrow


def plans_of(function, *widths, chip):
    cases = [case_of(function, (40, hidden)) for hidden in widths]
    planned, _ = compile_report.plans(cases, chip)
    return [planned[case] for case in cases]


@pytest.mark.parametrize("function, wide, narrow", TURNS)
def test_widths_share_a_kernel(function, wide, narrow):
    more, less = plans_of(function, wide, narrow, chip=H200)
    assert more.kernel == less.kernel and more.shared_bytes > less.shared_bytes > 0


def test_what_was_allowed_stays_allowed(monkeypatch):
    """A launch that needs more may be an older one."""
    asked = []
    monkeypatch.setattr(launch, "_allowed", {})
    monkeypatch.setattr(launch.driver, "cuDeviceGet", lambda index: (0, index))
    monkeypatch.setattr(launch.driver, "cuKernelSetAttribute", lambda _, value, *at: asked.append((value, *at)) or (0,))
    for kernel, index, needed in ((7, 0, 0), (7, 0, 4000), (7, 0, 900), (7, 0, 9000), (8, 0, 900), (7, 1, 900)):
        plan = Plan("a.cu", "a", "a", 1, 32, shared_bytes=needed)
        launch._allow(kernel, plan, torch.device("cuda", index))
    assert asked == [(4000, 7, 0), (9000, 7, 0), (900, 8, 0), (900, 7, 1)]
    for cluster in (8, 16, 16, 8):
        launch._allow(7, Plan("a.cu", "a", "a", 16, 32, cluster), torch.device("cuda", 0))
    assert asked[4:] == [(1, 7, 0)], "clusters of more than eight CTAs need leave, once"


@pytest.mark.gpu
@pytest.mark.parametrize("function, wide, narrow", TURNS)
def test_widths_take_turns(function, wide, narrow):
    """Prepared once each."""
    more, less = plans_of(function, wide, narrow, chip=here())
    assert more.kernel == less.kernel and more.shared_bytes > less.shared_bytes
    for hidden in (wide, narrow, wide):
        case = case_of(function, (40, hidden))
        call = made(case)
        assert_right(case, call, run(case, call))
