"""The op graph: operations that a pipeline is made of, and what fuses them. It runs on either function table."""

from reference.ops.basic import AddExtraInput, Bias, ConstantScale, Identity, MakeExtraOutput, Quantize
from reference.ops.fused import BackwardLinearScale, ForwardLinearScaleAdd
from reference.ops.fuser import OperationFuser
from reference.ops.linear import BasicLinear
from reference.ops.normalization import LayerNorm, RMSNorm
from reference.ops.op import BasicOperation, FusedOperation, FusibleOperation, OperationContext
from reference.ops.pattern import register_backward_fusion, register_forward_fusion
from reference.ops.recompute import checkpoint_contexts
from reference.ops.sequential import Sequential

__all__ = [
    "AddExtraInput", "BackwardLinearScale", "BasicLinear", "BasicOperation", "Bias", "ConstantScale",
    "ForwardLinearScaleAdd", "FusedOperation", "FusibleOperation", "Identity", "LayerNorm", "MakeExtraOutput",
    "OperationContext", "OperationFuser", "Quantize", "RMSNorm", "Sequential", "checkpoint_contexts",
    "register_backward_fusion", "register_forward_fusion",
]
