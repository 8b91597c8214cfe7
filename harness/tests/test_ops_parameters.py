"""Parameters that come, go, or are none."""

import gc
import weakref

import pytest
import torch
from torch.nn.utils import parametrizations

from harness.tests import pipelines
from reference import ops, recipes

SIZE = 8


def check(norm, x):
    y = norm(x)
    wanted = torch.nn.functional.layer_norm(x, (SIZE,), norm.weight, getattr(norm, "bias", None))
    torch.testing.assert_close(y, wanted)
    found = [torch.autograd.grad(each.square().sum(), [x, *norm.parameters()]) for each in (y, wanted)]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("called", [False, True], ids=["before a call", "after a call"])
@pytest.mark.parametrize("remove", [lambda norm: setattr(norm, "bias", None), lambda norm: delattr(norm, "bias")],
                         ids=["None", "deleted"])
def test_a_bias_is_removed_and_put_back(remove, called):
    norm, x = ops.LayerNorm(SIZE), torch.randn(4, SIZE, requires_grad=True)
    if called:
        check(norm, x)
    remove(norm)
    check(norm, x)
    norm.reset_parameters()
    norm.bias = torch.nn.Parameter(torch.randn(SIZE))
    check(norm, x)


@pytest.mark.parametrize("called", [False, True], ids=["before a call", "after a call"])
@pytest.mark.parametrize("replace", [
    lambda op: parametrizations.weight_norm(op), lambda op: setattr(op, "weight", None),
    lambda op: (delattr(op, "weight"), setattr(op, "weight", torch.ones(SIZE))),
], ids=["parametrization", "None", "plain"])
@pytest.mark.parametrize("make", [lambda: ops.BasicLinear(SIZE, SIZE), lambda: ops.RMSNorm(SIZE)])
def test_a_weight_that_is_no_parameter_is_refused_by_name(make, replace, called):
    op, x = make(), torch.randn(4, SIZE)
    if called:
        op(x)
    replace(op)
    with pytest.raises(TypeError, match="(BasicLinear|RMSNorm): weight is no parameter"):
        op(x)


def test_weights_of_before_are_not_kept():
    made, x = ops.Sequential(*pipelines.make("RL")), torch.randn(8, pipelines.SIZE)
    with recipes.autocast(recipe=recipes.Float8CurrentScaling()):
        made(x)
    with torch.no_grad():
        made(x)
    before = weakref.ref(made[1].weight)
    made[1].weight = torch.nn.Parameter(torch.zeros_like(made[1].weight))
    made(x)
    gc.collect()
    assert before() is None
