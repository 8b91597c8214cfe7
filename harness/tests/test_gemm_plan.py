"""The work of products on Hopper: every part of a result once, on few kernels, that fit."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import product as combinations
from threading import Barrier

import pytest
import torch

import optimized
from optimized import gemm as gemm_module
from optimized.gemm_model import busiest, cycles
from optimized.gemm_plan import gemm, takes
from optimized.gemm_tiles import TILES, tiles
from optimized.gemm_work import CLUSTER, LEAST_STEPS, SHARES_A, clusters_of, lasting, pairs, work
from optimized.linear_plan import DEPTH, Product
from optimized.plan import H200, Chip

ALL_TILES = tuple(dict.fromkeys(tile for kinds in TILES.values() for tile in kinds))
SHAPES = [(1, 1, 136), (8, 8, 256), (24, 520, 1032), (128, 256, 192), (129, 257, 200), (1000, 4104, 4104),
          (512, 3072, 3072), (200, 28672, 6144), (4096, 1024, 1024), (3000, 7168, 11008), (385, 1032, 20000)]


def forward(m, n, k, **other):
    return Product(m, n, k, "bf16", **{"output": "bf16"} | other)


def backward(m, n, k, **other):
    """dgrad and wgrad of a forward product (m, n, k)."""
    return forward(m, k, n, b_across=True), forward(n, k, m, a_across=True, b_across=True, **other)


def tiles_of(tile, item):
    row, col, _, flags = item
    beside = bool(flags & SHARES_A)
    return [(row + i * tile.rows * (not beside), col + i * tile.cols * beside) for i in range(CLUSTER)]


def busy_for(items):
    return sum(lasting(steps) for _, _, steps, _ in items)


@pytest.mark.parametrize("tile", ALL_TILES, ids=lambda tile: tile.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_tile_of_the_result_once(tile, shape):
    asked = forward(*shape)
    rows, cols = (asked.n, asked.m) if tile.across else (asked.m, asked.n)
    wanted = set(combinations(range(0, rows, tile.rows), range(0, cols, tile.cols)))
    assert tile.grid(asked) == (len(range(0, rows, tile.rows)), len(range(0, cols, tile.cols)))
    found = Counter(corner for item in pairs(tile, asked) for corner in tiles_of(tile, item))
    assert wanted <= set(found) and set(found.values()) == {1}
    beyond = set(found) - wanted
    assert len(beyond) <= 1 and all(row >= rows or col >= cols for row, col in beyond)


@pytest.mark.parametrize("tile", ALL_TILES, ids=lambda tile: tile.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_model_knows_the_lists_without_making_them(tile, shape):
    for products in (forward(*shape),), backward(*shape):
        lists = work(tile, products, H200)
        stages, items = max((busy_for(items), -len(items)) for items in lists)
        assert busiest(tile, products, H200) == (len(lists), -items, stages)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_lists_hold_all_work_and_the_longest_first(shape):
    products, tile = backward(*shape), TILES["Backward", "Stores"][0]
    lists = work(tile, products, H200)
    assert sorted(sum(lists, [])) == sorted(item for each in products for item in pairs(tile, each))
    assert len(lists) <= clusters_of(H200)
    assert all(items and items == sorted(items, key=lambda item: -item[2]) for items in lists)
    busy = [busy_for(items) for items in lists]
    assert max(busy) - min(busy) <= max(lasting(item[2]) for items in lists for item in items)


def test_those_who_walk_down_all_of_w_get_little_else():
    """Of few rows of dy: wgrad's items are short, but for their stores."""
    products, tile = backward(16, 28672, 4096), TILES["Backward", "Stores"][-1]
    lists = work(tile, products, H200)
    dgrad = [items for items in lists if items[0][2] > 1]
    assert len(dgrad) == 16 and {item[2] for items in lists for item in items} == {1, 448}
    least, others = min(map(len, lists)), [len(items) for items in lists if items[0][2] == 1]
    assert max(others) * LEAST_STEPS <= 448 + (least - 1) * LEAST_STEPS + LEAST_STEPS


