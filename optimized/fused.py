"""Linear layers fused with what surrounds them: the twins of reference.fused.

Launches are those of optimized.linear, see optimized.products. Scale and residual belong to the product's epilogue:
where the composition rounds three times, these round once, and nothing in between goes through memory.
"""

import inspect

from optimized import products
from optimized.plan import Chip, Plan


def linear_scale_add_fwd(input, weight, residual, scale, *, in_place=True):
    """reference.linear_scale_add_fwd on a GPU: the residual is read once, by the threads that write the output."""
    return products.forward("linear_scale_add_fwd", input, weight, residual, scale, in_place=in_place)


def linear_scale_bwd(grad_output, input, weight, scale, *, input_requires_grad=True, weight_requires_grad=True,
                     grad_weight=None, accumulate_into_grad_weight=False):
    """reference.linear_scale_bwd on a GPU: both gradients in one launch, grad_output read as it is."""
    flags = input_requires_grad, weight_requires_grad, accumulate_into_grad_weight
    return products.backward("linear_scale_bwd", grad_output, input, weight, scale, grad_weight=grad_weight,
                             flags=flags)


def plan_of(function: str, *args, chip: Chip, **kwargs) -> Plan:
    """The plan that a call of `function` takes on `chip`; tensors may be on any device, "meta" included.

    Errors: those of the call, but for the device.
    """
    return products.planned(function, inspect.signature(globals()[function]).bind(*args, **kwargs), chip)
