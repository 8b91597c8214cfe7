"""LayerNorm and RMSNorm, forward and backward.

A tensor of shape (..., H) is viewed as rows of length H. All arithmetic is float32, in the order of the
formulas, with one rounding at the end. x, gamma and dz may each be bfloat16, float16 or float32. Results carry
no autograd graph: the backward functions are the gradient. `sm_margin`, the SMs left to other work, changes no
value.

With a quantizer, the output of a forward function is `quantize(output, quantizer)`, and its errors are raised before
anything is written. Delayed scaling alone casts the float32 output itself, and takes the amax of that, not of one
rounded to input's dtype first.
"""

from dataclasses import replace

import torch
from torch import Tensor

from reference import tensors
from reference.quantization import quantize
from reference.quantizers import Float8Quantizer


@torch.no_grad()
def layernorm_fwd(input, weight, bias, eps, quantizer=None, sm_margin=0, zero_centered_gamma=False):
    """mu = x₀ + mean(x − x₀), rsigma = 1/√(mean((x − mu)²) + eps), output = (x − mu)·rsigma·g + bias

    x₀ is the row's first element, so that a constant row gives exactly `bias`; g is `weight`, or 1 + `weight`
    with `zero_centered_gamma`.

    Shapes: input (..., H); weight and bias H elements, bias may be None
    -> output (..., H) in input's dtype, or quantized; mu and rsigma (rows,) float32.
    Units: mu that of input, rsigma its inverse; eps that of input squared, inside the root.
    Errors: ValueError for values, shapes and devices; TypeError for types, dtypes and the quantizer.
    Source: Ba, Kiros and Hinton, "Layer Normalization", arXiv:1607.06450.
    """
    tensors.norm_forward("layernorm_fwd", input, weight, bias, eps=eps, quantizer=quantizer,
                         sm_margin=sm_margin, zero_centered_gamma=zero_centered_gamma)
    x = _rows(input)
    first = x[:, :1]
    mu = first + _mean(x - first, input.dtype)
    rsigma = _inverse_root(_mean((x - mu).square(), input.dtype) + eps)
    y = (x - mu) * rsigma * _gain(weight, zero_centered_gamma)
    if bias is not None:
        y = y + bias.flatten().float()
    return _output(y, input, quantizer), mu.flatten(), rsigma.flatten()


@torch.no_grad()
def rmsnorm_fwd(input, weight, eps, quantizer=None, sm_margin=0, zero_centered_gamma=False):
    """rsigma = 1/√(mean(x²) + eps), output = x·rsigma·g

    g is `weight`, or 1 + `weight` with `zero_centered_gamma`.

    Shapes: input (..., H); weight H elements
    -> output (..., H) in input's dtype, or quantized; None, in the place of LayerNorm's mu; rsigma (rows,) float32.
    Units: rsigma the inverse of input's; eps that of input squared, inside the root.
    Errors: ValueError for values, shapes and devices; TypeError for types, dtypes and the quantizer.
    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv:1910.07467.
    """
    tensors.norm_forward("rmsnorm_fwd", input, weight, None, eps=eps, quantizer=quantizer,
                         sm_margin=sm_margin, zero_centered_gamma=zero_centered_gamma)
    x = _rows(input)
    rsigma = _inverse_root(_mean(x.square(), input.dtype) + eps)
    y = x * rsigma * _gain(weight, zero_centered_gamma)
    return _output(y, input, quantizer), None, rsigma.flatten()


@torch.no_grad()
def layernorm_bwd(dz, x, mu, rsigma, gamma, sm_margin=0, zero_centered_gamma=False):
    """dx = rsigma·(w − mean(w) − x̂·mean(w·x̂)), dgamma = Σ_rows dz·x̂, dbeta = Σ_rows dz

    with x̂ = (x − mu)·rsigma, w = dz·g, and g = `gamma`, or 1 + `gamma` with `zero_centered_gamma`; dgamma is
    the same either way.

    Shapes: dz and x (..., H); gamma H elements; mu and rsigma rows elements, float32, of layernorm_fwd
    -> dx (..., H) in x's dtype; dgamma and dbeta in gamma's shape and dtype, zeros when there are no rows.
    Units: dx that of dz over that of x; dgamma and dbeta that of dz.
    Errors: ValueError for values, shapes and devices; TypeError for types and dtypes.
    Source: the derivative of layernorm_fwd.
    """
    tensors.norm_backward("layernorm_bwd", x, gamma, like_x={"dz": dz},
                         statistics={"mu": mu, "rsigma": rsigma},
                         sm_margin=sm_margin, zero_centered_gamma=zero_centered_gamma)
    grad, scale = _rows(dz), rsigma.reshape(-1, 1)
    normalized = (_rows(x) - mu.reshape(-1, 1)) * scale
    weighted = grad * _gain(gamma, zero_centered_gamma)
    projection = (weighted * normalized).mean(-1, keepdim=True)
    dx = scale * (weighted - weighted.mean(-1, keepdim=True) - normalized * projection)
    dgamma, dbeta = (grad * normalized).sum(0), grad.sum(0)
    return dx.to(x.dtype).view(x.shape), _like(gamma, dgamma), _like(gamma, dbeta)


