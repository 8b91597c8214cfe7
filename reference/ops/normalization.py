"""LayerNorm and RMSNorm as operations: before a linear layer they give what it wants, quantized or not."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from reference.arguments import is_flag, is_integer, is_number, refuse
from reference.ops.op import BasicOperation
from reference.ops.saved import dense

_MARGINS = ("forward", "backward", "inference")


class LayerNormSaved(NamedTuple):
    """What layernorm_bwd needs."""

    input: Tensor  # (..., H)
    weight: Tensor  # (H,)
    mu: Tensor  # (rows,), float32
    rsigma: Tensor  # (rows,), float32


class RMSNormSaved(NamedTuple):
    """What rmsnorm_bwd needs."""

    input: Tensor  # (..., H)
    weight: Tensor  # (H,)
    rsigma: Tensor  # (rows,), float32


class _Norm(BasicOperation):
    """What both share. H is the product of `normalized_shape`, which the input's last dimensions have."""

    needs = ("weight",)

    def __init__(self, normalized_shape, *, eps=1e-5, device=None, dtype=None, zero_centered_gamma=False, sm_margin=0):
        super().__init__()
        name = type(self).__name__
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        for size in shape:
            is_integer(name, "normalized_shape", size, least=1)
        is_number(name, "eps", eps)
        is_flag(name, "zero_centered_gamma", zero_centered_gamma)
        margins = sm_margin if isinstance(sm_margin, dict) else dict.fromkeys(_MARGINS, sm_margin)
        for key, margin in margins.items():
            if key not in _MARGINS:
                refuse(ValueError, name, f"sm_margin has {key!r}, but must have {', '.join(_MARGINS)}")
            is_integer(name, f"sm_margin of {key}", margin)
        self.eps, self.zero_centered_gamma = eps, zero_centered_gamma
        self._shape, self._margins = torch.Size(shape), {key: margins.get(key, 0) for key in _MARGINS}
        self.weight = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

    def reset_parameters(self):
        """A gain of 1, a bias of 0."""
        torch.nn.init.constant_(self.weight, 0.0 if self.zero_centered_gamma else 1.0)

    def extra_repr(self):
        """Shape and eps, for `repr`."""
        return f"{tuple(self._shape)}, eps={self.eps}"

    def _rows(self, tensor):
        """(..., *normalized_shape) as (..., H)."""
        if len(self._shape) == 1:
            return tensor
        leading = tensor.shape[:max(tensor.dim() - len(self._shape), 0)]
        if tensor.shape[len(leading):] != self._shape:
            refuse(ValueError, type(self).__name__, f"input has shape {tuple(tensor.shape)}, but its last dimensions "
                                                    f"must be {tuple(self._shape)}")
        return tensor.reshape(*leading, math.prod(self._shape))

    def _quantizer(self, next_op_input_quantizer):
        """The one behind, where it quantizes rows of this length."""
        return next_op_input_quantizer if len(self._shape) == 1 else None

    def _margin(self, ctx):
        return self._margins["forward" if ctx.requires_grad else "inference"]


class LayerNorm(_Norm):
    """output = (input − mu)·rsigma·g + bias: layernorm_fwd and layernorm_bwd, with `weight` and `bias`, which may be
    set to None.

    `sm_margin` is a number, or one for each of "forward", "backward" and "inference".
    Errors: ValueError and TypeError for arguments and shapes.
    Source: TransformerEngine, LayerNorm.
    """

    def __init__(self, normalized_shape, *, eps=1e-5, device=None, dtype=None, zero_centered_gamma=False, sm_margin=0):
        super().__init__(normalized_shape, eps=eps, device=device, dtype=dtype,
                         zero_centered_gamma=zero_centered_gamma, sm_margin=sm_margin)
        self.bias = torch.nn.Parameter(torch.empty_like(self.weight))
        self.reset_parameters()

    def reset_parameters(self):
        """A gain of 1, a bias of 0."""
        super().reset_parameters()
        if self._parameters.get("bias") is not None:
            torch.nn.init.zeros_(self.bias)

    def op_forward(self, ctx, input_, *, prev_op_grad_output_quantizer, next_op_input_quantizer):
        """layernorm_fwd"""
        x, held = self._rows(dense(input_, ctx.kernels)), self._parameters
        weight = held["weight"]
        y, mu, rsigma = ctx.kernels.layernorm_fwd(
            x, weight, held.get("bias"), self.eps, self._quantizer(next_op_input_quantizer), self._margin(ctx),
            self.zero_centered_gamma)
        if ctx.requires_grad:
            ctx.saved = LayerNormSaved(x, weight, mu, rsigma)
        return y if len(self._shape) == 1 else y.view(input_.shape)

    def op_backward(self, ctx, grad_output):
        """layernorm_bwd"""
        x, weight, mu, rsigma = ctx.saved
        dz = self._rows(dense(grad_output, ctx.kernels))
        dx, dgamma, dbeta = ctx.kernels.layernorm_bwd(
            dz, x, mu, rsigma, weight, self._margins["backward"], self.zero_centered_gamma)
        gradients = (dgamma,) if self._parameters.get("bias") is None else (dgamma, dbeta)
        return dx if len(self._shape) == 1 else dx.view(grad_output.shape), gradients


class RMSNorm(_Norm):
    """output = input·rsigma·g: rmsnorm_fwd and rmsnorm_bwd, with `weight`.

    `sm_margin` is a number, or one for each of "forward", "backward" and "inference".
    Errors: ValueError and TypeError for arguments and shapes.
    Source: TransformerEngine, RMSNorm.
    """

    def __init__(self, normalized_shape, *, eps=1e-5, device=None, dtype=None, zero_centered_gamma=False, sm_margin=0):
        super().__init__(normalized_shape, eps=eps, device=device, dtype=dtype,
                         zero_centered_gamma=zero_centered_gamma, sm_margin=sm_margin)
        self.reset_parameters()

    def op_forward(self, ctx, input_, *, prev_op_grad_output_quantizer, next_op_input_quantizer):
        """rmsnorm_fwd"""
        x, weight = self._rows(dense(input_, ctx.kernels)), self._parameters["weight"]
        y, _, rsigma = ctx.kernels.rmsnorm_fwd(
            x, weight, self.eps, self._quantizer(next_op_input_quantizer), self._margin(ctx), self.zero_centered_gamma)
        if ctx.requires_grad:
            ctx.saved = RMSNormSaved(x, weight, rsigma)
        return y if len(self._shape) == 1 else y.view(input_.shape)

    def op_backward(self, ctx, grad_output):
        """rmsnorm_bwd"""
        x, weight, rsigma = ctx.saved
        dz = self._rows(dense(grad_output, ctx.kernels))
        dx, dgamma = ctx.kernels.rmsnorm_bwd(
            dz, x, rsigma, weight, self._margins["backward"], self.zero_centered_gamma)
        return dx if len(self._shape) == 1 else dx.view(grad_output.shape), (dgamma,)
