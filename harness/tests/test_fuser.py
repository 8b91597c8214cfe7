"""What the fuser looks for, what it keeps, what a user may register, and what it refuses."""

import pytest
import torch

import reference
from harness.tests import pipelines
from reference import ops, recipes

SIZE = 32


def draw(*shape):
    return torch.randn(shape, requires_grad=True)


class Doubled(ops.FusedOperation):
    """Two factors at once, forward and backward."""

    def __init__(self, *, one: ops.ConstantScale, two: ops.ConstantScale):
        super().__init__((one, two))

    def fuser_forward(self, basic_op_ctxs, input_, **unused):
        return input_ * (self.basic_ops[0].scale * self.basic_ops[1].scale), [(), ()]

    def fuser_backward(self, basic_op_ctxs, grad_output, **unused):
        return grad_output * (self.basic_ops[0].scale * self.basic_ops[1].scale), [(), ()], [(), ()]


class NormOfCopy(ops.FusedOperation):
    """The backward of a norm whose input goes on elsewhere, too."""

    def __init__(self, *, split: ops.MakeExtraOutput, norm: ops.RMSNorm):
        super().__init__((split, norm))

    def fuser_backward(self, basic_op_ctxs, grad_output, *, basic_op_grad_extra_outputs):
        ctx, ((extra,), _) = basic_op_ctxs[1], basic_op_grad_extra_outputs
        x, weight, rsigma = ctx.saved
        dx, dgamma = ctx.kernels.rmsnorm_bwd_add(grad_output, x, extra, rsigma, weight)
        return dx, [(), (dgamma,)], [(), ()]


@pytest.fixture
def registered():
    """Register fusions that are gone after the test."""
    held = []

    def register(direction, *arguments, **options):
        held.append(getattr(ops, f"register_{direction}_fusion")(*arguments, **options))
        return held[-1]

    yield register
    for each in held:
        each.remove()


def test_the_static_methods_are_those_of_the_seeds():
    norm, linear, scale = ops.RMSNorm(8), ops.BasicLinear(8, 8), ops.ConstantScale(2.0)
    add = ops.AddExtraInput(in_place=True)
    found = ops.ForwardLinearScaleAdd.fuse_forward_ops([norm, linear, scale, add], recipe=None)
    assert [type(op) for op in found] == [ops.RMSNorm, ops.ForwardLinearScaleAdd]
    assert found[1].basic_ops == (linear, scale, add) and [op.is_fused_op for op in found] == [False, True]
    found = ops.BackwardLinearScale.fuse_backward_ops([norm, linear, scale, add], recipe=None)
    assert [type(op) for op in found] == [ops.RMSNorm, ops.BackwardLinearScale, ops.AddExtraInput]
    assert found[1].basic_ops == (linear, scale)
    kept = [linear, scale, ops.AddExtraInput(in_place=False), scale]
    assert ops.ForwardLinearScaleAdd.fuse_forward_ops(kept) == kept


def test_a_fused_operation_alone_is_a_pipeline():
    x, residual = draw(8, SIZE), torch.randn(8, SIZE)
    made = pipelines.make("LSA")
    fused = ops.ForwardLinearScaleAdd(linear=made[0], scale=made[1], add=made[2])
    wanted = pipelines.eager(made, x, [residual])[0]
    torch.testing.assert_close(fused(x, residual.clone()), wanted)
    assert list(ops.Sequential(ops.RMSNorm(SIZE), fused))[1:] == made and len(list(fused.parameters())) == 1


def test_contexts_can_be_made_by_hand():
    linear, scale, add = ops.BasicLinear(SIZE, SIZE), ops.ConstantScale(0.5), ops.AddExtraInput(in_place=True)
    contexts = [ops.OperationContext() for _ in range(3)]
    x, dy, residual = torch.randn(3, 8, SIZE).unbind(0)
    wanted = residual + 0.5 * x @ linear.weight.detach().t()
    with torch.no_grad():
        y, extra = ops.ForwardLinearScaleAdd(linear=linear, scale=scale, add=add).fuser_forward(
            contexts, x, basic_op_extra_inputs=[(), (), (residual,)], prev_op_grad_output_quantizer=None,
            next_op_input_quantizer=None, basic_op_kwargs=[{}, {}, {}])
        dx, (dw, _), _ = ops.BackwardLinearScale(scale=scale, linear=linear).fuser_backward(
            contexts[:2], dy, basic_op_grad_extra_outputs=[(), ()])
    assert y is residual and extra == [(), (), ()]
    torch.testing.assert_close(y, wanted)
    torch.testing.assert_close(dx, 0.5 * dy @ linear.weight.detach())
    torch.testing.assert_close(dw[0], 0.5 * dy.t() @ x)