MEASURED = {  # us of the tiles that came near, forward, bf16, replayed for some 2 ms on an H200
    (16384, 4096, 4096): {"128x160 across": 779.8, "128x144 across": 787.3, "128x112 across": 791.9, "128x128": 800.4,
                          "128x192": 825.1, "256x112": 827.6, "128x144": 833.1, "128x176": 845.7},
    (2048, 4096, 4096): {"256x128": 97.0, "128x128": 97.8, "128x176": 98.6, "128x112 across": 106.5, "128x192": 106.8,
                         "128x144 across": 108.2, "128x144": 109.6, "128x96 across": 110.9, "192x80 across": 114.8},
    (2048, 11008, 4096): {"256x112": 260.9, "128x176": 266.8, "128x128": 267.2, "128x160 across": 267.7,
                          "128x144": 267.8, "128x112 across": 273.7, "192x80 across": 273.9, "128x96 across": 275.0},
    (2048, 1024, 4096): {"128x128": 25.5, "128x144 across": 27.2, "128x144": 28.1, "128x160 across": 30.2},
    (1536, 4104, 4104): {"128x192": 88.3, "256x112": 89.2, "128x128": 108.0},
    (1000, 4096, 4096): {"256x128": 45.6, "128x128": 46.4, "128x144 across": 50.2, "128x144": 50.3,
                         "128x96 across": 52.7},
    (1000, 1032, 1032): {"128x80 across": 9.5, "128x144 across": 9.8, "128x96 across": 10.0, "128x144": 10.0,
                         "128x160 across": 10.3, "128x112 across": 10.8, "192x80 across": 10.9, "128x128": 11.2},
    (768, 18432, 7168): {"128x176": 266.1, "128x144": 267.6, "256x112": 272.4, "128x128": 277.2, "128x192": 289.4},
    (640, 4096, 4096): {"128x160 across": 30.9, "128x176": 32.5, "128x80 across": 33.1, "128x192": 34.2},
    (384, 8192, 8192): {"128x192": 70.3, "128x96 across": 73.3, "128x112 across": 82.3},
    (300, 11008, 4096): {"128x112 across": 48.0, "192x80 across": 52.4, "128x128": 52.5},
    (257, 6144, 6144): {"192x80 across": 38.1, "128x144 across": 43.9, "128x144": 44.1},
    (160, 5120, 5120): {"128x64 across": 21.3, "128x80 across": 22.1, "128x96 across": 23.3},
}


def sizes(tile):
    return tile.name.split(" ", 1)[1]


@pytest.mark.parametrize("size", MEASURED, ids=str)
def test_the_model_takes_a_tile_that_was_measured_to_be_fast(size):
    times, product = MEASURED[size], (forward(*size),)
    assert times[sizes(gemm(product, H200).tile)] <= 1.01 * min(times.values())
    ratios = [cycles(tile, product, H200) / times[sizes(tile)] for tile in tiles(product) if sizes(tile) in times]
    assert len(ratios) == len(times)
    assert max(ratios) <= (1.07 if size[2] % DEPTH == 0 else 1.3) * min(ratios), "the times but for one factor"


def test_lists_end_for_those_who_look_ahead():
    plan = gemm(backward(1000, 4104, 4104), H200)
    items = memoryview(plan.items).cast("i")
    steps = len(items) // 4 // plan.clusters
    for cluster in range(plan.clusters):
        stages = [items[4 * (step * plan.clusters + cluster) + 2] for step in range(steps)]
        ended = stages.index(0)
        assert ended > 0 and len(stages) - ended >= 2 and not any(stages[ended:])


@pytest.mark.parametrize("tile", ALL_TILES, ids=lambda tile: tile.name)
def test_a_tile_fits(tile):
    assert tile.shared_bytes <= H200.shared_bytes and tile.stages >= 4


def test_few_kernels_serve_all_shapes():
    asked = [products for shape in SHAPES for products in (
        (forward(*shape),), (forward(*shape, adds=True),), backward(*shape), backward(*shape, adds=True),
        backward(*shape, output="f32", adds=True), backward(*shape)[:1], backward(*shape)[1:])]
    asked = [products for products in asked if takes(products, H200)]
    assert len(asked) > 50
    assert len({gemm(products, H200).plan.kernel for products in asked}) <= 20


