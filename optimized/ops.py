"""The op graph of reference.ops, the same classes, with the optimized table where none is named."""

import optimized
from reference import ops
from reference.ops import (
    BasicOperation, FusedOperation, FusibleOperation, OperationContext, OperationFuser, checkpoint_contexts,
    register_backward_fusion, register_forward_fusion
)

__all__ = [
    "AddExtraInput", "BackwardLinearScale", "BasicLinear", "BasicOperation", "Bias", "ConstantScale",
    "ForwardLinearScaleAdd", "FusedOperation", "FusibleOperation", "Identity", "LayerNorm", "MakeExtraOutput",
    "OperationContext", "OperationFuser", "Quantize", "RMSNorm", "Sequential", "checkpoint_contexts",
    "register_backward_fusion", "register_forward_fusion",
]


class AddExtraInput(ops.AddExtraInput):
    """reference.ops.AddExtraInput on the optimized table."""

    kernels = optimized


class BackwardLinearScale(ops.BackwardLinearScale):
    """reference.ops.BackwardLinearScale on the optimized table."""

    kernels = optimized


class BasicLinear(ops.BasicLinear):
    """reference.ops.BasicLinear on the optimized table."""

    kernels = optimized


class Bias(ops.Bias):
    """reference.ops.Bias on the optimized table."""

    kernels = optimized


class ConstantScale(ops.ConstantScale):
    """reference.ops.ConstantScale on the optimized table."""

    kernels = optimized


class ForwardLinearScaleAdd(ops.ForwardLinearScaleAdd):
    """reference.ops.ForwardLinearScaleAdd on the optimized table."""

    kernels = optimized


class Identity(ops.Identity):
    """reference.ops.Identity on the optimized table."""

    kernels = optimized


class LayerNorm(ops.LayerNorm):
    """reference.ops.LayerNorm on the optimized table."""

    kernels = optimized


class MakeExtraOutput(ops.MakeExtraOutput):
    """reference.ops.MakeExtraOutput on the optimized table."""

    kernels = optimized


class Quantize(ops.Quantize):
    """reference.ops.Quantize on the optimized table."""

    kernels = optimized


class RMSNorm(ops.RMSNorm):
    """reference.ops.RMSNorm on the optimized table."""

    kernels = optimized


class Sequential(ops.Sequential):
    """reference.ops.Sequential on the optimized table."""

    kernels = optimized
