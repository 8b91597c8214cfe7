"""constant_scale and add, run by a C++ compiler on the CPU: every access, tails, pitches, grids that go round."""

import pytest

from harness.tests.emulation import emulate, needs_compiler, with_mistake

KERNEL = "pointwise.cu"
MISTAKES = {
    "takes the tail of a row for whole": (KERNEL, "p.cols % N ? 0 : places.count", "places.count"),
    "takes the tail of a vector for whole": (KERNEL, "p.rows == 1 ? p.cols / N", "p.rows == 1 ? places.count"),
    "goes beyond the last whole run": (KERNEL, "first + kTile <= whole", "first < whole"),
    "takes another CTA's runs": (KERNEL, "run < min(first + kTile, places.count)", "run < places.count"),
    "goes round too early": (KERNEL, "first += u64(gridDim.x) * kTile", "first += kTile"),
    "skips a round": (KERNEL, "first += u64(gridDim.x) * kTile", "first += 2 * u64(gridDim.x) * kTile"),
    "reads B where A's rows lie": (KERNEL, "row * p.b_pitch + col", "row * p.a_pitch + col"),
    "stores where A's rows lie": (KERNEL, "row * p.y_pitch + col", "row * p.a_pitch + col"),
    "counts columns that do not exist": (KERNEL, "int(min(i64(N), p.cols - col))};\n  }", "N};\n  }"),
}

pytestmark = needs_compiler


def test_every_element_is_right(tmp_path):
    code, shown = emulate("pointwise.cpp", {}, tmp_path)
    assert code == 0 and "0 of 416 checks failed" in shown, shown


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake, tmp_path):
    assert emulate("pointwise.cpp", {}, tmp_path, kernels=with_mistake(MISTAKES[mistake], tmp_path))[0] != 0
