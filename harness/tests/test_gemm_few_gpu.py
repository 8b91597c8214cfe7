"""Products with some rows of x on a GPU: every cut of ragged products, pitches, factors, graphs."""

import pytest
import torch

from harness.tests.gemm_rows import (
    DTYPES, SCALE, assert_a_chain_waits, assert_functions_are_right, assert_others_are_not_spoiled,
    assert_residual_is_added, assert_rows_do_not_depend_on_how_many_there_are, is_near, operands
)
from harness.tests.gpu import build, here
from harness.tests.test_gemm_gpu import behind, pitched
from optimized import few, few_plan, products
from optimized.few_plan import COLS, ROWS, Cut, cuts
from optimized.linear_plan import Product
from optimized.matrices import of_forward
from optimized.operands import Prepared, slot

pytestmark = pytest.mark.gpu

HEIGHTS = (40, 56, 64, 72, 112, 128)  # rows of W in a tile: the least and the most in either room, and between
SHAPES = [(1, 1000, 1032), (9, 45, 333), (16, 4104, 4096), (17, 45, 8), (31, 1, 520), (32, 1000, 1032),
          (33, 128, 64), (64, 4104, 4096), (65, 45, 333), (100, 1000, 4097), (127, 129, 200),
          (128, 4104, 1032), (128, 1003, 72), (129, 1000, 328), (192, 4104, 520), (200, 45, 333), (256, 1003, 72),
          (257, 1003, 333), (600, 45, 1032), (1000, 1000, 200)]


@pytest.fixture(scope="module", autouse=True)
def compiled_ahead():
    if torch.cuda.is_available():
        kinds = [("bf16", "bf16", False), ("bf16", "bf16", True), ("bf16", "f32", False),
                 ("f16", "f16", False), ("f16", "f16", True), ("f16", "f32", False)]
        plans = [few_plan.few(Cut(Product(m, 64, 64, element, output, adds=adds), rows, 1), here())
                 for element, output, adds in kinds for rows in ROWS for m in COLS]
        build((plan.source, plan.kernel) for plan in plans)


def floats(k):
    """How near they are: they lose a bit with each 16 of K, which tensor cores cut off."""
    return 2.0 ** -23 * (k / 16 + 8)


def device():
    return torch.device("cuda", torch.cuda.current_device())


def launched(x, w, c, d, cut=None, factor=None):
    """Into `d`, with C where it is given; `cut`: rows of W in a tile, CTAs that share K, and tiles that share x."""
    operands = of_forward(x, w, d if c is None else c, True, None)
    operands = type(operands)(operands.a, operands.b, None if c is None else operands.c, type(operands.d).of(d))
    made = None if cut is None else Cut(operands.product(True), *cut)
    few.launch((operands,), device(), made)(
        x.data_ptr(), w.data_ptr(), 0 if c is None else c.data_ptr(), d.data_ptr(),
        0 if factor is None else factor.data_ptr(), slot(SCALE))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("m, n, k", SHAPES)
def test_every_cut_is_right_and_the_same_every_time(m, n, k, dtype):
    x, w, c = operands(m, n, k, dtype)
    exact = SCALE * x.double() @ w.double().T
    every = cuts(of_forward(x, w, None, False, None).product(True), here())
    fewest = min(cut.across for cut in every)
    for size in [(cut.height, cut.cluster, cut.across) for cut in every
                 if cut.height in HEIGHTS and cut.across in (fewest, fewest + 1, 5)]:
        for output in (dtype, torch.float32):
            found = [pitched(torch.full((m, n), float("nan"), device="cuda", dtype=output)) for _ in range(3)]
            for d in found:
                launched(x, w, None, d, size)
                assert is_near(d, exact, floats(k)) and behind(d).isnan().all()
            assert all(torch.equal(found[0], d) for d in found[1:])
        apart, there = torch.full_like(c, float("nan")), pitched(c)
        launched(x, w, c, apart, size)
        launched(x, w, there, there, size)
        assert is_near(apart, c.double() + exact, floats(k))
        assert torch.equal(apart, there) and behind(there).isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("m, n, k", [(1, 3072, 3072), (7, 517, 18432), (16, 1001, 2303), (17, 3072, 3072),
                                     (33, 1001, 2303), (100, 4104, 4104), (128, 517, 18432), (200, 1001, 2303),
                                     (700, 1001, 2303)])
def test_functions_take_it(m, n, k, dtype):
    assert_functions_are_right("gemm_few.cu", *operands(m, n, k, dtype), floats(k))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n, k", [(1001, 2303), (4104, 4104)])
def test_few_rows_do_not_depend_on_how_many_there_are(n, k, dtype):
    assert_rows_do_not_depend_on_how_many_there_are(n, k, dtype)


def test_rows_spoil_none_but_themselves():
    x, w, _ = operands(100, 1001, 2303, torch.bfloat16)
    assert_others_are_not_spoiled(x, w, 37)


@pytest.mark.parametrize("m", [1, 17, 100])
@pytest.mark.parametrize("pitch", [301, 302, 304])
@pytest.mark.parametrize("skipped", [0, 1, 2])
def test_residuals_of_any_pitch_and_alignment(m, pitch, skipped):
    assert_residual_is_added("gemm_few.cu", m, pitch, skipped)


@pytest.mark.parametrize("m", [1, 17, 128])
def test_a_factor_in_device_memory(m):
    x, w, _ = operands(m, 515, 1027, torch.bfloat16)
    d, factor = torch.full((m, 515), float("nan"), device="cuda"), torch.tensor([-3.5], device="cuda")
    launched(x, w, None, d, factor=factor)
    assert is_near(d, -3.5 * SCALE * x.double() @ w.double().T, floats(1027))


@pytest.mark.parametrize("m", [4, 40])
def test_a_chain_of_layers_in_a_graph_waits_for_each_other(m, monkeypatch):
    """The first call may be captured."""
    assert_a_chain_waits(m, lambda: monkeypatch.setattr(products, "_prepared", Prepared()))
