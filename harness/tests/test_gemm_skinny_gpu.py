"""Products with few rows of x on a GPU: every number of rows, odd sizes, tails of K, pitches, factors, graphs."""

import pytest
import torch

import optimized
from harness.tests.gemm_rows import (
    DTYPES, SCALE, assert_a_chain_waits, assert_functions_are_right, assert_others_are_not_spoiled,
    assert_residual_is_added, assert_rows_do_not_depend_on_how_many_there_are, is_near, operands
)
from optimized import products, skinny_plan
from optimized.launch import Launch, chip
from optimized.matrices import of_forward
from optimized.operands import Prepared, slot
from optimized.skinny_plan import Strips, skinny

pytestmark = pytest.mark.gpu

ROWS = range(1, 17)
SHAPES = [(1, 8), (15, 40), (129, 1), (300, 333), (3072, 3072), (1001, 2303), (517, 18432), (4099, 4104)]  # N x K


@pytest.fixture(autouse=True)
def taken(monkeypatch):
    """Whatever the number of columns."""
    monkeypatch.setattr(skinny_plan, "makes_waves", lambda *_: True)
    monkeypatch.setattr(products, "_prepared", Prepared())


@pytest.mark.parametrize("m", ROWS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_right_and_the_same_every_time(m, dtype):
    for n, k in SHAPES:
        assert_functions_are_right("gemm_skinny.cu", *operands(m, n, k, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n, k", [(1001, 2303), (3072, 3072)])
def test_a_row_does_not_depend_on_the_others(n, k, dtype):
    assert_rows_do_not_depend_on_how_many_there_are(n, k, dtype)
    x, w, _ = operands(16, n, k, dtype)
    assert_others_are_not_spoiled(x, w, 3)


@pytest.mark.parametrize("m", [1, 5, 16])
@pytest.mark.parametrize("pitch", [301, 302, 304])
@pytest.mark.parametrize("skipped", [0, 1, 2])
def test_residuals_of_any_pitch_and_alignment(m, pitch, skipped):
    assert_residual_is_added("gemm_skinny.cu", m, pitch, skipped)


@pytest.mark.parametrize("m", [1, 16])
def test_no_elements_of_k(m):
    x, w, c = (torch.randn(size, device="cuda", dtype=torch.bfloat16) for size in ((m, 0), (33, 0), (m, 33)))
    assert torch.equal(optimized.linear_fwd(x, w), torch.zeros_like(c))
    assert torch.equal(optimized.linear_scale_add_fwd(x, w, c, SCALE, in_place=False), c)


@pytest.mark.parametrize("m", [3, 12])
def test_a_factor_in_device_memory(m):
    x, w, _ = operands(m, 515, 1027, torch.bfloat16)
    device, d = torch.device("cuda", torch.cuda.current_device()), torch.full((m, 515), float("nan"), device="cuda")
    product = of_forward(x, w, None, False, torch.float32)
    strips = Strips(product.product(True))
    launch = Launch(skinny(strips, chip(device)), device, 6, product.scalars(strips))
    factor = torch.tensor([-3.5], device="cuda")
    launch(x.data_ptr(), w.data_ptr(), 0, d.data_ptr(), factor.data_ptr(), slot(SCALE))
    assert is_near(d, -3.5 * SCALE * x.double() @ w.double().T)


def test_a_chain_of_layers_in_a_graph_waits_for_each_other():
    assert_a_chain_waits(4)
