"""The kernel for few rows of x, run by a C++ compiler on the CPU: every number of rows, tails of K, any pitch."""

import pytest

from harness.tests.emulation import emulate, needs_compiler, with_mistake

ALLOWED = {"bf16": 4e-3, "f16": 6e-4}
CORE, KERNEL = "device/gemm_skinny.cuh", "gemm_skinny.cu"
MISTAKES = {
    "waits for too little": (KERNEL, "copy_async_wait<kStages - 2>", "copy_async_wait<kStages - 1>"),
    "leaves copies on their way": (KERNEL, "  copy_async_wait<0>();\n", ""),
    "sums over stages that others need": (KERNEL, "  __syncthreads();\n", ""),
    "sums that are not there yet": (CORE, "    __syncthreads();\n", ""),
    "forgets the tail of K": (KERNEL, "k < p.k", "k + Core::kDepth <= p.k"),
    "reads behind a row": (CORE, "min(i64(8), left - i * kStep)", "left > i * kStep ? i64(8) : i64(0)"),
    "skips a turn": (CORE, "left - i * kStep", "left - 2 * i * kStep"),
    "reads rows of W that do not exist": (CORE, "min(first + 8 * i + g, p.n - 1)", "(first + 8 * i + g)"),
    "reads rows of x that do not exist": (CORE, "min(i64(8 * i + g), p.m - 1)", "i64(8 * i + g)"),
    "stores rows that do not exist": (CORE, "row >= kWide || row >= p.m", "row >= kWide"),
    "multiplies other elements of K": (CORE, "b[wide].lane[half + 1]", "b[wide].lane[half]"),
    "adds a warp twice": (CORE, "total[1] += sums.of[i]", "total[1] += sums.of[i & 6]"),
    "sums where others do": (CORE, "kPitch = kHigh + 4", "kPitch = kHigh - 4"),
    "takes K in another order": (CORE, "const int k = warp * kTurn + 8 * t;",
                                 "const int k = (warp ^ (Blocks - 1)) * kTurn + 8 * t;"),
}

pytestmark = needs_compiler


def run(element, folder, **kernels):
    return emulate("gemm_skinny.cpp", {"ELEMENT": element, "ALLOWED": ALLOWED[element]}, folder, **kernels)


@pytest.mark.parametrize("element", ALLOWED)
def test_every_product_is_right(element, tmp_path):
    """A row has the same bits whatever other rows there are."""
    code, shown = run(element, tmp_path)
    assert code == 0 and "0 of 408 checks failed" in shown, shown


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake, tmp_path):
    assert run("bf16", tmp_path, kernels=with_mistake(MISTAKES[mistake], tmp_path))[0] != 0
