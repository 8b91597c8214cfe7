"""Backends on a real GPU whose `compiled` does harm: made in a worker, by name."""

from dataclasses import replace

import torch

from harness import case_server
from harness.implementations import IMPLEMENTATIONS
from harness.options import PROFILES


def _asserts(call):
    torch._assert_async(torch.zeros(1, device="cuda"))
    torch.cuda.synchronize()


def _sleeps(call):
    torch.cuda._sleep(1 << 45)
    torch.cuda.synchronize()


HARM = {"assert": _asserts, "sleep": _sleeps}


def make(harm, index):
    """The GPU with an implementation that takes the context with it, or that never ends."""
    bad = replace(IMPLEMENTATIONS["compiled"], available=lambda: None, prepare=lambda case, call: HARM[harm])
    IMPLEMENTATIONS["compiled"] = bad
    return case_server.gpu(PROFILES["quick"], index)
