"""What is common to the nodes of the autograd graph that pipelines are."""

import torch
from torch.autograd.function import once_differentiable


def recorder(node):
    """`node.apply`, where nothing is looked for that `node` does not have: torch.func, which `OperationFuser.ready`
    refuses, and in backward a `vjp`."""
    node._backward_cls.apply = node.backward
    return super(torch.autograd.Function, node).apply


def guarded(backward, func_ctx, *grads):
    """`backward`, differentiable once, and out of the reach of torch.autocast, whichever devices it is for."""
    if torch.is_grad_enabled():
        return once_differentiable(backward)(func_ctx, *grads)
    with torch._C._DisableAutocast():
        return backward(func_ctx, *grads)