@torch.no_grad()
def rmsnorm_bwd(dz, x, rsigma, gamma, sm_margin=0, zero_centered_gamma=False):
    """dx = rsigma·(w − x̂·mean(w·x̂)), dgamma = Σ_rows dz·x̂

    with x̂ = x·rsigma, w = dz·g, and g = `gamma`, or 1 + `gamma` with `zero_centered_gamma`; dgamma is the
    same either way.

    Shapes: dz and x (..., H); gamma H elements; rsigma rows elements, float32, of rmsnorm_fwd
    -> dx (..., H) in x's dtype; dgamma in gamma's shape and dtype, zeros when there are no rows.
    Units: dx that of dz over that of x; dgamma that of dz.
    Errors: ValueError for values, shapes and devices; TypeError for types and dtypes.
    Source: the derivative of rmsnorm_fwd.
    """
    tensors.norm_backward("rmsnorm_bwd", x, gamma, like_x={"dz": dz}, statistics={"rsigma": rsigma},
                         sm_margin=sm_margin, zero_centered_gamma=zero_centered_gamma)
    dx, dgamma = _rmsnorm_gradients(dz, x, rsigma, gamma, zero_centered_gamma)
    return dx.to(x.dtype).view(x.shape), dgamma


@torch.no_grad()
def rmsnorm_bwd_add(dz, x, add, rsigma, gamma, sm_margin=0, zero_centered_gamma=False):
    """dx = rsigma·(w − x̂·mean(w·x̂)) + add, dgamma = Σ_rows dz·x̂

    rmsnorm_bwd, with the gradient `add` that reaches x by another way (a residual branch) added before the
    one rounding.

    Shapes: dz, x and add (..., H); gamma H elements; rsigma rows elements, float32
    -> dx (..., H) in x's dtype; dgamma in gamma's shape and dtype, zeros when there are no rows.
    Units: add and dx that of dz over that of x; dgamma that of dz.
    Errors: ValueError for values, shapes and devices; TypeError for types and dtypes.
    Source: the derivative of rmsnorm_fwd.
    """
    tensors.norm_backward("rmsnorm_bwd_add", x, gamma, like_x={"dz": dz, "add": add},
                         statistics={"rsigma": rsigma},
                         sm_margin=sm_margin, zero_centered_gamma=zero_centered_gamma)
    dx, dgamma = _rmsnorm_gradients(dz, x, rsigma, gamma, zero_centered_gamma)
    return (dx + _rows(add)).to(x.dtype).view(x.shape), dgamma


def _rmsnorm_gradients(dz, x, rsigma, gamma, zero_centered_gamma):
    """dx as float32 rows, before its rounding, and dgamma."""
    grad, scale = _rows(dz), rsigma.reshape(-1, 1)
    normalized = _rows(x) * scale
    weighted = grad * _gain(gamma, zero_centered_gamma)
    dx = scale * (weighted - normalized * (weighted * normalized).mean(-1, keepdim=True))
    return dx, _like(gamma, (grad * normalized).sum(0))


def _rows(tensor: Tensor) -> Tensor:
    """(..., H) as float32 (rows, H), contiguous so that no sum depends on strides."""
    return tensor.float().reshape(tensor.shape[:-1].numel(), tensor.shape[-1]).contiguous()


def _output(y: Tensor, input: Tensor, quantizer):
    """float32 rows y, shaped like input: in its dtype, or what the quantizer makes of them."""
    if isinstance(quantizer, Float8Quantizer):
        return replace(quantize(y.view(input.shape), quantizer), dtype=input.dtype)
    rounded = y.to(input.dtype).view(input.shape)
    return rounded if quantizer is None else quantize(rounded, quantizer)


def _mean(values, dtype):
    """Along rows. Of a float32 input, whose output keeps all digits, the sum is carried in float64 and rounded once."""
    if dtype != torch.float32:
        return values.mean(-1, keepdim=True)
    return values.sum(-1, keepdim=True, dtype=torch.float64).float() * (1 / values.shape[-1])


def _inverse_root(values):
    """1/√values in float32. PyTorch's own root of float32 is one step off for some values on a CPU."""
    return 1 / values.double().sqrt().float()


def _gain(weight: Tensor, zero_centered: bool) -> Tensor:
    gain = weight.float().flatten()
    return 1 + gain if zero_centered else gain


def _like(gamma: Tensor, total: Tensor) -> Tensor:
    return total.to(gamma.dtype).view(gamma.shape)
