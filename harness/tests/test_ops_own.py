"""Operations of one's own: what they may keep and give, and what is said of what they may not."""

import pytest
import torch

from reference import ops


class Keeping(ops.BasicOperation):
    """Keeps what it is told to."""

    def __init__(self, keep):
        super().__init__()
        self.keep = keep

    def op_forward(self, ctx, input_, **unused):
        ctx.saved = self.keep(input_)
        return input_ * 1

    def op_backward(self, ctx, grad_output):
        self.found = ctx.saved
        return grad_output, ()


@pytest.mark.parametrize("keep", [
    lambda x: (x, 3), lambda x: (x.shape, "name", [1, (2.0, None)], {"a": 1}), lambda x: None,
    lambda x: (x, x.shape, {1}),
])
def test_tensors_and_plain_values_are_kept(keep):
    x, op = torch.ones(3, requires_grad=True), Keeping(keep)
    op(x).sum().backward()
    assert repr(op.found) == repr(keep(x))


@pytest.mark.parametrize("keep, words", [
    (lambda x: [x], "saved is a list, but must be a tuple"), (lambda x: {"x": x}, "saved is a dict"),
    (lambda x: x, "saved is a Tensor"), (lambda x: ([x],), "saved has a list of tensors"),
    (lambda x: (x, {"of": (1, (x,))}), "saved has a tuple of tensors"),
    (lambda x: (x, {"x": x}), "saved has a dict of tensors"),
])
def test_tensors_that_autograd_would_not_see_are_refused(keep, words):
    with pytest.raises(TypeError, match=f"OperationContext: {words}"):
        Keeping(keep)(torch.ones(3, requires_grad=True))


class Bare(ops.BasicOperation):
    """Gives its output, and no list of extra outputs behind it."""

    def fuser_forward(self, basic_op_ctxs, input_, **unused):
        return input_ * 1


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_an_output_alone_is_refused(rows):
    with pytest.raises(TypeError, match="Bare: fuser_forward gave a tensor, but must give the output and"):
        Bare()(torch.ones(rows, 2))
    with pytest.raises(TypeError, match="Bare: fuser_forward gave a tensor"):
        ops.Sequential(ops.Identity(), Bare())(torch.ones(rows, 2))
