"""BasicLinear: its gradient in main_grad, its weight, what it is given."""

import pytest
import torch
from torch.nn import functional

from harness.tests import pipelines
from reference import ops

SIZE = 32


def draw(*shape):
    return torch.randn(shape, requires_grad=True)


def with_main_grad(fuse, dtype=torch.float32, value=1.0):
    """A pipeline whose weight has a main_grad full of `value`."""
    linear = ops.BasicLinear(SIZE, SIZE, accumulate_into_main_grad=True)
    made = ops.Sequential(linear, ops.ConstantScale(0.5), fuse=fuse)
    made[0].weight.main_grad = torch.full((SIZE, SIZE), value, dtype=dtype)
    return made, made[0].weight


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("overwrites", [None, False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_goes_into_main_grad(fuse, overwrites, dtype):
    """Added, or in place of what was there, which is never read then; weight.grad stays out of it."""
    made, weight = with_main_grad(fuse, torch.float32, float("nan") if overwrites else 1.0)
    made.to(dtype)
    weight.main_grad = weight.main_grad.clone()
    if overwrites is not None:
        weight.overwrite_main_grad = overwrites
    x, memory = torch.randn(8, SIZE, dtype=dtype), weight.main_grad.data_ptr()
    for step in (1, 2):
        made(x).backward(torch.ones(8, SIZE, dtype=dtype))
        once = 0.5 * x.float().sum(0).expand(SIZE, SIZE)
        wanted = once if overwrites else 1 + step * once
        torch.testing.assert_close(weight.main_grad, wanted, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-2)
    assert weight.grad is None and weight.main_grad.data_ptr() == memory and weight.main_grad.dtype == torch.float32


@pytest.mark.parametrize("fuse", [True, False])
def test_who_waits_for_the_gradient_is_told(fuse):
    made, weight = with_main_grad(fuse)
    weight.grad_added_to_main_grad = False
    heard = []
    weight.register_post_accumulate_grad_hook(lambda parameter: heard.append(parameter.grad_added_to_main_grad))
    made(draw(8, SIZE)).sum().backward()
    assert heard == [True] and weight.grad.shape == weight.shape and not weight.grad.any()
    assert weight.grad.untyped_storage().data_ptr() != weight.main_grad.untyped_storage().data_ptr()


@pytest.mark.parametrize("fuse", [True, False])
def test_a_missing_main_grad_is_an_error_of_forward(fuse):
    made, weight = with_main_grad(fuse)
    del weight.main_grad
    x = draw(8, SIZE)
    with pytest.raises(ValueError, match="weight.main_grad is missing"):
        made(x)
    with torch.no_grad():
        made(x)
    weight.requires_grad_(False)
    made(x).sum().backward()


@pytest.mark.parametrize("wrong, error", [
    (torch.zeros(SIZE, SIZE + 1), ValueError), (torch.zeros(SIZE, SIZE, dtype=torch.float16), TypeError),
    (torch.zeros(1, SIZE).expand(SIZE, SIZE), ValueError),
])
def test_a_wrong_main_grad_is_refused_and_not_written(wrong, error):
    made, weight = with_main_grad(True)
    weight.main_grad = wrong
    y = made(draw(8, SIZE))
    with pytest.raises(error, match="grad_weight"):
        y.sum().backward()
    assert not wrong.any()


def test_the_weight_is_that_of_a_linear_layer():
    torch.manual_seed(0)
    linear = ops.BasicLinear(1000, 50, dtype=torch.bfloat16)
    assert linear.weight.shape == (50, 1000) and linear.weight.dtype == torch.bfloat16
    assert 0.9 < linear.weight.abs().max().item() * 1000**0.5 <= 1.01
    linear.load_state_dict(torch.nn.Linear(1000, 50, bias=False, dtype=torch.bfloat16).state_dict())
    assert repr(linear) == "BasicLinear(1000, 50)"
    assert ops.BasicLinear(0, 4).weight.shape == (4, 0)
    assert ops.BasicLinear(8, 4, device="meta").weight.is_meta


@pytest.mark.parametrize("shape", [(0, SIZE), (SIZE,), (2, 3, SIZE), (2, 0, SIZE)])
def test_inputs_of_any_rank(shape):
    for name in ("RLS", "NLB", "LSA"):
        made = pipelines.make(name)
        pipeline = ops.Sequential(*made)
        x, residual = draw(*shape), [torch.randn(shape)] * name.count("A")
        y = pipeline(x, *[each.clone() for each in residual])
        wanted = pipelines.eager(made, x, residual)[0]
        torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-4)
        grad = torch.randn(shape)
        torch.testing.assert_close(*[torch.autograd.grad(each, [x, *pipeline.parameters()], grad)
                                     for each in (y, wanted)], rtol=1e-4, atol=1e-4)


def test_gradients_of_any_layout():
    linear, x = ops.BasicLinear(SIZE, SIZE), draw(8, SIZE)
    linear(x).sum().backward()
    torch.testing.assert_close(x.grad, linear.weight.detach().sum(0).expand(8, SIZE))
    y = linear(x.t().contiguous().t())
    torch.testing.assert_close(y, functional.linear(x, linear.weight))
    (y.t() @ torch.randn(8, 3)).sum().backward()
