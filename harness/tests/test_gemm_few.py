"""Products with some rows of x: which calls take their kernel, how they are cut, and its machine code."""

from dataclasses import replace

import pytest
import torch
from cuda.pathfinder import find_nvidia_binary_utility

import optimized
from harness import compile_report
from harness.cases import PRODUCTS, Case
from harness.sweeps import sweep
from harness.tests.emulated import SM_80
from harness.tests.test_specializations import instructions
from harness.tune import candidates
from optimized import gemm_plan, jit
from optimized.few_plan import COLS, CTAS, DEEP_ROWS, HEIGHTS, MAX_ROWS, ROWS, Cut, best, cuts, few, takes
from optimized.linear_plan import Product
from optimized.plan import H200

KERNELS = [("gemm_few.cu", f"gemm_few<{element}, {rows}, {cols}, {epilogue}>") for element in ("bf16", "f16")
           for rows, cols in ((64, 32), (64, 64), *((rows, cols) for rows in ROWS for cols in COLS[2:]))
           for epilogue in (f"Store<{element}>", f"ScaleAdd<{element}>", "Store<f32>")]
ONE = Product(100, 4096, 4096, "bf16", "bf16")
SHAPES = [(m, n, k) for m in (1, 16, 17, 32, 33, 64, 100, 128, 129, 192, 193, 256, 257, 600, 1000, 4096)
          for n, k in ((1, 136), (45, 4096), (640, 3072), (3072, 3072), (4104, 1032), (7168, 18432), (28672, 4096))
          if (16 < m <= DEEP_ROWS if n == 28672 else m <= 256 or n <= (640 if m == 4096 else 4096))]