def test_a_fusion_of_ones_own_is_tried_first(registered):
    made = ops.Sequential(ops.BasicLinear(SIZE, SIZE), ops.ConstantScale(0.5), ops.ConstantScale(3.0))
    x = draw(8, SIZE)
    y = made(x)
    assert pipelines.lists(made)[1] == ["BackwardLinearScale", "ConstantScale"]
    pattern = {"one": ops.ConstantScale, "two": ops.ConstantScale}
    registered("forward", pattern, Doubled)
    handle = registered("backward", pattern, Doubled)
    again = made(x)
    assert pipelines.lists(made) == [["BasicLinear", "Doubled"]] * 2
    torch.testing.assert_close(again, y)
    torch.testing.assert_close(*[torch.autograd.grad(each.sum(), x) for each in (y, again)])
    handle.remove()
    made(x)
    assert pipelines.lists(made)[1] == ["BackwardLinearScale", "ConstantScale"]


def test_a_fusion_says_when_it_applies(registered):
    registered("forward", {"one": ops.ConstantScale, "two": ops.ConstantScale}, Doubled,
               when=lambda one, two: two.scale == 3.0)
    made = ops.Sequential(*map(ops.ConstantScale, (2.0, 2.0, 3.0, 3.0, 3.0, 3.0)))
    assert made(torch.ones(4)).tolist() == [324.0] * 4
    assert pipelines.lists(made)[0] == ["ConstantScale", "Doubled", "Doubled", "ConstantScale"]


def test_a_backward_fusion_with_an_extra_output(registered):
    x, made = draw(8, SIZE), ops.Sequential(ops.MakeExtraOutput(), ops.RMSNorm(SIZE), ops.BasicLinear(SIZE, SIZE))
    grads = [torch.autograd.grad(made(x)[0].sum() + 2 * made(x)[1].square().sum(), [x, *made.parameters()])]
    registered("backward", {"split": ops.MakeExtraOutput, "norm": ops.RMSNorm}, NormOfCopy)
    y, extra = made(x)
    assert pipelines.lists(made)[1] == ["NormOfCopy", "BasicLinear"]
    grads.append(torch.autograd.grad(y.sum() + 2 * extra.square().sum(), [x, *made.parameters()]))
    torch.testing.assert_close(*grads)
    y, extra = made(x)
    assert torch.autograd.grad(y.sum(), x)[0].isfinite().all()


class Swapped(Doubled):
    """Covers its operations in another order than the pattern has them."""

    def __init__(self, *, one, two):
        ops.FusedOperation.__init__(self, (two, one))


@pytest.mark.parametrize("pattern, fused, words", [
    ({"one": ops.ConstantScale}, Doubled, "takes the operations one, two, but the pattern has one"),
    ({"one": ops.ConstantScale, "two": ops.Bias}, Doubled, "takes a ConstantScale as two, but the pattern has a Bias"),
    ({"one": ops.ConstantScale, "two": torch.nn.Linear}, Doubled, "must have a class of basic operations"),
    ({}, Doubled, "must map keywords"), ([ops.Bias], Doubled, "must map keywords"),
    ({"one": ops.ConstantScale}, ops.ConstantScale, "must be a class of FusedOperation"),
    ({"split": ops.MakeExtraOutput, "norm": ops.RMSNorm}, NormOfCopy, "has no fuser_forward"),
])
def test_a_class_that_does_not_fit_the_pattern_is_refused(registered, pattern, fused, words):
    with pytest.raises(TypeError, match=words):
        registered("forward", pattern, fused)


