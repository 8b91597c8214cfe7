"""Who fills the stages of gemm.cu and who reads them, compiled for the CPU: nobody fills one that is read."""

import pytest

from harness.tests.emulation import EMULATOR, emulate, needs_compiler, with_mistake
from optimized.gemm_tiles import FORWARD

LOAD, MULTIPLY = "device/gemm_load.cuh", "device/gemm_multiply.cuh"
ODD, EVEN, TOGETHER = (next(tile for tile in FORWARD if tile.schedule == schedule and tile.stages % 2 == odd)
                       for schedule, odd in (("PingPong", 1), ("PingPong", 0), ("Cooperative", 0)))
MISTAKES = {
    "loads every other step": (ODD, LOAD, "place.stage = warp, ", "place.stage -= T::kStages, "),
    "does not wait for a free stage": (EVEN, LOAD, "      wait(&s.empty[now], place.phase ^ 1);\n", ""),
    "gives back what is read": (EVEN, MULTIPLY, "if (read >= 0) release(&s.empty[read]);\n    read = place.stage;",
                                "release(&s.empty[read = place.stage]);"),
    "does not wait for what is read": (TOGETHER, MULTIPLY, "wgmma_wait<1>();", ""),
    "does not wait for its turn": (ODD, MULTIPLY, "bar_sync(kBarrier + consumer, kThreads)", "void()"),
}

pytestmark = needs_compiler


def run(tile, folder, **kernels):
    defined = {"TILE": tile.spelled, "THREADS": 384}
    return emulate("gemm_stages.cpp", defined, folder, also=EMULATOR / "stages", **kernels)


@pytest.mark.parametrize("tile", FORWARD, ids=lambda tile: tile.name)
def test_stages_are_filled_when_they_have_been_read(tile, tmp_path):
    code, shown = run(tile, tmp_path)
    assert code == 0 and shown.startswith("0 of "), shown


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake, tmp_path):
    tile, *change = MISTAKES[mistake]
    assert run(tile, tmp_path, kernels=with_mistake(change, tmp_path))[0] != 0
