"""The statistics of LayerNorm's rows of 16-bit elements, run by a C++ compiler on the CPU: rows of lanes, of warps and
of CTAs, whole and ragged, in registers and in shared memory."""

import pytest

from harness.tests.emulation import emulate, needs_compiler, with_mistake


def held(vectors, scope, fill, threads, more="", elements=8):
    """Rows in registers: type, scope."""
    return f"HeldRows<LayerNorm, X, Plain<X>, {elements}, {vectors}, {scope}, {fill}, {threads}{more}>", scope


# Rows, and the threads of a CTA, the columns, the threads of a row.
KINDS = {
    "eight lanes": (held(1, "Lanes<8>", "Whole", 128), 64, 64, 8),
    "ragged lanes": (held(4, "Lanes<32>", "Ragged", 128), 64, 1000, 32),
    "block": (held(4, "Block", "Whole", 128), 128, 4096, 128),
    "24 a thread": (held(3, "Block", "Whole", 128), 96, 2304, 96),
    "ragged block": (held(4, "Block", "Ragged", 256), 160, 4104, 160),
    "odd columns": (held(16, "Block", "Ragged", 128, elements=1), 96, 1499, 96),
    "ragged groups": (held(8, "Group", "Ragged", 256, ", false"), 256, 4104, 128),
    "spread lanes": (held(4, "Lanes<8>", "Ragged", 128, ", true, SpreadSlots<Lanes<8>>"), 64, 248, 8),
    "shared memory": (("SharedRows<LayerNorm, X, Plain<X>, 8, 256>", "Block"), 256, 12296, 256),
}
MOMENTS, NORM, ROWS, SCOPE = "device/norm_moments.cuh", "device/norm.cuh", "device/norm_rows.cuh", "device/scope.cuh"
MISTAKES = {
    "does not wait for other warps": ("block", SCOPE, "    bar_sync(1 + slot(), threads);\n    parity", "    parity"),
    "takes each warp for a whole one": ("ragged block", MOMENTS, "max(0, min(Run, cols - warp * Run))", "Run"),
    "takes what no warp has told": ("ragged groups", MOMENTS, "if (size.elements > 0.f) part =", "part ="),
    "counts turns that are none": ("shared memory", MOMENTS, "int(rest) - warp * Run", "Run"),
    "forgets the turns": ("shared memory", MOMENTS, "turns * Run + max", "max"),
    "divides and rounds twice": ("ragged lanes", MOMENTS, "size.inverse, mean)", "0.f, mean)"),
    "forgets what means leave over": ("24 a thread", MOMENTS, "fmaf(-mean, n, sum) * (1.f / kShrink<X>)", "0.f"),
    "adds up what is infinite then": ("block", MOMENTS, "kShrink<bf16> = 1.f / 4096", "kShrink<bf16> = 1.f"),
    "loses an infinite mean": ("ragged lanes", MOMENTS, "fminf(fmaf(-mean, n, sum), kLargest)", "fmaf(-mean, n, sum)"),
    "has no number where the mean is infinite": ("block", ROWS, "if (!(r > 0.f) && valid)", "if (false)"),
    "has an infinite mean where there is none": ("ragged lanes", MOMENTS, " - first * cols)", " - first)"),
    "has a mean where float32 has none": ("24 a thread", MOMENTS, "sum * (1.f / kShrink<X>) - first * cols", "sum"),
    "has numbers where the mean is infinite": ("ragged lanes", MOMENTS, "fmaf(0.f, mean, rsigma)", "rsigma"),
    "squares what is not there": ("ragged block", ROWS, "if constexpr (kFilled) d.fill(vectors, with);", ""),
    "squares what lanes do not have": ("ragged lanes", ROWS, "if constexpr (kFilled) d.fill(vectors, with);", ""),
    "adds up what is not there": ("ragged block", ROWS, "x[v] = {};", "x[v] = load<X, N>(a.x, 0);"),
    "leaves rows to other CTAs": ("spread lanes", NORM, "gridDim.x + blockIdx.x) * kRows", "gridDim.x) * kRows"),
    "takes a warp's rows for one": ("spread lanes", ROWS, "row = top + slots.beside;", "row = top;"),
    "forgets other warps' means": ("24 a thread", MOMENTS, "fmaf(size.elements, off, center.left(2.f))", "0.f"),
}

pytestmark = needs_compiler


def run(kind, element, folder, **kernels):
    (rows, scope), threads, cols, row_threads = KINDS[kind]
    defined = {"ELEMENT": element, "ROWS": rows, "SCOPE": scope, "THREADS": threads, "COLS": cols,
               "ROW_THREADS": row_threads, "SHARED_ROWS": int(rows.startswith("Shared"))}
    return emulate("norm.cpp", defined, folder, **kernels)


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_right(kind, tmp_path):
    element = ("bf16", "f16")[list(KINDS).index(kind) % 3 == 1]
    code, shown = run(kind, element, tmp_path)
    assert code == 0 and "0 of 200 checks failed" in shown, shown


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake, tmp_path):
    kind, *change = MISTAKES[mistake]
    assert run(kind, "bf16", tmp_path, kernels=with_mistake(change, tmp_path))[0] != 0
