"""Products with few rows of x on a GPU: every number of rows, odd sizes, tails of K, pitches, factors, graphs."""

import pytest
import torch

import optimized
from harness.tests.test_gemm_gpu import behind, pitched
from optimized.launch import Launch, chip
from optimized.matrices import of_forward
from optimized.operands import slot
from optimized.skinny_plan import Strips, skinny

pytestmark = pytest.mark.gpu

ROWS = range(1, 17)
SHAPES = [(1, 8), (15, 40), (129, 1), (300, 333), (3072, 3072), (1001, 2303), (517, 18432), (4099, 4104)]  # N x K
DTYPES = [torch.bfloat16, torch.float16]
SCALE = -0.75
NEAR = {torch.bfloat16: 2.0 ** -8, torch.float16: 2.0 ** -10, torch.float32: 1e-5}


def operands(m, n, k, dtype):
    """x, W and a residual in rows that begin on 16 bytes, NaN behind each."""
    torch.manual_seed(m + n + k)
    x, w, c = (torch.randn(size, device="cuda", dtype=torch.float64) for size in ((m, k), (n, k), (m, n)))
    return [pitched(each.to(dtype)) for each in (x, w * k ** -0.5, c)]


def is_near(found, exact):
    """Relative to the largest value, or to 1, which is what they are about."""
    return (found.double() - exact).abs().max() < NEAR[found.dtype] * exact.abs().max().clamp(min=1)


def path(x, w):
    return optimized.linear.plan_of("linear_fwd", x, w, chip=chip(x.device)).source


@pytest.mark.parametrize("m", ROWS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_right_and_the_same_every_time(m, dtype):
    for n, k in SHAPES:
        x, w, c = operands(m, n, k, dtype)
        assert path(x, w) == "gemm_skinny.cu"
        exact = x.double() @ w.double().T
        y, again = (optimized.linear_fwd(x, w) for _ in range(2))
        assert is_near(y, exact) and torch.equal(y, again)
        floats = optimized.linear_fwd(x, w, out_dtype=torch.float32)
        assert floats.dtype == torch.float32 and is_near(floats, exact) and torch.equal(floats.to(dtype), y)
        apart = optimized.linear_scale_add_fwd(x, w, c, SCALE, in_place=False)
        expected = c.double() + SCALE * exact
        output = optimized.linear_scale_add_fwd(x, w, c, SCALE)
        assert output is c and is_near(c, expected) and torch.equal(apart, c)
        assert behind(c).isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n, k", [(1001, 2303), (3072, 3072)])
def test_a_row_does_not_depend_on_the_others(n, k, dtype):
    x, w, _ = operands(16, n, k, dtype)
    whole = optimized.linear_fwd(x, w)
    for m in ROWS:
        assert torch.equal(optimized.linear_fwd(x[:m], w), whole[:m])
        assert torch.equal(optimized.linear_fwd(x[m - 1:m], w), whole[m - 1:m])
    spoiled = pitched(x)
    spoiled[3] = float("nan")
    found = optimized.linear_fwd(spoiled, w)
    others = [row for row in range(16) if row != 3]
    assert found[3].isnan().all() and torch.equal(found[others], whole[others])


@pytest.mark.parametrize("m", [1, 5, 16])
@pytest.mark.parametrize("pitch", [301, 302, 304])
@pytest.mark.parametrize("skipped", [0, 1, 2])
def test_residuals_of_any_pitch_and_alignment(m, pitch, skipped):
    x, w, start = operands(m, 300, 1003, torch.bfloat16)
    memory = torch.full((skipped + m * pitch,), float("nan"), device="cuda", dtype=torch.bfloat16)
    c = memory.as_strided((m, 300), (pitch, 1), skipped).copy_(start)
    expected = start.double() + SCALE * x.double() @ w.double().T
    optimized.linear_scale_add_fwd(x, w, c, SCALE)
    assert is_near(c, expected)
    c.fill_(float("nan"))
    assert memory.isnan().all(), "nothing beside D was written"


@pytest.mark.parametrize("m", [1, 16])
def test_no_elements_of_k(m):
    x, w, c = (torch.randn(size, device="cuda", dtype=torch.bfloat16) for size in ((m, 0), (33, 0), (m, 33)))
    assert torch.equal(optimized.linear_fwd(x, w), torch.zeros_like(c))
    assert torch.equal(optimized.linear_scale_add_fwd(x, w, c, SCALE, in_place=False), c)


@pytest.mark.parametrize("m", [3, 12])
def test_a_factor_in_device_memory(m):
    x, w, _ = operands(m, 515, 1027, torch.bfloat16)
    device, d = torch.device("cuda", torch.cuda.current_device()), torch.full((m, 515), float("nan"), device="cuda")
    product = of_forward(x, w, None, False, torch.float32)
    strips = Strips(product.product(True))
    launch = Launch(skinny(strips, chip(device)), device, 6, product.scalars(strips))
    factor = torch.tensor([-3.5], device="cuda")
    launch(x.data_ptr(), w.data_ptr(), 0, d.data_ptr(), factor.data_ptr(), slot(SCALE))
    assert is_near(d, -3.5 * SCALE * x.double() @ w.double().T)


def test_a_chain_of_layers_in_a_graph_waits_for_each_other():
    """Kernels come before those in front have ended: what they read must have been written."""
    x, w, c = operands(4, 2048, 2048, torch.bfloat16)
    optimized.linear_scale_add_fwd(x, w, c.clone(), 0.5)

    def chain(x):
        for _ in range(20):
            x = optimized.linear_scale_add_fwd(x, w, c, 0.5, in_place=False)
        return x

    expected, graph = chain(x), torch.cuda.CUDAGraph()
    slow = x
    for _ in range(20):
        torch.cuda.synchronize()
        slow = optimized.linear_scale_add_fwd(slow, w, c, 0.5, in_place=False)
    with torch.cuda.graph(graph):
        y = chain(x)
    for _ in range(5):
        y.fill_(float("nan"))
        graph.replay()
        assert torch.equal(y, expected) and torch.equal(slow, expected)