@pytest.mark.parametrize("m, n, k", SHAPES)
def test_every_cut_covers_the_product(m, n, k):
    for kind in ({}, {"adds": True}, {"output": "f32"}):
        p = replace(ONE, m=m, n=n, k=k, **kind)
        assert takes((p,), H200) and (m > gemm_plan.FEW_ROWS or not gemm_plan.takes((p,), H200))
        for cut in cuts(p, H200):
            plan = few(cut, H200)
            assert ("gemm_few.cu", plan.kernel) in KERNELS
            assert plan.grid == cut.tiles * cut.cluster and plan.cluster == cut.cluster and plan.programmatic
            down = cut.tiles // cut.across
            assert cut.tiles == down * cut.across and (down - 1) * cut.height < n <= down * cut.height
            assert (cut.across - 1) * cut.width < m <= cut.across * cut.width
            assert cut.width <= cut.cols < max(33, 2 * cut.width) and (cut.across == 1 or cut.width % 8 == 0)
            assert 0 < cut.steps and (cut.cluster == 1 or cut.cluster <= -(-k // 64) <= cut.steps * cut.cluster)
            assert plan.kernel.startswith(f"gemm_few<{p.element}, {cut.rows}, {cut.cols}, ")
            across = f"{cut.across} x " if cut.across > 1 else ""
            assert plan.variant.split(",")[0] == f"few {across}{cut.cols}x{cut.height}"
            assert plan.block == 64 + 2 * cut.rows and cut.height <= cut.rows < cut.height + 64


def test_heights_are_what_swizzle_and_epilogue_take():
    """The epilogue divides by their fours of rows of W with one product of 32 by 32 bits."""
    for height in HEIGHTS:
        units = height // 4
        inverse = (2**32 - 1) // units + 1
        assert height % 8 == 0 and all(i * inverse >> 32 == i // units for i in range(COLS[-1] * units + 1))


@pytest.mark.parametrize("height", HEIGHTS)
@pytest.mark.parametrize("m", (17, 33, 65))
def test_ctas_share_an_sm_with_enough_of_w_on_its_way(m, height):
    """What each keeps comes with 1 KiB; the sums fit where the stages were."""
    cut, ctas = Cut(replace(ONE, m=m), height, 1), 1 if m > DEEP_ROWS else CTAS
    plan = few(cut, H200)
    assert ctas * (plan.shared_bytes + 1024) <= H200.shared_bytes + 1024
    assert plan.stages >= 3 and ctas * plan.stages * 128 * height >= 40 << 10
    assert plan.shared_bytes >= 1024 + max(plan.stages * cut.stage_bytes, 4 * cut.cols * (cut.rows + 4))
    assert cut.stage_bytes == 128 * (cut.rows + cut.cols) and cut.stage_bytes % 1024 == 0


@pytest.mark.parametrize("m, n, k, height, cluster", [
    (17, 1024, 1024, 40, 4), (17, 4096, 4096, 64, 2), (64, 3072, 3072, 48, 2), (64, 5120, 5120, 40, 2),
    (64, 7168, 18_432, 56, 2), (100, 1024, 4096, 40, 4), (100, 3072, 3072, 48, 2), (100, 6144, 6144, 48, 1),
    (100, 8192, 8192, 64, 1), (200, 4096, 4096, 64, 2)])
def test_the_model_picks_what_was_the_fastest_on_an_h200(m, n, k, height, cluster):
    """Or within 0.3 % of it."""
    found = best(replace(ONE, m=m, n=n, k=k), H200)
    assert (found.height, found.cluster, found.across) == (height, cluster, 1)
    assert (f", K over {cluster}" in few(found, H200).variant) == (cluster > 1)


@pytest.mark.parametrize("m, n, k, height, cluster, across", [
    (200, 2048, 2048, 64, 2, 2), (300, 3072, 3072, 48, 1, 2), (300, 1024, 14_336, 104, 4, 3),
    (384, 1024, 4096, 64, 2, 4), (512, 1024, 1024, 40, 1, 5), (640, 2048, 8192, 64, 1, 4),
    (1000, 1024, 4096, 64, 2, 4)])
def test_rows_of_x_are_cut_as_was_the_fastest(m, n, k, height, cluster, across):
    assert best(replace(ONE, m=m, n=n, k=k), H200) == Cut(replace(ONE, m=m, n=n, k=k), height, cluster, across)
    assert f"few {across} x " in few(best(replace(ONE, m=m, n=n, k=k), H200), H200).variant


@pytest.mark.parametrize("m, n, k", [(100, 1024, 4096), (100, 3072, 3072), (128, 4096, 11008), (128, 7168, 18432),
                                     (17, 1024, 4096), (64, 3072, 3072), (33, 28672, 4096)])
def test_most_sms_have_a_part_of_w(m, n, k):
    assert few(best(replace(ONE, m=m, n=n, k=k), H200), H200).grid >= 64
    assert best(replace(ONE, m=20, n=28672), H200).cluster == 1 < best(replace(ONE, n=1024), H200).cluster


def test_x_costs_as_much_as_w():
    """From there on no more CTAs than SMs, or gemm.cu, whose CTAs share x."""
    assert all(cut.tiles <= cut.at_once(H200) for cut in cuts(ONE, H200))
    for n, taken in ((8448, True), (16896, True), (16897, False), (28672, False)):
        wide = replace(ONE, n=n)
        assert takes((wide,), H200) == taken != gemm_plan.takes((wide,), H200)
        assert takes((replace(wide, m=DEEP_ROWS),), H200)


@pytest.mark.parametrize("n, k", [(300, 4096), (1024, 4096), (3072, 3072), (4096, 11008), (8192, 8192), (17423, 4096),
                                  (17424, 4096), (28672, 4096)])
def test_few_rows_are_cut_alike_and_left_to_ctas_that_make_waves(n, k):
    """So a row of D does not depend on how many there are."""
    given = [replace(ONE, m=m, n=n, k=k) for m in (1, 8, 9, 16)]
    assert len({(cut.height, cut.cols, cut.cluster) for cut in (best(each, H200) for each in given)}) == 1
    assert {takes((each,), H200) for each in given} == {n < 17424}


def test_a_chip_without_clusters_has_whole_k():
    assert not takes((replace(ONE, m=16),), replace(H200, clusters=()))
    assert takes((replace(ONE, m=17),), replace(H200, clusters=()))
    assert {cut.cluster for cut in cuts(ONE, replace(H200, clusters=()))} == {1}
    assert {cut.cluster for cut in cuts(replace(ONE, m=40, k=200), H200)} == {1, 2, 4}


@pytest.mark.parametrize("refused", [
    replace(ONE, m=0), replace(ONE, m=MAX_ROWS + 1), replace(ONE, n=0), replace(ONE, k=0),
    replace(ONE, n=(1 << 30) + 1), replace(ONE, k=(1 << 30) + 1), replace(ONE, vectors=False),
    replace(ONE, apart=False), replace(ONE, a_across=True), replace(ONE, b_across=True),
    replace(ONE, output="f16"), replace(ONE, output="f32", adds=True), replace(ONE, n=64, k=128),
    replace(ONE, element="f32", output="f32", exact=False)], ids=str)
def test_what_other_paths_take(refused):
    assert takes((ONE,), H200) and not takes((refused,), H200)


def test_other_chips_and_two_products_take_another_path():
    assert not takes((ONE,), SM_80) and not takes((ONE, ONE), H200)


def meta(*shape, pitch=None, skipped=0):
    rows, cols = shape[:-1], shape[-1]
    memory = torch.empty((*rows, pitch or cols), dtype=torch.bfloat16, device="meta")
    return memory[..., skipped:skipped + cols]


def test_the_plan_says_which_path():
    def path(x, w, c=None, **options):
        if c is None:
            return optimized.linear.plan_of("linear_fwd", x, w, chip=H200, **options).variant
        return optimized.fused.plan_of("linear_scale_add_fwd", x, w, c, 0.5, chip=H200, **options).variant

    x, w = meta(40, 4096), meta(300, 4096)
    shown = path(x, w)
    assert shown.startswith("few 64x") and shown == path(meta(2, 20, 4096), w) == path(x, w, out_dtype=torch.float32)
    for c in (meta(40, 300), meta(40, 300, pitch=333, skipped=1)):
        assert path(x, w, c).startswith("few") and path(x, w, c, in_place=False).startswith("few")
    assert path(meta(1, 4096), w) == path(meta(16, 4096), w) == path(meta(17, 4096), w) == "few 32x40, K over 8"
    assert path(meta(128, 4096), w).startswith("few 128x") and path(meta(257, 4096), w).startswith("few 3 x 128x64")
    assert path(meta(40, 333, pitch=344), meta(300, 333, pitch=336)).startswith("few")
    for odd in ((meta(40, 333), meta(300, 333)), (meta(40, 328), meta(300, 328, pitch=330)),
                (meta(40, 328), meta(300, 328, pitch=336, skipped=1)), (meta(1, 4096).expand(40, 4096), w)):
        assert path(*odd).startswith("general")
    dy = meta(40, 300)
    assert not optimized.linear.plan_of("linear_bwd", dy, x, w, chip=H200).variant.startswith("few")


def test_sweeps_ask_for_few_of_the_kernels():
    planned, _ = compile_report.plans([case for case in sweep("all") if case.function in PRODUCTS], H200)
    asked = {plan.kernel for plan in planned.values() if plan.source == "gemm_few.cu"}
    assert asked and asked <= {kernel for _, kernel in KERNELS} and len(asked) <= 16


def test_there_are_no_tiles_to_tune():
    assert candidates(Case("linear_fwd", (100, 4096, 4096)), H200)[1] == ()


def test_machine_code_is_as_meant(tmp_path):
    """The CTAs of an SM have registers, nothing goes to local memory; the copy engine loads, tensor cores multiply
    warpgroups' rows, and no sum leaves for the memory of the GPU."""
    built, tool = jit.build(KERNELS, H200.arch), find_nvidia_binary_utility("nvdisasm")
    for request, binary in built.items():
        rows, cols = map(int, request[1].split(", ")[1:3])
        assert not binary.spill_bytes + binary.stack_bytes + binary.shared_bytes, request
        ctas = 1 if cols > 128 else CTAS
        assert ctas * (32 + 2 * rows) * -(-binary.registers // 8) * 8 <= 1 << 16, request
    if tool is None:
        pytest.skip("nvdisasm is not installed (pip install nvidia-cuda-nvdisasm)")
    for request in KERNELS[::5]:
        used = instructions(tool, built[request], tmp_path)
        assert {"HGMMA", "UTMALDG", "SYNCS"} <= used, request
        assert used.isdisjoint({"LDL", "STL", "HMMA", "ATOMG", "RED"}), request