def test_a_class_that_covers_other_operations_is_refused_where_it_shows(registered):
    registered("forward", {"one": ops.ConstantScale, "two": ops.ConstantScale}, Swapped)
    with pytest.raises(TypeError, match="Swapped: covers the operations"):
        ops.Sequential(ops.ConstantScale(1.0), ops.ConstantScale(2.0))(torch.ones(4))


def test_a_plan_is_made_again_when_it_must_be():
    made, x = ops.Sequential(ops.RMSNorm(SIZE), ops.BasicLinear(SIZE, SIZE), ops.ConstantScale(0.5)), draw(SIZE, SIZE)

    def plan(given=x):
        made(given)
        return made._groups[0]._last.plan

    first = plan()
    assert plan() is first
    made[1].weight.requires_grad_(False)
    assert plan() is not first
    made[1].weight.requires_grad_(True)
    assert plan() is first
    frozen = plan(x.detach())
    assert frozen is not first and frozen.fused[1][0] is made[0]
    with torch.no_grad():
        assert plan().requires == () and not plan().backward
    with recipes.autocast(recipe=recipes.MXFP8BlockScaling()):
        quantized = plan()
    with recipes.autocast(recipe=recipes.MXFP8BlockScaling()):
        assert plan() is quantized is not first
    made[1].weight = torch.nn.Parameter(torch.zeros(SIZE, SIZE))
    assert plan() is not first and not made(x).any()
    made.append(ops.ConstantScale(2.0))
    assert len(plan().fused[0]) == 4
    made[3] = ops.Bias(SIZE)
    del made[0]
    assert [type(op).__name__ for op in plan().fused[0]] == ["BasicLinear", "ConstantScale", "Bias"]


@pytest.mark.parametrize("replace", [
    lambda made, op: setattr(made, "1", op), lambda made, op: made.add_module("1", op),
    lambda made, op: made.set_submodule("1", op), lambda made, op: made._modules.update({"1": op}),
    lambda made, op: made.__setitem__(1, op),
], ids=["setattr", "add_module", "set_submodule", "_modules", "item"])
def test_an_operation_is_replaced_as_pytorch_has_it(replace):
    made = ops.Sequential(ops.ConstantScale(2.0), ops.ConstantScale(3.0))
    assert made(torch.ones(1)) == 6
    replace(made, ops.ConstantScale(5.0))
    assert made(torch.ones(1)) == 10
    replace(made, torch.nn.Identity())
    assert made(torch.ones(1)) == 2
    del made._modules["1"]
    made.add_module("2", ops.ConstantScale(7.0))
    assert made(torch.ones(1)) == 14
    fused = Doubled(one=made[0], two=made[1])
    with pytest.raises(AttributeError, match="covers the operations that it was made with"):
        setattr(fused, "1", ops.ConstantScale(1.0))


def test_what_is_there_keeps_its_name():
    made = ops.Sequential(ops.ConstantScale(2.0))
    made.add_module("norm", ops.RMSNorm(SIZE))
    made.add_module("3", ops.Identity())
    made += [ops.Bias(SIZE), ops.Bias(SIZE)]
    assert list(made._modules) == ["0", "norm", "3", "4", "5"] and len(made.append(ops.Identity())) == 6
    assert isinstance(made.pop(-1), ops.Identity) and len(made) == 5


@pytest.mark.parametrize("made", [ops.Sequential(ops.RMSNorm(SIZE)), ops.RMSNorm(SIZE)])
def test_another_table_is_taken_at_the_next_call(made):
    made(torch.ones(4, SIZE))
    made.kernels = object()
    with pytest.raises(AttributeError, match="rmsnorm_fwd"):
        made(torch.ones(4, SIZE))