@pytest.mark.parametrize("refused", [
    forward(64, 64, 640, aligned=False), forward(64, 64, 0), forward(0, 64, 640), forward(64, 64, 640, output="f16"),
    Product(64, 64, 640, "f32", "f32"), forward(64, 64, (1 << 30) + 8),
    forward(2**31, 64, 64), forward(64, 2**31, 64)], ids=str)
def test_what_the_copy_engine_and_tensor_cores_do_not_take(refused):
    assert not takes((refused,), H200)


def test_other_chips_take_the_general_path():
    assert not takes((forward(64, 64, 640),), Chip("sm_80", 108, 166_912))
    assert not takes((forward(64, 64, 640),), Chip("sm_100a", 148, 232_448, ((2, 74),)))


def test_a_shallow_product_of_few_tiles_takes_the_general_path():
    assert not takes((forward(264, 264, 72),), H200) and takes((forward(264, 264, 136),), H200)
    assert not takes(backward(8, 8, 8), H200) and not takes(backward(8, 8, 1024)[:1], H200)


def test_no_empty_pairs_of_rows():
    assert [len(pairs(tile, forward(1, 8, 64))) for tile in ALL_TILES] == [1] * len(ALL_TILES)


def test_rows_that_lie_on_each_other_take_the_general_path():
    """The copy engine is promised rows that lie apart."""
    w = torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta")
    for x in (w.new_empty(1, 4096).expand(2048, 4096), w.new_empty(1 << 16).as_strided((2048, 4096), (8, 1))):
        assert optimized.linear.plan_of("linear_fwd", x, w, chip=H200).variant.startswith("general")
    assert not optimized.linear.plan_of("linear_fwd", w[:1], w, chip=H200).variant.startswith("general")


def test_threads_that_need_a_list_at_once_take_the_same(monkeypatch):
    both = Barrier(2)

    def copied(packed, device):
        both.wait(10)
        return torch.frombuffer(bytearray(packed), dtype=torch.int32)

    monkeypatch.setattr(gemm_module, "_lists", {})
    monkeypatch.setattr(gemm_module, "_copied", copied)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(gemm_module._items, [bytes(16)] * 2, [torch.device("cpu")] * 2)
    assert first is second is gemm_module._items(bytes(16), torch.device("cpu"))


@pytest.mark.parametrize("n, few, path", [(2048, "gemm.cu", "gemm.cu"), (2044, "gemm_few.cu", "gemm_general.cu"),
                                          (2043, "gemm_few.cu", "gemm_general.cu")])
def test_results_whose_rows_end_between_16_bytes_take_another_path(n, few, path):
    """Though they begin on them: the copy engine fills the last unit that it stores up, and writes behind the row."""
    def pitched(rows, cols, dtype=torch.bfloat16):
        return torch.empty(rows, -(-cols // 8) * 8 + 8, dtype=dtype, device="meta")[:, :cols]

    x, w, c = pitched(700, 512), pitched(n, 512), pitched(700, n)
    assert optimized.fused.plan_of("linear_scale_add_fwd", x, w, c, 0.5, chip=H200).source == few
    dy, w, x = pitched(700, 1024), pitched(1024, n), pitched(700, n)
    options = {"input_requires_grad": False, "chip": H200}
    for dtype, whole in ((torch.bfloat16, path), (torch.float32, path if n % 4 else "gemm.cu")):
        buffer = pitched(1024, n, dtype)
        assert optimized.linear.plan_of("linear_bwd", dy, x, w, grad_weight=buffer, **options).source == whole


def test_a_plan_names_the_operands_that_are_copied():
    x, w = (torch.empty(rows, 4096, dtype=torch.bfloat16, device="meta") for rows in (512, 4096))
    plan_of = optimized.linear.plan_of
    assert "copied" not in plan_of("linear_fwd", x, w, chip=H200).variant
    assert plan_of("linear_fwd", x, w.t(), chip=H200).variant.endswith("8, weight copied")
    options = {"chip": H200, "grad_weight": w.t(), "accumulate_into_grad_weight": True}
    assert plan_of("linear_bwd", x, x.mT.contiguous().mT, w, **options).variant.endswith(
        "input copied, grad_weight copied")
    unused = plan_of("linear_bwd", x, x.mT.contiguous().mT, w, weight_requires_grad=False, chip=H200)
    assert "copied" not in unused.variant
