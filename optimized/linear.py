"""The matrix product of a linear layer, forward and backward: the twins of reference.linear.

Every call is one launch, see optimized.products; backward computes both gradients in one.
"""

import inspect

from optimized import products
from optimized.plan import Chip, Plan


def linear_fwd(input, weight, *, out_dtype=None):
    """reference.linear_fwd on a GPU."""
    return products.forward("linear_fwd", input, weight, out_dtype=out_dtype)


def linear_bwd(grad_output, input, weight, *, input_requires_grad=True, weight_requires_grad=True,
               grad_weight=None, accumulate_into_grad_weight=False):
    """reference.linear_bwd on a GPU: both gradients in one launch."""
    flags = input_requires_grad, weight_requires_grad, accumulate_into_grad_weight
    return products.backward("linear_bwd", grad_output, input, weight, grad_weight=grad_weight, flags=flags)


def plan_of(function: str, *args, chip: Chip, **kwargs) -> Plan:
    """The plan that a call of `function` takes on `chip`; tensors may be on any device, "meta" included.

    Errors: those of the call, but for the device.
    """
    return products.planned(function, inspect.signature(globals()[function]).bind(*args, **kwargs), chip)
