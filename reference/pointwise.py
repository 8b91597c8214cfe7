"""The operations between linear layers: a constant factor, and the sum with a residual.

Arithmetic is float32, with one rounding at the end. Results carry no autograd graph.
"""

import torch

from reference import products


@torch.no_grad()
def constant_scale(input, scale):
    """output = input · scale, with `scale` rounded to float32 first.

    Shapes: input (...), bfloat16, float16 or float32 -> output, the same; scale a float.
    Units: output that of input times that of scale.
    Errors: ValueError for a scale that float32 does not hold; TypeError for types and dtypes.
    Source: TransformerEngine, ConstantScale.
    """
    products.scaled("constant_scale", input, scale)
    return (input.float() * _float32(scale)).to(input.dtype).contiguous()


@torch.no_grad()
def add(input, other, *, out=None):
    """output = input + other, into `out` where it is given.

    Shapes: input and other (...), of one shape and one dtype, bfloat16, float16 or float32; out None or the same
    -> output, the same: `out` itself where it is given. `out` may be `input` or `other` itself.
    Errors: ValueError for shapes, devices, and an `out` that shares only part of its memory with an operand, or shares
    memory within itself; TypeError for types and dtypes.
    Source: TransformerEngine, AddExtraInput.
    """
    products.added("add", input, other, out=out)
    total = (input.float() + other.float()).to(input.dtype)
    return total.contiguous() if out is None else out.copy_(total)


def _float32(scale):
    """The float that float32 makes of a number."""
    return torch.tensor(scale, dtype=torch.float32, device="cpu").item()  # whatever the default device is
