"""Linear layers fused with what surrounds them: each is the composition of its parts.

The fused twins round once where a composition rounds after every part. Results carry no autograd graph.
"""

import torch

from reference import products
from reference.linear import linear_bwd, linear_fwd
from reference.pointwise import add, constant_scale


@torch.no_grad()
def linear_scale_add_fwd(input, weight, residual, scale, *, in_place=True):
    """output = residual + scale · (input · weightᵀ), with `scale` rounded to float32 first.

    `in_place` writes output into residual, and returns it.

    Shapes: input (..., K); weight (N, K); residual (..., N), all of one dtype; scale a float
    -> output (..., N) in that dtype.
    Units: output that of residual, and of scale times input times weight.
    Errors: ValueError for values, shapes, devices and a residual that is written but shares memory with an operand or
    within itself; TypeError for types and dtypes.
    Source: TransformerEngine, ForwardLinearScaleAdd.
    """
    products.linear_scale_add_forward("linear_scale_add_fwd", input, weight, residual, scale=scale, in_place=in_place)
    return add(constant_scale(linear_fwd(input, weight), scale), residual, out=residual if in_place else None)


@torch.no_grad()
def linear_scale_bwd(grad_output, input, weight, scale, *, input_requires_grad=True, weight_requires_grad=True,
                     grad_weight=None, accumulate_into_grad_weight=False):
    """grad_input = scale · (grad_output · weight), grad_weight = scale · (grad_outputᵀ · input)

    with `scale` rounded to float32 first; all else as linear_bwd has it. What grad_weight accumulates into is not
    scaled.

    Shapes: those of linear_bwd; scale a float.
    Units: those of linear_bwd, times that of scale.
    Errors: those of linear_bwd, and ValueError for a scale that float32 does not hold.
    Source: TransformerEngine, BackwardLinearScale.
    """
    options = {"input_requires_grad": input_requires_grad, "weight_requires_grad": weight_requires_grad,
               "grad_weight": grad_weight, "accumulate_into_grad_weight": accumulate_into_grad_weight}
    products.linear_backward("linear_scale_bwd", grad_output, input, weight, **options)
    products.is_scale("linear_scale_bwd", scale)
    return linear_bwd(constant_scale(products.dense(grad_output), scale), input, weight, **options)
