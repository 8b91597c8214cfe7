"""Products with few rows of x: which calls take their kernel, and its machine code."""

import re
import subprocess
from collections import Counter
from dataclasses import replace

import pytest
import torch
from cuda.pathfinder import find_nvidia_binary_utility

import optimized
from harness import compile_report
from harness.cases import PRODUCTS, Case
from harness.sweeps import sweep
from harness.tests.emulated import SM_80
from harness.tests.test_gemm_general import SMALLEST
from harness.tests.test_specializations import instructions
from harness.tune import candidates
from optimized import gemm_plan, jit
from optimized.linear_plan import MAX_GRID, Product
from optimized.plan import H200
from optimized.skinny_plan import CTAS, MAX_ROWS, Strips, skinny, takes

KERNELS = [("gemm_skinny.cu", f"gemm_skinny<{element}, {blocks}, {epilogue}>") for element in ("bf16", "f16")
           for blocks in (1, 2) for epilogue in (f"Store<{element}>", f"ScaleAdd<{element}>", "Store<f32>")]
ONE = Product(1, 4096, 4096, "bf16", "bf16")


@pytest.mark.parametrize("m", range(1, MAX_ROWS + 1))
@pytest.mark.parametrize("n", (1, 15, 16, 17, 33, 3072, 28673))
def test_every_element_of_d_is_in_one_tile(m, n):
    for asked in (replace(ONE, m=m, n=n), replace(ONE, m=m, n=n, adds=True), replace(ONE, m=m, n=n, output="f32")):
        assert takes((asked,)) and not gemm_plan.takes((asked,), H200)
        plan = skinny(Strips(asked), H200)
        high, wide = map(int, plan.variant.removeprefix("skinny ").split("x"))
        assert (high, wide) == ((8, 16) if m <= 8 else (16, 32))
        assert m <= high and (plan.grid - 1) * wide < n <= plan.grid * wide and plan.block == 256
        assert ("gemm_skinny.cu", plan.kernel) in KERNELS and plan.shared_bytes <= SMALLEST


@pytest.mark.parametrize("m", (1, 8, 9, 16))
def test_ctas_share_an_sm_and_what_the_kernel_keeps_fits(m):
    strips = Strips(replace(ONE, m=m))
    plan = skinny(strips, H200)
    assert CTAS[strips.blocks] * (plan.shared_bytes + 1024) <= H200.shared_bytes + 1024
    assert plan.programmatic and not skinny(strips, SM_80).programmatic


@pytest.mark.parametrize("refused", [
    replace(ONE, m=0), replace(ONE, m=MAX_ROWS + 1), replace(ONE, n=0), replace(ONE, n=16 * MAX_GRID + 1),
    replace(ONE, vectors=False), replace(ONE, a_across=True), replace(ONE, b_across=True),
    replace(ONE, element="f32", output="f32"), replace(ONE, element="f32", output="f32", exact=False)], ids=str)
def test_what_other_paths_take(refused):
    assert not takes((refused,))


def test_two_products_take_another_path():
    assert not takes((ONE, ONE))


def meta(*shape, pitch=None, skipped=0):
    rows, cols = shape[:-1], shape[-1]
    memory = torch.empty((*rows, pitch or cols), dtype=torch.bfloat16, device="meta")
    return memory[..., skipped:skipped + cols]


@pytest.mark.parametrize("chip, n", ((H200, 18000), (SM_80, 300)), ids=("sm_90a", "sm_80"))
def test_the_plan_says_which_path(chip, n):
    def path(x, w, c=None, **options):
        if c is None:
            return optimized.linear.plan_of("linear_fwd", x, w, chip=chip, **options).variant
        return optimized.fused.plan_of("linear_scale_add_fwd", x, w, c, 0.5, chip=chip, **options).variant

    x, w = meta(4, 4096), meta(n, 4096)
    assert path(x, w) == path(meta(2, 2, 4096), w) == path(x, w, out_dtype=torch.float32) == "skinny 8x16"
    for c in (meta(4, n), meta(4, n, pitch=n + 33, skipped=1)):
        assert path(x, w, c) == path(x, w, c, in_place=False) == "skinny 8x16"
    assert path(meta(16, 4096), w) == "skinny 16x32" and not path(meta(17, 4096), w).startswith("skinny")
    assert path(meta(4, 333, pitch=344), meta(n, 333, pitch=336)) == "skinny 8x16"
    assert path(meta(1, 333), meta(n, 333, pitch=336)) == "skinny 8x16"
    for odd in ((meta(4, 333), meta(n, 333)), (meta(4, 328), meta(n, 328, pitch=330)),
                (meta(4, 328), meta(n, 328, pitch=336, skipped=1))):
        assert path(*odd).startswith("general")
    assert path(meta(1, 4096).expand(9, 4096), w) == "skinny 16x32", "rows that are only read may lie on each other"
    dy = meta(4, n)
    assert not optimized.linear.plan_of("linear_bwd", dy, x, w, chip=chip).variant.startswith("skinny")


@pytest.mark.parametrize("chip", (H200, SM_80), ids=lambda chip: chip.arch)
def test_sweeps_ask_for_few_of_the_kernels(chip):
    planned, _ = compile_report.plans([case for case in sweep("all") if case.function in PRODUCTS], chip)
    asked = {plan.kernel for plan in planned.values() if plan.source == "gemm_skinny.cu"}
    count = Counter(kernel.split("<")[1].split(",")[0] for kernel in asked)
    assert asked <= {kernel for _, kernel in KERNELS} and count["bf16"] == 4 and max(count.values()) <= 4


def test_there_are_no_tiles_to_tune():
    assert candidates(Case("linear_fwd", (16, 4096, 4096)), H200)[1] == ()
    assert candidates(Case("linear_fwd", (257, 4096, 4096)), H200)[1]


@pytest.mark.parametrize("arch", (H200.arch, SM_80.arch))
def test_machine_code_is_as_meant(arch, tmp_path):
    """The CTAs of an SM have registers, nothing goes to local memory; copies of 16 bytes pass the registers by, W the
    L1, too; tensor cores multiply."""
    built, tool = jit.build(KERNELS, arch), find_nvidia_binary_utility("nvdisasm")
    for request, binary in built.items():
        ctas = CTAS[int(request[1].split(", ")[1])]
        assert not binary.spill_bytes + binary.stack_bytes + binary.shared_bytes, request
        assert ctas * 256 * binary.registers <= 1 << 16, request
    if tool is None:
        pytest.skip("nvdisasm is not installed (pip install nvidia-cuda-nvdisasm)")
    for request in KERNELS[::5]:
        used = instructions(tool, built[request], tmp_path)
        assert {"LDGSTS", "HMMA"} <= used and used.isdisjoint({"LDL", "STL"}), request
    shown = subprocess.run([tool, "-ndf", "-c", tmp_path / "kernel.cubin"], capture_output=True, text=True, check=True)
    copies = set(re.findall(r"LDGSTS[.\w]*", shown.stdout))
    assert all(".128" in copy for copy in copies) and {"BYPASS" in copy for copy in copies} == {True, False}
