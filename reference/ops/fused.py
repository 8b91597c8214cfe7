"""The fusions of a linear layer with what scales its output and adds it to a residual."""

from dataclasses import replace

from reference.arguments import kind, refuse
from reference.ops.basic import AddExtraInput, ConstantScale
from reference.ops.linear import BasicLinear
from reference.ops.op import FusedOperation
from reference.ops.pattern import BACKWARD, FORWARD, Fusion
from reference.ops.quantizing import no_keywords


class ForwardLinearScaleAdd(FusedOperation):
    """residual ← residual + scale · (input · weightᵀ), the forward of BasicLinear, ConstantScale and
    AddExtraInput(in_place=True), by linear_scale_add_fwd.

    Not with row tensor parallelism, where ranks add up their products before anything else happens to these.
    Errors: TypeError for other operations, ValueError for what it does not compute.
    Source: TransformerEngine, ForwardLinearScaleAdd.
    """

    refuses_overlap = True

    def __init__(self, *, linear: BasicLinear, scale: ConstantScale, add: AddExtraInput):
        _check(type(self), FORWARD_LINEAR_SCALE_ADD, linear=linear, scale=scale, add=add)
        super().__init__((linear, scale, add))

    def fuser_forward(self, basic_op_ctxs, input_, *, basic_op_extra_inputs, prev_op_grad_output_quantizer,
                      next_op_input_quantizer, basic_op_kwargs):
        """linear_scale_add_fwd; gives back the residual, as AddExtraInput does."""
        if any(basic_op_kwargs):
            no_keywords(self, [name for keywords in basic_op_kwargs for name in keywords])
        linear, scale, _ = self.basic_ops
        ctx, scale_ctx, _ = basic_op_ctxs
        (residual,) = basic_op_extra_inputs[2]
        x, weight, saved = linear.operands(ctx, input_)
        ctx.kernels.linear_scale_add_fwd(x, weight, residual, scale.saved.scale)
        if ctx.requires_grad:
            ctx.saved, scale_ctx.saved = saved, scale.saved
        return residual, [(), (), ()]

    @classmethod
    def fuse_forward_ops(cls, ops, **unused):
        """The list `ops`, in forward order, with each BasicLinear, ConstantScale, in-place AddExtraInput fused."""
        return replace(FORWARD_LINEAR_SCALE_ADD, fused=cls).fuse(ops)


class BackwardLinearScale(FusedOperation):
    """grad_input = scale · (grad_output · weight), grad_weight = scale · (grad_outputᵀ · input), the backward of
    BasicLinear and ConstantScale, by linear_scale_bwd.

    Not with column tensor parallelism. Errors: TypeError for other operations, ValueError for what it does not compute.
    Source: TransformerEngine, BackwardLinearScale.
    """

    def __init__(self, *, scale: ConstantScale, linear: BasicLinear):
        _check(type(self), BACKWARD_LINEAR_SCALE, linear=linear, scale=scale)
        super().__init__((linear, scale))

    def fuser_backward(self, basic_op_ctxs, grad_output, *, basic_op_grad_extra_outputs):
        """linear_scale_bwd"""
        ctx, scale_ctx = basic_op_ctxs
        grad_input, grad_weight = self.basic_ops[0].gradients(
            ctx, grad_output, ctx.kernels.linear_scale_bwd, scale_ctx.saved.scale)
        return grad_input, [(grad_weight,), ()], [(), ()]

    @classmethod
    def fuse_backward_ops(cls, ops, **unused):
        """The list `ops`, in forward order, with each BasicLinear, ConstantScale fused."""
        return replace(BACKWARD_LINEAR_SCALE, fused=cls).fuse(ops)


def _check(fused, fusion, **window):
    for keyword, wanted in fusion.pattern.items():
        if not isinstance(window[keyword], wanted):
            refuse(TypeError, fused.__name__, f"{keyword} is {kind(window[keyword])}, but must be a {wanted.__name__}")
    if not fusion.when(**window):
        refuse(ValueError, fused.__name__, "these operations are not fused: the sum is not in place, or ranks add up "
                                           "what is to be scaled")


FORWARD_LINEAR_SCALE_ADD = Fusion(
    {"linear": BasicLinear, "scale": ConstantScale, "add": AddExtraInput}, ForwardLinearScaleAdd,
    lambda linear, scale, add: add.in_place and linear.tensor_parallel_mode != "row")
BACKWARD_LINEAR_SCALE = Fusion(
    {"linear": BasicLinear, "scale": ConstantScale}, BackwardLinearScale,
    lambda linear, scale: linear.tensor_parallel_mode != "column")
FORWARD.built_in, BACKWARD.built_in = (FORWARD_LINEAR_SCALE_ADD,), (BACKWARD_LINEAR_SCALE,)
