"""The kernels of the general path, run by a C++ compiler on the CPU: every shape, pitch, alignment and way to lie."""

import pytest

from harness.tests.emulation import EMULATOR, KERNELS, emulate, needs_compiler, with_mistake

# Element, core, tile, and what the results, and those of backward's float32 buffer, may be off by.
KINDS = {
    "bf16": ("bf16", "Bf16", 64, 64, 4e-3, 1e-5), "bf16 large": ("bf16", "Bf16", 128, 128, 4e-3, 1e-5),
    "fp16": ("f16", "F16", 64, 64, 6e-4, 1e-5), "tf32": ("f32", "Tf32", 128, 64, 1e-2, 1e-2),
    **{f"fp32 {m}x{n}": ("f32", "Exact", m, n, 1e-5, 1e-5) for m, n in ((128, 128), (128, 64), (64, 64), (16, 256))},
}
SHORT = "i64(2 * steps + 1) * (2 * steps + 1) * (kDepth * kDepth / 4) < k"
SIMT = "device/gemm_general_simt.cuh"
MISTAKES = {
    "waits for too little": ("gemm_general.cu", "copy_async_wait<kStages - 2>", "copy_async_wait<kStages - 1>"),
    "no barrier": ("gemm_general.cu", "    __syncthreads();\n", ""),
    "forgets the tail of K": ("gemm_general.cu", "(g.k + Core::kDepth - 1) / Core::kDepth", "g.k / Core::kDepth"),
    "reads behind a row": ("device/gemm_general.cuh", "side.cols - col", "side.cols"),
    "takes rows that do not exist": ("device/gemm_general.cuh", "row < side.rows ?", "true ?"),
    "writes beside D": ("device/gemm_general.cuh", "if (col + i < g.n)", "if (true)"),
    "sweeps wrongly": ("device/gemm_general.cuh", "inside % high", "inside % kHigh"),
    "keeps one long sum": (SIMT, SHORT, "steps * kDepth < k"),
    "has short spans alone": (SIMT, SHORT, "false"),
    "sums a span twice": (SIMT, ", sum[i][4 * j + c] = 0", ""),
}
SHARED_MISTAKES = {
    "takes sums that are not there": (SIMT, "    if constexpr (Shared) cluster_arrive(), cluster_wait();\n", ""),
    "leaves while others read": (SIMT, "      cluster_arrive_relaxed();\n      cluster_wait();\n", ""),
    "adds up the same runs": (SIMT, "run % cluster_size() != cluster_rank()", "run % cluster_size() != 0"),
    "takes the same of K": ("gemm_general.cu", "first = cluster_rank() * share", "first = 0"),
    "begins within a cluster": ("gemm_general.cu", "behind = (first + cluster_size() - 1) / cluster_size() * "
                                "cluster_size()", "behind = first"),
}

pytestmark = needs_compiler


def run(kind, folder, **kernels):
    names = ("ELEMENT", "CORE", "TILE_M", "TILE_N", "ALLOWED", "ALLOWED_F32")
    defined = dict(zip(names, KINDS[kind])) | {"EXACT": int(kind.startswith("fp32"))}
    return emulate("gemm_general.cpp", defined, folder, **kernels)


@pytest.mark.parametrize("kind", KINDS)
def test_every_product_is_right(kind, tmp_path):
    code, shown = run(kind, tmp_path)
    assert code == 0 and "0 of 72 products are wrong" in shown, shown


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake, tmp_path):
    kind = "fp32 64x64" if MISTAKES[mistake][0] == SIMT else "bf16"
    assert run(kind, tmp_path, kernels=with_mistake(MISTAKES[mistake], tmp_path))[0] != 0


def test_exact_float32_does_not_depend_on_the_tile(tmp_path):
    bits = {run(kind, tmp_path)[1].split("bits ")[1] for kind in KINDS if kind.startswith("fp32")}
    assert len(bits) == 1


def shared(folder, kernels=KERNELS):
    """Whether tiles that two CTAs share are right, whoever comes late; and what was shown."""
    for seed in range(1, 5):
        code, shown = emulate("gemm_shared.cpp", {"THREADS": 512}, folder, kernels, EMULATOR / "hopper", [str(seed)])
        if code:
            return False, f"seed {seed}: {shown}"
    return True, ""


def test_shared_tiles_are_right(tmp_path):
    right, shown = shared(tmp_path)
    assert right, shown


@pytest.mark.parametrize("mistake", SHARED_MISTAKES)
def test_a_mistake_of_those_who_share_is_found(mistake, tmp_path):
    assert not shared(tmp_path, with_mistake(SHARED_MISTAKES[mistake], tmp_path))[0]
