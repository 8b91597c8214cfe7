"""The kernels of the general path, run by a C++ compiler on the CPU: every shape, pitch, alignment and way to lie."""

import shutil
import subprocess
from pathlib import Path

import pytest

from optimized.jit import KERNELS

EMULATOR = Path(__file__).parent / "emulator"
COMPILER = shutil.which("g++")
# Element, core, tile, and what the results, and those of backward's float32 buffer, may be off by.
KINDS = {
    "bf16": ("bf16", "Bf16", 64, 64, 4e-3, 1e-5), "bf16 large": ("bf16", "Bf16", 128, 128, 4e-3, 1e-5),
    "fp16": ("f16", "F16", 64, 64, 6e-4, 1e-5), "tf32": ("f32", "Tf32", 128, 64, 1e-2, 1e-2),
    **{f"fp32 {m}x{n}": ("f32", "Exact", m, n, 1e-5, 1e-5) for m, n in ((128, 128), (128, 64), (64, 64))},
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

pytestmark = pytest.mark.skipif(COMPILER is None, reason="g++ was not found")


def run(kind, folder, kernels=KERNELS):
    """Exit code and output of the emulated kernels."""
    names = ("ELEMENT", "CORE", "TILE_M", "TILE_N", "ALLOWED", "ALLOWED_F32")
    defined = [f"-D{name}={value}" for name, value in zip(names, KINDS[kind])]
    defined.append(f"-DEXACT={int(kind.startswith('fp32'))}")
    program = folder / "emulated"
    subprocess.run([COMPILER, "-std=c++20", "-O1", "-w", f"-I{EMULATOR}", f"-I{kernels}", *defined,
                    EMULATOR / "gemm_general.cpp", "-o", program], check=True, capture_output=True, text=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_every_product_is_right(kind, tmp_path):
    code, shown = run(kind, tmp_path)
    assert code == 0 and "0 of 72 products are wrong" in shown, shown


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake, tmp_path):
    file, old, new = MISTAKES[mistake]
    kernels = tmp_path / "kernels"
    shutil.copytree(KERNELS, kernels)
    source = (kernels / file).read_text()
    assert old in source
    (kernels / file).write_text(source.replace(old, new, 1))
    assert run("fp32 64x64" if file == SIMT else "bf16", tmp_path, kernels)[0] != 0


def test_exact_float32_does_not_depend_on_the_tile(tmp_path):
    bits = {run(kind, tmp_path)[1].split("bits ")[1] for kind in KINDS if kind.startswith("fp32")}
    assert len(bits) == 1
