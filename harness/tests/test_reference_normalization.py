"""The norms of `reference` where the values are special: constant, huge, tiny, missing, not finite."""

from dataclasses import replace

import pytest
import torch

import reference
from harness.tests.norms import BACKWARD, DTYPES, FORWARD, assert_agrees, call, sums_of, tensors
from harness.tests.quantize_cases import difference, recipes
from reference.quantizers import Float8Quantizer, MXFP8Quantizer, NVFP4Quantizer

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


@pytest.mark.parametrize("recipe", recipes(), ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("function", FORWARD)
def test_quantized_output_is_that_of_quantize(function, recipe):
    """Of y in input's dtype; with delayed scaling of the float32 y, whose amax is the quantizer's."""
    values = tensors(function, (2, 16, 64))
    narrow = values | {"input": values["input"].bfloat16()}
    delayed, quantizer, other = recipe.cls is Float8Quantizer, recipe.make("cpu"), recipe.make("cpu")
    got, *statistics = call(function, narrow, quantizer=quantizer)
    wide = narrow | {"input": narrow["input"].float()} if delayed else narrow
    with sums_of(torch.bfloat16):
        y, *expected = call(function, wide)
    want = reference.quantize(y, other)
    assert difference(got, replace(want, dtype=torch.bfloat16)) == ""
    assert got.shape == (2, 16, 64)
    assert [each if each is None else each.tolist() for each in statistics] == [
        each if each is None else each.tolist() for each in expected]
    if delayed:
        assert quantizer.amax.tolist() == other.amax.tolist() and quantizer.amax > 0.5


@pytest.mark.parametrize("function", FORWARD)
def test_quantizer_that_does_not_fit(function):
    """The errors of quantize, under the name of the norm, and nothing written."""
    values = tensors(function, (4, 48))
    for quantizer, words in (
        (MXFP8Quantizer(), ("48 cols", "32")), (MXFP8Quantizer(rowwise=False, columnwise=True), ("4 rows", "32")),
        (Float8Quantizer(torch.ones(1, device="meta"), torch.zeros(1, device="meta")), ("meta",)),
        (Float8Quantizer(torch.ones(1), values["weight"][3:4]), ("quantizer.amax", "weight")),
    ):
        with pytest.raises(ValueError) as caught:
            call(function, values, quantizer=quantizer)
        assert str(caught.value).startswith(f"{function}: ")
        assert [word for word in words if word not in str(caught.value)] == []
    with pytest.raises(TypeError, match="bfloat16"):
        call(function, values, quantizer=NVFP4Quantizer(with_rht=True, rowwise=False, columnwise=True))