@pytest.mark.parametrize("build, error, words", [
    (lambda: ops.Sequential(*[ops.Identity()] * 2), ValueError, "Identity is in the pipeline twice"),
    (lambda: ops.Sequential(ops.Identity(), 3), TypeError, "3 is a int"),
    (lambda: ops.ConstantScale("2"), TypeError, "scale is a str"),
    (lambda: ops.ConstantScale(1e39), ValueError, "finite in float32"),
    (lambda: ops.RMSNorm(0), ValueError, "at least 1"), (lambda: ops.RMSNorm(8, eps=-1.0), ValueError, "eps"),
    (lambda: ops.LayerNorm(8, sm_margin={"sideways": 1}), ValueError, "sm_margin has 'sideways'"),
    (lambda: ops.BasicLinear(8, 2.0), TypeError, "out_features is a float"),
    (lambda: ops.AddExtraInput(in_place=1), TypeError, "in_place is a int"),
    (lambda: ops.FusedOperation([torch.nn.Identity()]), TypeError, "is no BasicOperation"),
    (lambda: ops.AddExtraInput()(torch.ones(4)), ValueError, "0 extra inputs, but its operations take 1"),
    (lambda: ops.Sequential(ops.AddExtraInput())(torch.ones(4), *torch.ones(2, 4)), ValueError, "2 extra inputs"),
    (lambda: ops.Sequential(ops.AddExtraInput())(torch.ones(4), [1.0]), TypeError, "a list"),
    (lambda: ops.Identity()(3), TypeError, "a int"),
    (lambda: ops.Identity()(torch.ones(4), depth=3), TypeError, "depth"),
    (lambda: ops.AddExtraInput()(torch.ones(4), torch.ones(4), depth=3), TypeError, "depth given"),
    (lambda: ops.Sequential(ops.AddExtraInput())(torch.ones(4), torch.ones(5)), ValueError, "shape"),
    (lambda: ops.BasicLinear(8, 8)(torch.ones(4, 9)), ValueError, "rows of"),
    (lambda: ops.BasicLinear(8, 8)(torch.ones(4, 8).bfloat16()), TypeError, "dtype"),
    (lambda: ops.LayerNorm((2, 4))(torch.ones(3, 8)), ValueError, "last dimensions must be"),
])
def test_bad_input(build, error, words):
    with pytest.raises(error, match=words):
        build()


class Forgetful(ops.BasicOperation):
    """Has an extra input, and no method that takes it."""

    num_extra_inputs = 1

    def op_forward(self, ctx, input_, **unused):
        return input_


def test_an_extra_input_that_nobody_takes_is_an_error():
    with pytest.raises(NotImplementedError, match="Forgetful has extra inputs or outputs, but no fuser_forward"):
        ops.Sequential(Forgetful())(torch.ones(4), torch.ones(4))


def test_norms_over_several_dimensions():
    x = draw(3, 2, 4)
    for norm in (ops.LayerNorm((2, 4)), ops.RMSNorm((2, 4))):
        wanted = (torch.nn.functional.layer_norm(x, (2, 4)) if isinstance(norm, ops.LayerNorm)
                  else torch.nn.functional.rms_norm(x, (2, 4), eps=1e-5))
        y = norm(x)
        torch.testing.assert_close(y, wanted)
        torch.testing.assert_close(*[torch.autograd.grad(each.square().sum(), x)[0] for each in (y, wanted)],
                                   rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("x, residual", [
    (torch.ones(8, SIZE), torch.ones(8, SIZE).bfloat16()), (torch.ones(8, SIZE).half(), torch.ones(8, SIZE).half()),
    (torch.ones(8, SIZE), torch.ones(8, SIZE + 1)), (torch.ones(8, SIZE), torch.ones(4, SIZE)),
    (torch.ones(8, SIZE + 1), torch.ones(8, SIZE)), (torch.ones(8, SIZE), torch.ones(8, SIZE).to_sparse()),
    (torch.ones(8, SIZE), torch.ones(SIZE, 8).t()), (torch.ones(SIZE), torch.ones(SIZE)),
    (torch.ones(8, SIZE), torch.ones(8, SIZE, device="meta")), (torch.ones(2, 4, SIZE), torch.ones(2, 4, SIZE)),
    (torch.ones(8, SIZE, dtype=torch.int32), torch.ones(8, SIZE)), (torch.ones(()), torch.ones(SIZE)),
])
def test_fusing_changes_nothing_about_what_is_accepted(x, residual):
    made, found = pipelines.make("LSA"), []
    for fuse in (True, False):
        try:
            found.append(pipelines.sequential(made, reference, fuse)(x, residual.clone()))
        except Exception as error:
            found.append(type(error))
    if isinstance(found[0], torch.Tensor):
        assert torch.equal(*found)
    else:
        assert found[0] is found[1] and found[0] in (TypeError, ValueError), found
