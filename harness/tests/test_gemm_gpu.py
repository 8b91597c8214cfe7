"""Every product kernel of Hopper on a GPU: forced tiles on results of one tile, ragged edges and several rounds."""

import pytest
import torch

import optimized
from optimized import gemm, products
from optimized.gemm_tiles import TILES
from optimized.launch import chip
from optimized.matrices import of_backward, of_forward
from optimized.operands import Prepared, slot

pytestmark = pytest.mark.gpu

SHAPES = [(8, 136, 200), (128, 256, 64), (129, 520, 136), (700, 1000, 520), (2000, 4104, 328), (3000, 5128, 1000)]
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
        out = torch.float32 if results == "FloatResults" else dtype
        with gemm.forced_tile(tile):
            launch = gemm.launch((of_forward(x, w, c, False, out),), device)
        found = []
        for _ in range(3):
            found.append((torch.full_like(dy, float("nan"), dtype=out),))
            forward(launch, x, w, c, found[-1][0])
        expected = (SCALE * exact_x @ exact_w.T + (0 if c is None else exact_dy),)
    else:
        kind = torch.float32 if results == "FloatResults" else dtype
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


def pitched(values):
    """In rows that begin on 16 bytes and end between them, with NaN behind each."""
    rows, cols = values.shape
    room = torch.full((rows, -(-cols // 8) * 8 + 8), float("nan"), device=values.device, dtype=values.dtype)
    return room[:, :cols].copy_(values)


def behind(view):
    """What lies behind the rows of a pitched matrix."""
    return view.as_strided((view.shape[0], view.stride(0) - view.shape[1]), view.stride(), view.shape[1])


@pytest.mark.parametrize("tile", TILES["Forward", "ScaleAdds"], ids=lambda tile: tile.name)
@pytest.mark.parametrize("shape", [(700, 1008, 517), (300, 264, 201), (333, 4104, 1003), (3000, 1000, 65)], ids=str)
def test_rows_that_end_between_units(tile, shape, monkeypatch):
    """Neither is what lies behind them read, nor is it written."""
    multiplied_in_pitched_rows(shape, "gemm.cu", monkeypatch, tile)


@pytest.mark.parametrize("shape", [(5000, 1003, 517), (3000, 2573, 201), (333, 9004, 1003), (3000, 3001, 65)], ids=str)
def test_results_whose_rows_end_between_units(shape, monkeypatch):
    """The copy engine would fill the last unit up with zeros."""
    multiplied_in_pitched_rows(shape, "gemm_general.cu", monkeypatch)


def multiplied_in_pitched_rows(shape, source, monkeypatch, tile=None):
    monkeypatch.setattr(products, "_prepared", Prepared())
    x, w, c = (pitched(each) for each in operands(*shape, torch.bfloat16))
    exact = c.double() + SCALE * x.double() @ w.double().T
    with gemm.forced_tile(tile):
        assert optimized.fused.plan_of("linear_scale_add_fwd", x, w, c, SCALE, chip=chip(x.device)).source == source
        optimized.linear_scale_add_fwd(x, w, c, SCALE)
    assert relative(c, exact) < 2.0 ** -8 and behind(c).isnan().all()


@pytest.mark.parametrize("tile", TILES["Backward", "FloatResults"], ids=lambda tile: tile.name)
@pytest.mark.parametrize("accumulates", [True, False])
@pytest.mark.parametrize("k", [520, 518])
def test_gradients_of_rows_that_end_between_units(tile, accumulates, k, monkeypatch):
    monkeypatch.setattr(products, "_prepared", Prepared())
    x, w, dy = (pitched(each) for each in operands(700, 1003, k, torch.bfloat16))
    start = torch.ones(w.shape, device="cuda") if accumulates else torch.full(w.shape, float("nan"), device="cuda")
    buffer = pitched(start)
    with gemm.forced_tile(tile):
        dx, dw = optimized.linear_scale_bwd(dy, x, w, SCALE, grad_weight=buffer,
                                            accumulate_into_grad_weight=accumulates)
    assert relative(dx, SCALE * dy.double() @ w.double()) < 2.0 ** -8
    assert relative(dw, SCALE * dy.double().T @ x.double() + accumulates) < 2.0 ** -8 and behind(dw).isnan().all()


@pytest.mark.parametrize("factor", [1.0, -3.5])
def test_a_factor_in_device_memory(factor):
    x, w, _ = operands(300, 512, 256, torch.bfloat16)
    d, device = torch.empty(300, 512, device="cuda", dtype=x.dtype), torch.device("cuda", torch.cuda.current_device())
    there = torch.tensor([factor], device="cuda")
    launch = gemm.launch((of_forward(x, w, None, False, None),), device)
    launch(x.data_ptr(), w.data_ptr(), 0, d.data_ptr(), there.data_ptr(), slot(SCALE))
    assert relative(d, factor * SCALE * x.double() @ w.double().T) < 2.0 ** -8


def test_the_first_call_may_be_captured(monkeypatch):
    """The list of work is there before the graph runs, and outlives what is remembered of the call."""
    x, w, _ = operands(1000, 4104, 4104, torch.bfloat16)
    expected = optimized.linear_fwd(x, w)
    monkeypatch.setattr(products, "_prepared", Prepared())
    monkeypatch.setattr(gemm, "_lists", {})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = optimized.linear_fwd(x, w)
    monkeypatch.setattr(products, "_prepared", Prepared())
    torch.cuda.empty_cache()
    graph.replay()
    assert torch.equal(y, expected)


def test_many_first_calls_may_be_captured(monkeypatch):
    """Each with a list of its own: more than there are streams in the pool, of which the graph has one."""
    x, w, _ = operands(41 * 256, 1024, 1024, torch.bfloat16)
    given, tile, graph = [x[:256 * i] for i in range(2, 42)], TILES["Forward", "Stores"][0], torch.cuda.CUDAGraph()
    monkeypatch.setattr(products, "_prepared", Prepared())
    monkeypatch.setattr(gemm, "_lists", {})
    with gemm.forced_tile(tile), torch.cuda.graph(graph):
        results = [optimized.linear_fwd(each, w) for each in given]
    assert len(gemm._lists) == len(given)
    monkeypatch.setattr(products, "_prepared", Prepared())
    with gemm.forced_tile(tile):
        expected = [optimized.linear_fwd(each, w) for each in given]
    graph.replay()
    assert all(map(torch.equal, results, expected))
