"""Every product kernel of Hopper on a GPU: forced tiles on results of one tile, of ragged edges and of several rounds."""

import functools

import pytest
import torch

import optimized
from optimized import gemm, products
from optimized.gemm_plan import TILES
from optimized.matrices import of_backward, of_forward
from optimized.operands import Prepared, slot

pytestmark = pytest.mark.gpu

SHAPES = [(8, 136, 200), (128, 256, 64), (700, 1000, 520), (2000, 4104, 328), (3000, 5128, 1000)]
FORCED = [(way, results, tile) for (way, results), tiles in TILES.items() for tile in tiles]
SCALE = -0.75


def operands(m, n, k, dtype):
    torch.manual_seed(m + n + k)
    return [torch.randn(size, device="cuda", dtype=dtype) for size in ((m, k), (n, k), (m, n))]


def relative(found, exact):
    return ((found.double() - exact).abs().max() / exact.abs().max()).item()


def forward(launch, x, w, c, d):
    launch(x.data_ptr(), w.data_ptr(), 0 if c is None else c.data_ptr(), d.data_ptr(), 0, slot(SCALE))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("way, results, tile", FORCED, ids=str)
def test_forced_tiles(way, results, tile, shape, dtype):
    (x, w, dy), device = operands(*shape, dtype), torch.device("cuda", torch.cuda.current_device())
    exact_x, exact_w, exact_dy = x.double(), w.double(), dy.double()
    if way == "Forward":
        c = dy if results == "ScaleAdds" else None
        out = torch.float32 if results == "Floats" else dtype
        with gemm.forced_tile(tile):
            launch = gemm.launch((of_forward(x, w, c, False, out),), device)
        found = []
        for _ in range(3):
            found.append((torch.full_like(dy, float("nan"), dtype=out),))
            forward(launch, x, w, c, found[-1][0])
        expected = (SCALE * exact_x @ exact_w.T + (0 if c is None else exact_dy),)
    else:
        kind = torch.float32 if results == "Floats" else dtype
        adds = results != "Stores"
        start = torch.ones(w.shape, device="cuda", dtype=kind)
        with gemm.forced_tile(tile):
            launch = gemm.launch(of_backward((dy, x, w, start), (True, True, adds)), device)
        found = []
        for _ in range(3):
            dx, dw = torch.full_like(x, float("nan")), start.clone() if adds else torch.full_like(start, float("nan"))
            launch(dy.data_ptr(), w.data_ptr(), 0, dx.data_ptr(), 0, slot(SCALE),
                   dy.data_ptr(), x.data_ptr(), dw.data_ptr() if adds else 0, dw.data_ptr(), 0, slot(SCALE))
            found.append((dx, dw))
        expected = SCALE * exact_dy @ exact_w, SCALE * exact_dy.T @ exact_x + adds
    for one, exact in zip(found[0], expected):
        assert relative(one, exact) < 2.0 ** -8
    for again in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], again))


@pytest.mark.parametrize("factor", [1.0, -3.5])
def test_a_factor_in_device_memory(factor):
    x, w, _ = operands(300, 512, 256, torch.bfloat16)
    d, device = torch.empty(300, 512, device="cuda", dtype=x.dtype), torch.device("cuda", torch.cuda.current_device())
    there = torch.tensor([factor], device="cuda")
    launch = gemm.launch((of_forward(x, w, None, False, None),), device)
    launch(x.data_ptr(), w.data_ptr(), 0, d.data_ptr(), there.data_ptr(), slot(SCALE))
    assert relative(d, factor * SCALE * x.double() @ w.double().T) < 2.0 ** -8


@pytest.mark.parametrize("shape", [(1000, 4104, 4104), (100, 3072, 6144)], ids=str)
def test_the_first_call_may_be_captured(shape, monkeypatch):
    """The list of work is there before the graph runs, and outlives what is remembered of the call."""
    x, w, _ = operands(*shape, torch.bfloat16)
    expected = optimized.linear_fwd(x, w)
    monkeypatch.setattr(products, "_prepared", Prepared())
    monkeypatch.setattr(gemm, "_items", functools.cache(gemm._items.__wrapped__))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = optimized.linear_fwd(x, w)
    monkeypatch.setattr(products, "_prepared", Prepared())
    torch.cuda.empty_cache()
    graph.replay()
    assert torch.equal(y, expected)
