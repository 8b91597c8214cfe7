"""Calls of the norms, and what they give in float64 by PyTorch's own layer_norm, rms_norm and autograd."""

from contextlib import contextmanager
from unittest import mock

import torch
from torch.nn import functional

import reference

FORWARD = ("layernorm_fwd", "rmsnorm_fwd")
BACKWARD = ("layernorm_bwd", "rmsnorm_bwd", "rmsnorm_bwd_add")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def tensors(function, shape, *, seed=0, eps=1e-5, x=None):
    """float32 tensor arguments by name, in the order of the signature; the statistics are those of x."""
    generator = torch.Generator().manual_seed(seed)
    full = [torch.randn(shape, generator=generator) for _ in range(3)]
    weight, bias = (torch.randn(shape[-1], generator=generator) for _ in range(2))
    x = full[0] if x is None else x
    if function in FORWARD:
        return {"input": x, "weight": weight} | ({"bias": bias} if function == "layernorm_fwd" else {})
    if function == "layernorm_bwd":
        _, mu, rsigma = reference.layernorm_fwd(x, weight, bias, eps)
        return {"dz": full[1], "x": x, "mu": mu, "rsigma": rsigma, "gamma": weight}
    add = {"add": full[2]} if function == "rmsnorm_bwd_add" else {}
    return {"dz": full[1], "x": x, **add, "rsigma": reference.rmsnorm_fwd(x, weight, eps)[2], "gamma": weight}


def call(function, values, *, eps=1e-5, **options):
    """The results of the reference; `eps` goes to forward functions only."""
    if function in FORWARD:
        options["eps"] = eps
    return getattr(reference, function)(**values, **options)


@contextmanager
def sums_of(dtype):
    """Within it the reference adds up as for an input of `dtype`."""
    mean = reference.normalization._mean
    with mock.patch.object(reference.normalization, "_mean", lambda values, _: mean(values, dtype)):
        yield


def exact(function, values, *, eps=1e-5, zero_centered_gamma=False):
    """The same results in float64."""
    values = {name: tensor.double() for name, tensor in values.items()}
    x, gamma = values.get("x", values.get("input")), values.get("gamma", values.get("weight"))
    beta = values.get("bias", torch.zeros_like(gamma))
    leaves = [tensor.requires_grad_() for tensor in (x, gamma, beta)]
    gain = 1 + gamma if zero_centered_gamma else gamma
    is_layernorm = function.startswith("layernorm")
    if is_layernorm:
        y = functional.layer_norm(x, gamma.shape, gain, beta, eps)
    else:
        y = functional.rms_norm(x, gamma.shape, gain, eps)
    if function in BACKWARD:
        dx, dgamma, dbeta = torch.autograd.grad(y, leaves, values["dz"], allow_unused=True)
        return (dx + values.get("add", 0), dgamma, dbeta)[: 3 if is_layernorm else 2]
    mu = x.mean(-1) if is_layernorm else torch.zeros(x.shape[:-1])
    rsigma = 1 / ((x - mu[..., None]).square().mean(-1) + eps).sqrt()
    return y.detach(), mu.detach().flatten() if is_layernorm else None, rsigma.detach().flatten()


def magnitudes(function, values, expected, zero_centered_gamma=False):
    """What the rounding error of each result is relative to: its largest term, by row where it has rows."""
    gamma = values.get("gamma", values.get("weight")).double()
    gain = (1 + gamma if zero_centered_gamma else gamma).abs().max()
    full = [name for name in ("input", "x", "dz", "add") if name in values]
    largest = {name: values[name].double().abs().amax(-1) for name in full}
    if function in FORWARD:
        x, rsigma = largest["input"], expected[2]
        beta = values.get("bias", torch.zeros(1)).double().abs().max()
        return (x * rsigma.view(x.shape) * gain + beta)[..., None], x.flatten(), rsigma
    dz, rsigma = largest["dz"], values["rsigma"].double().view(largest["dz"].shape)
    dx = rsigma * dz * gain + largest.get("add", 0)
    return dx[..., None], (dz * (1 + largest["x"] * rsigma)).sum(), dz.sum()


def assert_agrees(function, values, relative=2e-6, *, eps=1e-5, **options):
    """Every result is within `relative` magnitudes of the float64 one, and None only where that is."""
    actual, expected = (compute(function, values, eps=eps, **options) for compute in (call, exact))
    assert [a is None for a in actual] == [e is None for e in expected]
    for ours, theirs, magnitude in zip(actual, expected, magnitudes(function, values, expected, **options)):
        if ours is not None:
            assert ours.shape == theirs.shape
            error = (ours.double() - theirs).abs()
            assert (error <= relative * magnitude).all(), f"{(error / magnitude).max()} of the magnitude"
