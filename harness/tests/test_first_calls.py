"""The first calls of a process, in which kernels are loaded."""

import subprocess
import sys

import pytest

from harness.environment import ROOT

FIRST_CALLS = """
import torch, optimized
from reference.quantizers import Float8CurrentScalingQuantizer
x, w = (torch.randn(size, 512, device="cuda").bfloat16() for size in (300, 256))
def step():
    y, _, rsigma = optimized.rmsnorm_fwd(x, w[0], 1e-5)
    product = optimized.linear_fwd(y, w)
    return y, product, *optimized.rmsnorm_bwd(y, x, rsigma, w[0]), *optimized.linear_bwd(product, y, w), \
        optimized.quantize(y, Float8CurrentScalingQuantizer()).rowwise_data
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    captured = step()
graph.replay()
assert all(torch.equal(one.view(torch.uint8), other.view(torch.uint8)) for one, other in zip(captured, step()))
"""


@pytest.mark.gpu
def test_the_first_calls_of_a_process_may_be_captured():
    """What loads kernels is no part of the graph."""
    found = subprocess.run([sys.executable, "-c", FIRST_CALLS], capture_output=True, text=True, cwd=ROOT)
    assert found.returncode == 0, found.stderr
