"""Backward norms whose rows come through a ring, compiled for the CPU: two CTAs, which are a cluster or each by itself,
while copies and what CTAs tell each other come late, and anybody may be held up."""

import pytest

from harness.tests.emulation import EMULATOR, emulate, needs_compiler, with_mistakes

KERNEL, COLUMNS, ROWS, RING, SCOPE = (
    "norm_backward.cu", "device/columns.cuh", "device/gradient_rows.cuh", "device/ring.cuh", "device/scope.cuh")
STATIC = [  # which a CTA of the emulation must not share with the other
    (KERNEL, "  __shared__ struct { typename Scope::Shared scope; typename Rows::Shared rows; } shared;\n",
     "  struct Both { typename Scope::Shared scope; typename Rows::Shared rows; };\n"
     "  Both& shared = in_cta<Both, 3 << 16>();\n"),
    (COLUMNS, "  __shared__ Vec<f32, W> sums[32][kLanes];\n",
     "  using Sums = Vec<f32, W>[32][kLanes];\n  Sums& sums = in_cta<Sums, 7 << 15>();\n"),
]
# The threads of a CTA and of a row, columns, rows, vectors of 16 bytes in a thread, stages; sizes of x and dz if not 1.
KINDS = {
    "cluster": ("Cluster", "LayerNorm", "float", 96, 96, 1448, 11, 2, 3),
    "cluster, two stages": ("Cluster", "RmsNormAdd", "__nv_bfloat16", 64, 64, 1000, 7, 1, 2),
    "cluster, 24 a thread": ("Cluster", "LayerNorm", "__nv_bfloat16", 64, 64, 3000, 9, 3, 4),
    "groups": ("Group", "LayerNorm", "float", 192, 64, 480, 23, 2, 3),
    "huge x": ("Group", "LayerNorm", "float", 64, 64, 480, 5, 2, 3, 1e17, 1e-8),
    "tiny x": ("Group", "LayerNorm", "float", 64, 64, 480, 5, 2, 3, 1e-17, 1e8),
    "warps": ("Lanes<32>", "RmsNormAdd", "float", 96, 32, 240, 20, 2, 2),
    "few strips": ("Lanes<32>", "RmsNorm", "__nv_bfloat16", 192, 32, 200, 20, 1, 2),
    "many warps": ("Group", "LayerNorm", "__nv_bfloat16", 352, 352, 2728, 5, 1, 3),
    "half warps": ("Lanes<16>", "RmsNorm", "__nv_bfloat16", 64, 16, 136, 37, 2, 3),
}
MISTAKES = {
    "refills what is read": ("cluster", KERNEL, "    scope.send(sums);\n    rows.refill(slots);",
                             "    rows.refill(slots);\n    scope.send(sums);"),
    "refills the wrong stage": ("groups", RING, "issue(slabs, row, rows, (stage ? stage : count) - 1)",
                                "issue(slabs, row, rows, stage)"),
    "refills with the wrong row": ("cluster, two stages", ROWS, "ahead += slots.count;", "ahead += 2 * slots.count;"),
    "adds up too few warps": ("many warps", SCOPE, "first + q < quads", "first + q < 2"),
    "leaves slots out": ("groups", COLUMNS, "i += blockDim.x / kWarp", "i += 2 * (blockDim.x / kWarp)"),
    "loses what is small": ("huge x", KERNEL, "dx[i] = r * fmaf(-normal, projection, fmaf(dz[i], g[i], -mean));",
                            "dx[i] = fmaf(-r * r * projection, x[i] - mu, r * fmaf(dz[i], g[i], -mean));"),
    "leaves strips out": ("groups", COLUMNS, "base += beside", "base += beside + 1"),
    "scales too little": ("cluster", KERNEL, "dx[i] = r * fmaf", "dx[i] = fmaf"),
    "has one place for sums": ("cluster", SCOPE, "const u32 place = count & 1, size", "const u32 place = 0, size"),
    "takes sums that have not come": ("cluster", SCOPE, "    while (!mbarrier_try_wait_cluster(&shared.arrived[place], "
                                      "phase)) {}\n", ""),
    "does not wait for the other CTA": ("cluster", SCOPE, "    if (!opened) cluster_wait();\n", ""),
    "does not wait for rows": ("warps", RING, "    ::wait(&shared.full[slot][stage], phase);\n", ""),
    "does not wait for gamma": ("groups", ROWS, "    wait(&shared.gamma_full, 0);\n", ""),
    "does not wait for other warps": ("groups", SCOPE, "    bar_sync(1 + slot(), threads);\n    Add", "    Add"),
    "does not wait for other CTAs": ("groups", KERNEL, "  grid_sync();  // behind", "  //"),
    "takes a neighbour's row": ("half warps", ROWS, "first(scope.slot() % kRows * cols + share", "first(share"),
}

pytestmark = needs_compiler


def run(kind, folder, seeds, mistakes=()):
    """Whether all seeds are right, and what was shown."""
    scope, norm, element, threads, own, cols, rows, vectors, stages, *sizes = KINDS[kind]
    of_x, of_dz = sizes or (1, 1)
    defined = {"SCOPE": scope, "NORM": norm, "ELEMENT": element, "THREADS": 2 * threads, "ROW_THREADS": own,
               "COLS": cols, "ROWS": rows, "VECTORS": vectors, "STAGES": stages, "X_SCALE": of_x, "DZ_SCALE": of_dz}
    kernels = with_mistakes([*STATIC, *mistakes], folder)
    for seed in seeds:
        code, shown = emulate("norm_backward.cpp", defined, folder, kernels, EMULATOR / "hopper", [str(seed)])
        if code:
            return False, f"seed {seed}: {shown}"
    return True, ""


@pytest.mark.parametrize("kind", KINDS)
def test_every_gradient_is_right(kind, tmp_path):
    right, shown = run(kind, tmp_path, range(1, 4))
    assert right, shown


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake, tmp_path):
    kind, *change = MISTAKES[mistake]
    assert not run(kind, tmp_path, range(1, 4), [change])[0]
