"""What products hand to the driver, on the CPU: which module does them, boxes of the copy engine, scalars."""

from itertools import product as combinations
from types import SimpleNamespace

import pytest
import torch

import optimized
from optimized import few, few_plan, gemm, gemm_plan, products
from optimized.gemm_tiles import TILES
from optimized.linear_plan import DEPTH
from optimized.matrices import of_backward, of_forward
from optimized.plan import H200

DEVICE = torch.device("cpu")


@pytest.fixture
def made(monkeypatch):
    """Launches as what they are made of: maps, each (shape of the matrix, box), and scalars."""
    class Maps(SimpleNamespace):
        def __init__(self, encoded, sources, rest):
            super().__init__(encoded=encoded, sources=sources)

    def launch(plan, device, pointers, scalars, maps):
        return SimpleNamespace(plan=plan, scalars=[scalar.item() for scalar in scalars], maps=maps)

    def of_matrix(matrix, box, row_bytes):
        return (matrix.rows, matrix.cols), box

    monkeypatch.setattr("optimized.tma.of_matrix", of_matrix)
    monkeypatch.setattr("optimized.tma.Maps", Maps)
    monkeypatch.setattr(gemm, "_items", lambda *_: torch.zeros(1))
    for module in (gemm, few):
        monkeypatch.setattr(module, "Launch", launch)
        monkeypatch.setattr(module, "make_current", lambda device: None)
        monkeypatch.setattr(module, "chip", lambda device: H200)
    return launch


def operands(m, n, k):
    return [torch.empty(size, dtype=torch.bfloat16) for size in ((m, k), (n, k), (m, n))]


@pytest.mark.parametrize("tile", TILES["Forward", "ScaleAdds"], ids=lambda tile: tile.name)
@pytest.mark.parametrize("m, n", [(384, 1280), (385, 1288), (129, 8), (1000, 4104)])
def test_boxes_do_not_reach_beyond_the_operands(tile, m, n, made):
    x, w, c = operands(m, n, 200)
    with gemm.forced_tile(tile):
        launch = gemm.launch((of_forward(x, w, c, False, None),), DEVICE)
    a, b, residual, d, a_edge, b_edge = launch.maps.encoded[:6]
    half_a, half_b = tile.rows // 2, tile.cols // 2
    assert residual == d == ((m, n), (32, 64) if tile.across else (64, 32))
    rows, cols, sources = (n, m, (1, 0)) if tile.across else (m, n, (0, 1))
    assert (a, b) == (((rows, 200), (half_a, DEPTH)), ((cols, 200), (half_b, DEPTH)))
    assert a_edge == (((rows, 200), (rows % half_a, DEPTH)) if rows % half_a else None)
    assert b_edge == (((cols, 200), (cols % half_b, DEPTH)) if cols % half_b else None)
    assert launch.maps.sources[:6] == (*sources, 2, 3, *sources) and launch.maps.encoded[6:] == (None,) * 6
    assert launch.scalars[-4:] == [rows, 0, cols, 0] and launch.plan.shared_bytes == tile.shared_bytes


def test_operands_that_lie_across_have_no_edges(made):
    m, n, k = 1000, 1288, 1032
    x, w, dy = operands(m, n, k)
    tile = TILES["Backward", "Stores"][0]
    with gemm.forced_tile(tile):
        launch = gemm.launch(of_backward((dy, x, w, None), (True, True, False)), DEVICE)
    first, second = launch.maps.encoded[:6], launch.maps.encoded[6:]
    assert first[:2] == (((m, n), (tile.rows // 2, DEPTH)), ((n, k), (32, 64)))
    assert first[4:] == (((m, n), (m % (tile.rows // 2), DEPTH)), None)
    assert second[:2] == (((m, n), (32, 64)), ((m, k), (32, 64))) and second[4:] == (None, None)
    assert launch.maps.sources == (0, 1, 2, 3, 0, 1, 6, 7, 8, 9, 6, 7) and launch.scalars[-4] == m


@pytest.mark.parametrize("m, height, cluster, across, width", [
    (1, 40, 1, 1, 1), (100, 48, 2, 1, 100), (200, 104, 4, 1, 200), (257, 48, 2, 2, 136), (1000, 64, 1, 4, 256)])
def test_boxes_of_few_rows(m, height, cluster, across, width, made):
    x, w, _ = operands(m, 1000, 520)
    product = of_forward(x, w, None, False, None)
    cut = few_plan.Cut(product.product(True), height, cluster, across)
    launch = few.launch((product,), DEVICE, cut)
    assert launch.maps.encoded == (((m, 520), (width, DEPTH)), ((1000, 520), (height, DEPTH)))
    assert launch.maps.sources == (0, 1) and launch.scalars[-4:] == [launch.plan.stages, height, width, across]


def test_a_list_of_work_goes_by_no_stream_that_is_captured(monkeypatch):
    """PyTorch gives streams by turns, and that of a graph is one of them."""
    states = gemm.driver.CUstreamCaptureStatus
    turns, captured = iter(range(9)), {0: states.CU_STREAM_CAPTURE_STATUS_ACTIVE,
                                       1: states.CU_STREAM_CAPTURE_STATUS_INVALIDATED}
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(cuda_stream=next(turns)))
    monkeypatch.setattr(gemm.driver, "cuStreamIsCapturing",
                        lambda stream: (0, captured.get(stream, states.CU_STREAM_CAPTURE_STATUS_NONE)))
    assert gemm._stream(DEVICE).cuda_stream == 2


def test_plan_and_launch_take_one_way(monkeypatch):
    """Where both modules would do a product, too."""
    for module in (gemm, few):
        monkeypatch.setattr(module, "launch", lambda _, __, source=f"{module.__name__.split('.')[1]}": source)
    monkeypatch.setattr(products, "chip", lambda device: H200)
    monkeypatch.setattr(products, "Launch", lambda plan, *_: plan.source)
    found = set()
    for m, (n, k) in combinations((1, 16, 17, 128, 129, 192, 256, 257), ((64, 64), (3072, 3072), (4104, 4104),
                                                                          (11008, 4096), (28672, 4096))):
        x, w = (torch.empty(size, dtype=torch.bfloat16, device="meta") for size in ((m, k), (n, k)))
        planned = optimized.linear.plan_of("linear_fwd", x, w, chip=H200).source
        launched = products._launch("linear_fwd", (of_forward(x, w, None, False, None),), True, DEVICE)
        assert planned == {"gemm": "gemm.cu", "few": "gemm_few.cu"}.get(launched, launched)
        both = m > gemm_plan.FEW_ROWS and few_plan.takes((of_forward(x, w, None, False, None).product(True),), H200)
        found.add((planned, both))
    assert {("gemm.cu", True), ("gemm_few.cu", True), ("gemm.cu", False), ("gemm_skinny.cu", False)} <= found
