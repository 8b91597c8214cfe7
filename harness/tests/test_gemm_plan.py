"""The work of products on Hopper: every part of a result once, on few kernels, that fit."""

import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import product as combinations
from threading import Barrier

import pytest
import torch

import optimized
from optimized import gemm as gemm_module
from optimized import gemm_plan
from optimized.gemm_plan import CLUSTER, DEPTH, SHARES_A, TILES, cycles, gemm, pairs, takes, tiles, work
from optimized.launch import allocator
from optimized.linear_plan import Product
from optimized.matrices import of_forward
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


@pytest.mark.parametrize("tile", ALL_TILES, ids=lambda tile: tile.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_tile_of_the_result_once(tile, shape):
    asked = forward(*shape)
    wanted = set(combinations(range(0, asked.m, tile.rows), range(0, asked.n, tile.cols)))
    found = Counter(corner for item in pairs(tile, asked) for corner in tiles_of(tile, item))
    assert wanted <= set(found) and set(found.values()) == {1}
    beyond = set(found) - wanted
    assert len(beyond) <= 1 and all(row >= asked.m or col >= asked.n for row, col in beyond)


@pytest.mark.parametrize("tile", ALL_TILES, ids=lambda tile: tile.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_model_knows_the_lists_without_making_them(tile, shape):
    product = (forward(*shape),)
    lists = work(tile, product, H200)
    steps = max(sum(item[2] for item in items) for items in lists)
    assert gemm_plan._busiest(tile, product, H200) == (len(lists), max(map(len, lists)), steps)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_lists_hold_all_work_and_the_longest_first(shape):
    products, tile = backward(*shape), TILES["Backward", "Stores"][0]
    lists = work(tile, products, H200)
    assert sorted(sum(lists, [])) == sorted(item for each in products for item in pairs(tile, each))
    assert len(lists) <= gemm_plan.clusters_of(H200)
    assert all(items and items == sorted(items, key=lambda item: -item[2]) for items in lists)
    busy = [sum(item[2] for item in items) for items in lists]
    assert max(busy) - min(busy) <= max(item[2] for items in lists for item in items)


def test_a_small_result_of_a_deep_product_is_cut_along_k():
    plan = gemm((forward(200, 3072, 6144),), H200)
    assert plan.parts > 1 and "K in" in plan.plan.variant and plan.part_rows >= 200
    for row, col, stages, flags in sum(work(plan.tile, (forward(200, 3072, 6144),), H200, plan.parts), []):
        assert stages & 0xFFFF > 0 and flags >> 8 < plan.parts
    stages = [item[2] for item in sum(work(plan.tile, (forward(200, 3072, 6144),), H200, plan.parts), [])
              if item[:2] == (0, 0)]
    covered = sorted((each >> 16, (each >> 16) + (each & 0xFFFF)) for each in stages)
    assert [covered[0][0], covered[-1][1]] == [0, 6144 // DEPTH]
    assert all(before[1] == after[0] for before, after in zip(covered, covered[1:]))
    assert gemm((forward(4096, 4096, 4096),), H200).parts == 1


MEASURED = {  # us of the fastest tiles, forward, bf16, replayed for some 2 ms on an H200
    (8192, 4096, 4096): {"128x256": 353.9, "256x128": 354.5, "256x112": 358.8, "128x192": 363.0, "192x128": 364.4},
    (16384, 2048, 2048): {"128x256": 181.6, "256x128": 182.6, "192x128": 183.3, "128x176": 183.8, "192x112": 196.2},
    (8192, 5120, 5120): {"192x112": 553.1, "256x128": 554.2, "128x256": 556.3, "128x160": 559.2, "128x176": 573.7},
    (3000, 1024, 4096): {"192x128": 37.4, "256x112": 42.8},
    (1000, 7168, 18432): {"256x112": 349.8, "128x160": 389.9, "192x112": 393.1, "128x256": 412.9, "128x176": 430.3},
    (1000, 4104, 4104): {"256x128": 54.7, "128x128": 74.4, "128x160": 76.6, "128x192": 77.3, "128x256": 87.9},
    (768, 4096, 4096): {"128x192": 36.0, "192x128": 36.3, "256x112": 39.7},
    (640, 18432, 7168): {"128x176": 253.7, "128x256": 258.0, "128x192": 265.5, "128x128": 270.7, "192x112": 294.2},
    (512, 4096, 4096): {"128x128": 25.3, "128x160": 28.3, "128x176": 30.5, "192x112": 30.5},
    (320, 28672, 4096): {"192x112": 138.1, "128x176": 149.0, "128x256": 154.3, "192x128": 159.0, "128x192": 162.6},
}


def sizes(tile):
    return tile.name.split()[1]


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
    assert len({gemm(products, H200).plan.kernel for products in asked}) <= 18


@pytest.mark.parametrize("refused", [
    forward(64, 64, 640, aligned=False), forward(64, 64, 0), forward(0, 64, 640), forward(64, 64, 640, output="f16"),
    Product(64, 64, 640, "f32", "f32"), forward(64, 64, 64 * 0x8000),
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


def test_the_sums_of_parts_are_nobody_elses_before_both_launches(monkeypatch):
    given, alive = [], []

    def allocate(shape, dtype, device):
        tensor = torch.empty(shape, dtype=dtype)
        given.append(weakref.ref(tensor))
        return tensor

    def launch(*_):
        return lambda *_: alive.append(given[-1]() is not None)

    monkeypatch.setattr(gemm_module, "_whole", launch)
    monkeypatch.setattr(gemm_module, "Launch", launch)
    x, w = (torch.empty(rows, 6144, dtype=torch.bfloat16) for rows in (200, 3072))
    split = gemm_module._Split(gemm((forward(200, 3072, 6144),), H200), of_forward(x, w, None, False, None), x.device)
    with allocator(allocate):
        split(0, 0, 0, 0, 0, 0)
    assert alive == [True, True] and given[0]() is None


@pytest.mark.parametrize("n, path", [(1008, "gemm.cu"), (1004, "gemm_general.cu"), (1003, "gemm_general.cu")])
def test_results_whose_rows_end_between_16_bytes_take_the_general_path(n, path):
    """Though they begin on them: the copy engine fills the last unit that it stores up, and writes behind the row."""
    def pitched(rows, cols, dtype=torch.bfloat16):
        return torch.empty(rows, -(-cols // 8) * 8 + 8, dtype=dtype, device="meta")[:, :cols]

    x, w, c = pitched(700, 512), pitched(n, 512), pitched(700, n)
    assert optimized.fused.plan_of("linear_scale_add_fwd", x, w, c, 0.5, chip=H200).source == path
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
