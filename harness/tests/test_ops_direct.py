"""A pipeline that is one fusion has a node of its own: when, and that it does what the general node does."""

import pytest
import torch

from reference import ops, recipes

SIZE = 32


def draw(*shape):
    return torch.randn(shape, requires_grad=True)


class Threefold(ops.AddExtraInput):
    """Passes on another gradient."""

    def fuser_backward(self, basic_op_ctxs, grad_output, *, basic_op_grad_extra_outputs):
        return 3 * grad_output, [()], [(grad_output,)]


class Halved(ops.BasicLinear):
    """Multiplies by another weight."""

    def operands(self, ctx, input_):
        x, weight, saved = super().operands(ctx, input_)
        return x / 2, weight, saved


class Doubled(ops.FusedOperation):
    """Passes on another gradient, too."""

    def __init__(self, *, add):
        super().__init__((add,))

    def fuser_backward(self, basic_op_ctxs, grad_output, *, basic_op_grad_extra_outputs):
        return 2 * grad_output, [()], [(grad_output,)]


def pipeline(linear=ops.BasicLinear, add=ops.AddExtraInput, fuse=True, **options):
    torch.manual_seed(0)
    return ops.Sequential(linear(SIZE, SIZE, **options), ops.ConstantScale(0.5), add(in_place=True), fuse=fuse)


def is_direct(y):
    return type(y.grad_fn).__name__ == "LinearScaleAddBackward"


@pytest.mark.parametrize("frozen", ["", "residual", "input", "weight"])
@pytest.mark.parametrize("classes", [{}, {"add": Threefold}, {"linear": Halved}], ids=["own", "add", "linear"])
def test_it_gives_what_the_general_node_gives(frozen, classes):
    """Where every gradient that it computes is asked for and no operation has its own ways; of forward's factor."""
    x, r, found = draw(SIZE, SIZE), draw(SIZE, SIZE), []
    for fuse in (True, False):
        made = pipeline(**classes, fuse=fuse)
        tensors = {"input": x, "residual": r, "weight": made[0].weight}
        for name, each in tensors.items():
            each.requires_grad_(name != frozen)
        y = made(x, r.clone())
        assert is_direct(y) == (fuse and not classes and frozen in ("", "residual"))
        made[1].scale = 2.0
        found.append([y, *torch.autograd.grad(y.square().sum(), [t for n, t in tensors.items() if n != frozen])])
    torch.testing.assert_close(*found)


def test_every_call_chooses_anew():
    made, x, residual = pipeline(), draw(SIZE, SIZE), torch.ones(SIZE, SIZE)
    for _ in range(2):
        assert is_direct(made(x, residual.clone())) and not is_direct(made(x.detach(), residual.clone()))
        with recipes.autocast(recipe=recipes.MXFP8BlockScaling()):
            assert not is_direct(made(x, residual.clone()))
        with torch.no_grad():
            assert made(x, residual.clone()).grad_fn is None
    made.append(ops.Identity())
    assert not is_direct(made(x, residual.clone()))
    with pytest.raises(TypeError, match="depth given"):
        ops.OperationFuser(list(pipeline()))(x, residual, basic_op_kwargs=[{}, {}, {"depth": 3}])


def test_a_fusion_of_the_last_operation_alone_is_tried():
    made, x = pipeline(), draw(SIZE, SIZE)

    def gradient():
        y = made(x, torch.ones(SIZE, SIZE))
        return is_direct(y), torch.autograd.grad(y.sum(), x)[0]

    (_, before), registered = gradient(), ops.register_backward_fusion({"add": ops.AddExtraInput}, Doubled)
    try:
        direct, found = gradient()
    finally:
        registered.remove()
    assert not direct and torch.equal(found, 2 * before) and gradient()[0]


def test_a_gradient_that_goes_elsewhere_takes_the_general_node():
    made, x = pipeline(accumulate_into_main_grad=True), draw(SIZE, SIZE)
    made[0].weight.main_grad = torch.zeros(SIZE, SIZE)
    y = made(x, torch.ones(SIZE, SIZE))
    y.sum().backward()
    assert not is_direct(y) and made[0].weight.grad is None and made[0].weight.main_grad.any()
    with pytest.raises(AttributeError):
        made[0].accumulate_into_main_grad = False


def test_hooks_see_what_it_keeps_and_backward_runs_again():
    made, x, packed = pipeline(), draw(SIZE, SIZE), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        y = made(x, torch.ones(SIZE, SIZE))
    assert is_direct(y) and len(packed) == 2
    assert packed[0].data_ptr() == x.data_ptr() and packed[1].data_ptr() == made[0].weight.data_ptr()
    assert torch.equal(*[torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for _ in range(2)])
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


class Fourfold(ops.ConstantScale):
    """Another factor than the one that it has."""

    def op_forward(self, ctx, input_, **options):
        return 4 * super().op_forward(ctx, input_, **options)

    def op_backward(self, ctx, grad_output):
        return 4 * super().op_backward(ctx, grad_output)[0], ()


class Shifted(ops.BasicLinear):
    """Adds one to its output, and to the gradient of its input."""

    def op_forward(self, ctx, input_, **options):
        return super().op_forward(ctx, input_, **options) + 1

    def op_backward(self, ctx, grad_output):
        grad_input, grad_parameters = super().op_backward(ctx, grad_output)
        return grad_input + 1, grad_parameters


class Named(ops.BasicLinear):
    """Computes as its base does."""


@pytest.mark.parametrize("linear, scale", [(Shifted, ops.ConstantScale), (ops.BasicLinear, Fourfold),
                                           (Named, ops.ConstantScale)])
def test_a_subclass_computes_as_it_says(linear, scale):
    x, found = draw(SIZE, SIZE), []
    for fuse in (True, False):
        torch.manual_seed(0)
        made = ops.Sequential(linear(SIZE, SIZE), scale(0.5), ops.AddExtraInput(in_place=True), fuse=fuse)
        y = made(x, torch.ones(SIZE, SIZE))
        found.append([y, *torch.autograd.grad(y.square().sum(), [x, *made.parameters()])])
        assert is_direct(y) == (fuse and linear is Named)
    torch.testing.assert_close(*found)
