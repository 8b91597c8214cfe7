"""The norms of `reference` where the values are special: constant, huge, tiny, missing, not finite."""

import pytest
import torch

import reference
from harness.tests.norms import BACKWARD, DTYPES, FORWARD, assert_agrees, call, tensors

ALL = (*FORWARD, *BACKWARD)
HIDDEN = (*range(1, 131), 1000, 1023, 4095, 4096, 16384)


@pytest.mark.parametrize("hidden", (1, 2, 7, 64, 1000, 4096))
@pytest.mark.parametrize("function", ALL)
def test_agrees_with_float64(function, hidden):
    for zero_centered in (False, True):
        values = tensors(function, (5, hidden))
        assert_agrees(function, values, zero_centered_gamma=zero_centered)


@pytest.mark.parametrize("value", (0.0, 0.1, -7.3, 3e4, 1e-30))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_constant_row_gives_the_bias(dtype, value):
    for hidden in HIDDEN:
        weight, bias = torch.randn(2, hidden).to(dtype)
        x = torch.full((2, hidden), value).to(dtype)
        y, mu, _ = reference.layernorm_fwd(x, weight, bias, 1e-5)
        assert torch.equal(y, bias.expand(2, -1)), hidden
        assert torch.equal(mu, x[:, 0].float()), hidden


def test_no_bias_is_a_zero_bias():
    values = tensors("layernorm_fwd", (4, 33))
    zero = call("layernorm_fwd", values | {"bias": torch.zeros(33)})
    for ours, theirs in zip(call("layernorm_fwd", values | {"bias": None}), zero):
        assert torch.equal(ours, theirs)


def test_offset_costs_no_precision():
    """Two passes over the row: E[x²] − E[x]² would lose every digit of the variance here."""
    x = 30_000 + torch.randn(4, 1000)
    assert_agrees("layernorm_fwd", tensors("layernorm_fwd", x.shape, x=x))


ADVERSARIAL = {
    "zeros": lambda x: torch.zeros_like(x),
    "largest half": lambda x: x.sign() * 65504,
    "subnormal half": lambda x: x * 6e-8,
    "one outlier": lambda x: torch.where(torch.arange(x.shape[-1]) == 3, 60_000.0, x),
}


@pytest.mark.parametrize("kind", ADVERSARIAL)
@pytest.mark.parametrize("function", ALL)
def test_adversarial_values(function, kind):
    values = tensors(function, (6, 77), x=ADVERSARIAL[kind](torch.randn(6, 77)))
    assert_agrees(function, values)


@pytest.mark.parametrize("value", (torch.nan, torch.inf, -torch.inf))
@pytest.mark.parametrize("function", ALL)
def test_what_is_not_finite_stays_in_its_row(function, value):
    clean = tensors(function, (4, 40))
    name = "input" if "input" in clean else "x"
    x = clean[name].clone()
    x[2, 5] = value
    dirty = tensors(function, (4, 40), x=x)
    result, expected = call(function, dirty)[0], call(function, clean)[0]
    assert result[2].isnan().any()
    assert torch.equal(result[[0, 1, 3]], expected[[0, 1, 3]])
    if value != value:
        assert result[2].isnan().all()


@pytest.mark.parametrize("function", BACKWARD)
def test_nan_in_one_column_of_dz_reaches_one_column_of_dgamma(function):
    values = tensors(function, (4, 40))
    values["dz"][2, 5] = torch.nan
    _, *sums = call(function, values)
    for total in sums:
        assert total.isnan().nonzero().flatten().tolist() == [5]


@pytest.mark.parametrize("shape", ((0, 8), (3, 0, 8), (0, 1)))
@pytest.mark.parametrize("function", ALL)
def test_no_rows(function, shape):
    first, *rest = call(function, tensors(function, shape))
    assert first.shape == shape
    if function in BACKWARD:
        assert all(torch.equal(total, torch.zeros(shape[-1])) for total in rest)
    else:
        assert all(statistic is None or statistic.shape == (0,) for statistic in rest)


@pytest.mark.parametrize("function", ALL)
def test_eps_of_zero_and_an_integer(function):
    values = tensors(function, (4, 40), eps=0)
    assert_agrees(function, values, eps=0)


@pytest.mark.parametrize("function", ALL)
def test_results_carry_no_graph(function):
    values = {name: value.requires_grad_() for name, value in tensors(function, (4, 8)).items()}
    assert not any(result is not None and result.requires_grad for result in call(function, values))


@pytest.mark.parametrize("function", ALL)
def test_sm_margin_changes_nothing(function):
    values = tensors(function, (4, 8))
    for plain, margin in zip(call(function, values), call(function, values, sm_margin=10_000)):
        assert plain is None or torch.equal(plain, margin)
