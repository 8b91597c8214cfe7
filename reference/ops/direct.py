"""The pipeline that is one fusion and no more, as a node of its own, which needs no contexts."""

import torch
from torch import is_grad_enabled
from torch._C import _DisableAutocast, _is_any_autocast_enabled

from reference.ops.aliasing import refuse_shared
from reference.ops.basic import AddExtraInput
from reference.ops.fused import BackwardLinearScale, ForwardLinearScaleAdd
from reference.ops.linear import BasicLinear
from reference.ops.node import guarded, recorder
from reference.ops.plan import Prepared


class LinearScaleAdd(torch.autograd.Function):
    """What fuser.Node does with ForwardLinearScaleAdd, and backward with BackwardLinearScale and AddExtraInput, in less
    of the host's time, for plans that `applies` takes."""

    @staticmethod
    def forward(func_ctx, call, residual, x, weight):
        """linear_scale_add_fwd; gives back the residual."""
        if _is_any_autocast_enabled():
            with _DisableAutocast():
                return LinearScaleAdd.forward(func_ctx, call, residual, x, weight)
        kernels, scale = call.kernels, call.factor.saved.scale
        try:
            kernels.linear_scale_add_fwd(x, weight, residual, scale)
        except ValueError:
            refuse_shared(call.plan, (residual, x, weight))
            raise
        func_ctx.save_for_backward(x, weight)
        func_ctx.kept = kernels, scale
        func_ctx.mark_dirty(residual)
        return residual

    @staticmethod
    def backward(func_ctx, grad_output):
        """linear_scale_bwd, behind the gradient of the residual. Differentiable once."""
        if is_grad_enabled() or _is_any_autocast_enabled():
            return guarded(LinearScaleAdd.backward, func_ctx, grad_output)
        (x, weight), (kernels, scale) = func_ctx.saved_tensors, func_ctx.kept
        return None, grad_output, *kernels.linear_scale_bwd(grad_output, x, weight, scale)


_record = recorder(LinearScaleAdd)


class Direct(Prepared):
    """A plan that `applies` takes, for LinearScaleAdd. factor: the ConstantScale."""

    __slots__ = ("kernels", "factor")

    def __init__(self, plan, quantizers, keywords):
        super().__init__(plan, quantizers, keywords)
        self.run, self.kernels, self.factor = _record, plan.kernels, plan.fused[0][0].basic_ops[1]


def applies(plan):
    """Whether the two fusions are all that a call computes, as they stand here, and only tensors go to backward: no
    recipe, input and weight need gradients, and the weight gets its own, on one rank."""
    forward, backward = plan.fused
    if [type(op) for op in (*forward, *backward[:-1])] != [ForwardLinearScaleAdd, BackwardLinearScale]:
        return False
    linear, _, add = forward[0].basic_ops
    return (plan.recipe is None and plan.requires[1:] == (True, True)
            and linear.parallel.mode is None and not linear.accumulate_into_main_grad
            and type(linear).operands is BasicLinear.operands and type(linear).gradients is BasicLinear.gradients
            and backward[-1] is add and type(add).fuser_backward is AddExtraInput.fuser_backward)
