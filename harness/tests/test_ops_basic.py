"""What single operations take, and what they make of parameters and gradients that are in use elsewhere."""

import pytest
import torch
from torch.func import functional_call

from reference import ops


@pytest.mark.parametrize("frozen", ["the module's", "the call's"])
def test_a_bias_that_is_swapped_for_a_call_gets_its_gradient(frozen):
    made = ops.Sequential(ops.Bias(4), ops.ConstantScale(2.0))
    given = torch.ones(4, dtype=torch.bfloat16, requires_grad=frozen == "the module's")
    made.requires_grad_(not given.requires_grad)
    x = torch.ones(3, 4, requires_grad=True)
    y = functional_call(made, {"0.bias": given}, (x,))
    y.sum().backward()
    assert made[0].bias.grad is None and x.grad.tolist() == [[2.0] * 4] * 3
    if given.requires_grad:
        assert given.grad.dtype == torch.bfloat16 and given.grad.tolist() == [6.0] * 4


@pytest.mark.parametrize("made, x, error, words", [
    (lambda: ops.Bias(8), torch.ones(2, 1), ValueError, r"Bias: input has shape \(2, 1\), but must have rows of 8"),
    (lambda: ops.Bias(1), torch.ones(2, 8), ValueError, "must have rows of 1"),
    (lambda: ops.Bias(1), torch.ones(()), ValueError, "must have rows of 1"),
    (lambda: ops.Bias(4), torch.ones(2, 4, dtype=torch.int64), TypeError, "Bias: input has dtype torch.int64"),
])
def test_a_bias_does_not_broadcast(made, x, error, words):
    with pytest.raises(error, match=words):
        made()(x)


@pytest.mark.parametrize("shape", [(4,), (2, 3, 4), (0, 4), (3, 0)])
def test_a_bias_of_any_size(shape):
    bias, x = ops.Bias(shape[-1]), torch.randn(shape, requires_grad=True)
    bias(x).backward(torch.ones(shape))
    assert bias.bias.grad.tolist() == [float(x[..., 0].numel() if shape[-1] else 0)] * shape[-1]


@pytest.mark.parametrize("in_place", [True, False])
def test_gradients_that_autograd_shares_are_not_written(in_place):
    """Of sums of outputs, weighted or not: one gradient, in the same memory, for both."""
    made = ops.Sequential(ops.MakeExtraOutput(in_place=in_place), ops.AddExtraInput())
    x, r, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True), torch.tensor([1.0, 2.0, 3.0])
    for loss, dx, dr in ((lambda y, e: ((y + e) * w).sum(), 2 * w, w),
                         (lambda y, e: y.sum() + e.sum(), 2 * torch.ones(3), torch.ones(3))):
        found = torch.autograd.grad(loss(*made(x, r)), (x, r))
        assert torch.equal(found[0], dx) and torch.equal(found[1], dr)


class HalfOf(torch.autograd.Function):
    """A view that a function of one's own gives."""

    @staticmethod
    def forward(ctx, whole):
        return whole[:2]

    @staticmethod
    def backward(ctx, grad):
        return torch.cat((grad, torch.zeros_like(grad)))


@pytest.mark.parametrize("view", [
    torch.no_grad()(lambda whole: whole[:2]), lambda whole: whole.chunk(2)[0],
    lambda whole: whole.view(2, 2, 4).unbind(0)[0], HalfOf.apply, lambda whole: whole[:2],
], ids=["no_grad", "chunk", "unbind", "function", "slice"])
@pytest.mark.parametrize("learns", [(False, False), (False, True), (True, False), (True, True)], ids=str)
@pytest.mark.parametrize("before", [(), (ops.ConstantScale,)], ids=["alone", "behind another"])
def test_what_pytorch_does_not_write_stays_as_it_is(view, learns, before):
    made, found = ops.Sequential(*[each(1.0) for each in before], ops.AddExtraInput(in_place=True)), []
    for write in (lambda x, target: target.add_(x), lambda x, target: made(x, target)):
        target = view(torch.zeros(4, 4, requires_grad=learns[0]) * 1)
        try:
            write(torch.ones(2, 4, requires_grad=learns[1]), target)
            found.append(True)
        except RuntimeError:
            found.append(False)
        assert target.detach().any() == found[-1]
    assert found[0] is found[1]
