"""The oracle against torch.nn.functional and autograd, in float64."""

import pytest
import torch

from harness.cases import FAMILIES, NORMS, Call, Case, family_of, normalization

EXACT = {"rtol": 1e-12, "atol": 1e-13}
SHAPES = [(1, 1), (3, 2), (7, 33), (5, 1000), (2, 3, 64), (16,)]
OPTIONS = [(), (("zero_centered_gamma", True),), (("gamma_dtype", "fp32"),), (("bias", False),)]


def autograd(call, function):
    """Outputs of the function from torch.nn.functional and, backward, from autograd with x̂'s statistics of x
    itself."""
    wide = [each.double() if isinstance(each, torch.Tensor) else each for each in call.args]
    shift = 1.0 if call.kwargs.get("zero_centered_gamma") else 0.0
    norm = torch.nn.functional.layer_norm if "layernorm" in function else torch.nn.functional.rms_norm
    if "_fwd" in function:
        x, gamma, *bias, eps = wide
        return norm(x, (x.shape[-1],), gamma + shift, *bias, eps=eps)
    dz, x, gamma = wide[0], wide[1].requires_grad_(), (wide[-1] + shift).requires_grad_()
    beta = torch.zeros_like(gamma, requires_grad=True)
    parameters = (gamma, beta) if "layernorm" in function else (gamma,)
    norm(x, (x.shape[-1],), *parameters, eps=normalization.DEFAULT_EPS).backward(dz)
    dx = x.grad + wide[2] if function == "rmsnorm_bwd_add" else x.grad
    return (dx, *(parameter.grad for parameter in parameters))


def with_exact_statistics(call, function):
    """The same backward call with mu and rsigma in float64, so that autograd's are the same."""
    x = call.args[1].double().flatten(0, -2) if call.args[1].dim() > 1 else call.args[1].double()[None]
    mu = x.mean(-1) if "layernorm" in function else torch.zeros(len(x), dtype=torch.float64)
    rsigma = ((x - mu[:, None]).square().mean(-1) + normalization.DEFAULT_EPS).rsqrt()
    saved = [mu, rsigma] if "layernorm" in function else [rsigma]
    return Call((*call.args[:-1 - len(saved)], *saved, call.args[-1]), call.kwargs)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("function", ["layernorm_fwd", "rmsnorm_fwd"])
def test_forward_is_that_of_torch(function, shape, options):
    family = FAMILIES[function]
    call = family.make(Case(function, shape, options=options), "cpu", 0)
    oracle, x = family.oracle(call), call.args[0].double()
    torch.testing.assert_close(oracle["y"].view(shape), autograd(call, function), **EXACT)
    mu = x.mean(-1, keepdim=True) if function == "layernorm_fwd" else 0
    rsigma = 1 / ((x - mu).square().mean(-1) + 1e-5).sqrt()
    torch.testing.assert_close(oracle["rsigma"], rsigma.flatten(), **EXACT)
    assert ("mu" in oracle) == (function == "layernorm_fwd")


@pytest.mark.parametrize("options", OPTIONS[:3], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("function", ["layernorm_bwd", "rmsnorm_bwd", "rmsnorm_bwd_add"])
def test_backward_is_that_of_autograd(function, shape, options):
    family = FAMILIES[function]
    call = with_exact_statistics(family.make(Case(function, shape, options=options), "cpu", 0), function)
    oracle = family.oracle(call)
    for name, wanted in zip(family.outputs, autograd(call, function), strict=True):
        torch.testing.assert_close(oracle[name].view(wanted.shape), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("function", ["layernorm_bwd", "rmsnorm_bwd"])
def test_backward_uses_the_statistics_it_is_given(function):
    family = FAMILIES[function]
    before = family.make(Case(function, (4, 16)), "cpu", 0)
    *others, rsigma, gamma = before.args
    doubled = family.oracle(Call((*others, 2 * rsigma, gamma), {}))
    torch.testing.assert_close(doubled["dgamma"], 2 * family.oracle(before)["dgamma"], **EXACT)


@pytest.mark.parametrize("function", NORMS)
def test_stretches_of_rows_make_no_difference(function, monkeypatch):
    family = family_of(function)
    call = family.make(Case(function, (37, 100)), "cpu", 0)
    whole = family.oracle(call)
    monkeypatch.setattr(normalization, "CHUNK", 500)
    assert len([part for part in family.expected(call) if part.name in ("y", "dx")]) == 8
    for name, value in family.oracle(call).items():
        torch.testing.assert_close(value, whole[name], **EXACT)


@pytest.mark.parametrize("function", NORMS)
def test_no_rows_give_empty_rows_and_sums_of_zero(function):
    family = family_of(function)
    oracle = family.oracle(family.make(Case(function, (0, 5)), "cpu", 0))
    for name, value in oracle.items():
        assert value.tolist() == [0.0] * 5 if name in ("dgamma", "dbeta") else value.numel() == 0


def test_a_constant_row_gives_exactly_the_bias():
    call = FAMILIES["layernorm_fwd"].make(Case("layernorm_fwd", (1, 1000)), "cpu", 0, "constant_row")
    assert torch.equal(FAMILIES["layernorm_fwd"].oracle(call)["y"][0], call.args[2].double())


@pytest.mark.parametrize("function", NORMS)
def test_a_unit_is_never_less_than_what_it_measures(function):
    family = family_of(function)
    for part in family.expected(family.make(Case(function, (33, 100)), "cpu", 0)):
        assert (part.unit >= part.value.abs()).all(), part.name
