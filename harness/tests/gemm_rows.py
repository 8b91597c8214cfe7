"""What products with some rows of x are tried with on a GPU, whichever kernel they take."""

import torch

import optimized
from harness.tests.gpu import here
from harness.tests.test_gemm_gpu import behind, pitched

DTYPES = [torch.bfloat16, torch.float16]
SCALE = -0.75
NEAR = {torch.bfloat16: 2.0 ** -8, torch.float16: 2.0 ** -10}


def operands(m, n, k, dtype):
    """x, W and a residual in rows that begin on 16 bytes, NaN behind each."""
    torch.manual_seed(m + n + k)
    x, w, c = (torch.randn(size, device="cuda", dtype=torch.float64) for size in ((m, k), (n, k), (m, n)))
    return [pitched(each.to(dtype)) for each in (x, w * k ** -0.5, c)]


def is_near(found, exact, floats=1e-5):
    """Relative to the largest value, or to 1, which is what they are about. `floats`: how near float32 must be."""
    near = NEAR.get(found.dtype, floats)
    return (found.double() - exact).abs().max() < near * exact.abs().max().clamp(min=1)


def assert_functions_are_right(source, x, w, c, floats=1e-5):
    """By the kernel in `source`, and the same every time."""
    assert optimized.linear.plan_of("linear_fwd", x, w, chip=here()).source == source
    exact = x.double() @ w.double().T
    y, again = (optimized.linear_fwd(x, w) for _ in range(2))
    assert is_near(y, exact) and torch.equal(y, again)
    found = optimized.linear_fwd(x, w, out_dtype=torch.float32)
    assert found.dtype == torch.float32 and is_near(found, exact, floats) and torch.equal(found.to(x.dtype), y)
    expected = c.double() + SCALE * exact
    apart = optimized.linear_scale_add_fwd(x, w, c, SCALE, in_place=False)
    output = optimized.linear_scale_add_fwd(x, w, c, SCALE)
    assert output is c and is_near(c, expected) and torch.equal(apart, c)
    assert behind(c).isnan().all()


def assert_others_are_not_spoiled(x, w, row):
    """By NaN in one row of x."""
    whole, spoiled = optimized.linear_fwd(x, w), pitched(x)
    spoiled[row] = float("nan")
    found = optimized.linear_fwd(spoiled, w)
    others = [each for each in range(len(x)) if each != row]
    assert found[row].isnan().all() and torch.equal(found[others], whole[others])


def assert_rows_do_not_depend_on_how_many_there_are(n, k, dtype, most=16):
    x, w, _ = operands(most, n, k, dtype)
    whole = optimized.linear_fwd(x, w)
    for m in range(1, most + 1):
        assert torch.equal(optimized.linear_fwd(x[:m], w), whole[:m])
        assert torch.equal(optimized.linear_fwd(x[m - 1:m], w), whole[m - 1:m])


def assert_residual_is_added(source, m, pitch, skipped):
    """To D where it lies, in rows `pitch` elements apart, `skipped` elements into memory; nothing else is written."""
    x, w, start = operands(m, 300, 1003, torch.bfloat16)
    memory = torch.full((skipped + m * pitch,), float("nan"), device="cuda", dtype=torch.bfloat16)
    c = memory.as_strided((m, 300), (pitch, 1), skipped).copy_(start)
    assert optimized.fused.plan_of("linear_scale_add_fwd", x, w, c, SCALE, chip=here()).source == source
    optimized.linear_scale_add_fwd(x, w, c, SCALE)
    assert is_near(c, start.double() + SCALE * x.double() @ w.double().T)
    c.fill_(float("nan"))
    assert memory.isnan().all(), "nothing beside D was written"


def assert_a_chain_waits(m, before_capture=lambda: None):
    """20 layers behind each other, in a graph: kernels come before those in front have ended, and what they read must
    have been written."""
    x, w, c = operands(m, 2048, 2048, torch.bfloat16)

    def chain(x, between=lambda: None):
        for _ in range(20):
            between()
            x = optimized.linear_scale_add_fwd(x, w, c, 0.5, in_place=False)
        return x

    expected, slow, graph = chain(x), chain(x, torch.cuda.synchronize), torch.cuda.CUDAGraph()
    before_capture()
    with torch.cuda.graph(graph):
        y = chain(x)
    for _ in range(5):
        y.fill_(float("nan"))
        graph.replay()
        assert torch.equal(y, expected) and torch.equal(slow, expected)
