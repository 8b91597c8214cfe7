"""The matrix product of a linear layer, forward and backward.

A tensor of shape (..., C) is viewed as rows of length C. Operands may be quantized: they are dequantized to the dtype
that they stand for. Products are summed in float32 and rounded once (on a GPU, float32 operands become TF32 where
torch.backends.cuda.matmul.allow_tf32 says so). Results carry no autograd graph: the backward function is the gradient.
"""

import torch
from torch import Tensor

from reference import products
from reference.products import dense


@torch.no_grad()
def linear_fwd(input, weight, *, out_dtype=None):
    """output = input · weightᵀ

    Shapes: input (..., K); weight (N, K), both of one dtype -> output (..., N) in `out_dtype`, by default input's;
    zeros where K is 0.
    Units: output that of input times that of weight.
    Errors: ValueError for values, shapes and devices; TypeError for types and dtypes.
    Source: TransformerEngine, BasicLinear.
    """
    products.linear_forward("linear_fwd", input, weight, out_dtype=out_dtype)
    product = _rows(input) @ _rows(weight).t()
    return product.to(out_dtype or input.dtype).view(*input.shape[:-1], weight.shape[0])


@torch.no_grad()
def linear_bwd(grad_output, input, weight, *, input_requires_grad=True, weight_requires_grad=True,
               grad_weight=None, accumulate_into_grad_weight=False):
    """grad_input = grad_output · weight, grad_weight = grad_outputᵀ · input

    With `accumulate_into_grad_weight` the given grad_weight receives += the product; else it is overwritten, and what
    was in it is never read. A gradient that is not required is None, and a grad_weight given for it stays as it is.

    Shapes: grad_output (..., N); input (..., K); weight (N, K), all of one dtype; grad_weight None or (N, K), in
    weight's dtype or float32. input may be None where the weight's gradient is not required, weight may be None where
    the input's is not.
    -> grad_input (..., K), in input's dtype; grad_weight: the given tensor, else a new one in weight's dtype; zeros
    when there are no rows.
    Units: grad_input that of grad_output times that of weight; grad_weight that of grad_output times that of input.
    Errors: ValueError for values, shapes, devices and a grad_weight that shares memory with an operand or within
    itself; TypeError for types and dtypes.
    Source: the derivative of linear_fwd.
    """
    products.linear_backward(
        "linear_bwd", grad_output, input, weight, input_requires_grad=input_requires_grad, grad_weight=grad_weight,
        weight_requires_grad=weight_requires_grad, accumulate_into_grad_weight=accumulate_into_grad_weight)
    dy, grad_input = _rows(grad_output), None
    if input_requires_grad:
        grad_input = (dy @ _rows(weight)).to(grad_output.dtype).view(*grad_output.shape[:-1], weight.shape[1])
    if not weight_requires_grad:
        return grad_input, None
    product = dy.t() @ _rows(input)
    if grad_weight is None:
        return grad_input, product.to(input.dtype)
    return grad_input, grad_weight.copy_(grad_weight.float() + product if accumulate_into_grad_weight else product)


def _rows(operand) -> Tensor:
    """(..., C) as float32 (rows, C)."""
    values = dense(operand).float()
    return values.reshape(values.shape[:-1].numel(), values.shape[-1])
