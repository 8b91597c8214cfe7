"""optimized.ops is reference.ops on the other table, whatever is made there, and by whom."""

import inspect
import pickle

import pytest
import torch

import optimized
import optimized.ops
from reference import ops

SIZE = 8
CLASSES = [name for name in ops.__all__ if inspect.isclass(getattr(ops, name))]


def window(of=ops, mode=True):
    return of.BasicLinear(SIZE, SIZE), of.ConstantScale(2.0), of.AddExtraInput(in_place=mode)


@pytest.mark.parametrize("name", CLASSES)
def test_each_class_has_the_table_and_its_bases(name):
    here, there = getattr(optimized.ops, name), getattr(ops, name)
    assert issubclass(here, there) and here is not there and pickle.loads(pickle.dumps(here)) is here
    assert name in ("OperationContext", "OperationFuser") or here.kernels is optimized
    assert here.__module__ == "optimized.ops" and here.__doc__ and inspect.signature(there).parameters.keys() >= (
        inspect.signature(here).parameters.keys() - {"settings", "more"})
    for other in CLASSES:
        assert issubclass(here, getattr(optimized.ops, other)) == issubclass(there, getattr(ops, other)), other


def test_what_is_made_there_is_of_the_table():
    of = optimized.ops
    assert of.OperationFuser([of.Identity()]).kernels is of.OperationContext().kernels is optimized
    assert of.OperationFuser([of.Identity()], ops, fuse=False).kernels is of.OperationContext(ops).kernels is ops
    (forward,) = of.ForwardLinearScaleAdd.fuse_forward_ops([*window(of)])
    backward, _ = of.BackwardLinearScale.fuse_backward_ops([*window()])
    assert type(forward) is of.ForwardLinearScaleAdd and type(backward) is of.BackwardLinearScale
    with pytest.raises(ValueError, match="optimized needs it on a CUDA device"):
        forward(torch.ones(4, SIZE), torch.ones(4, SIZE))
    context = of.OperationContext(requires_grad=False)
    assert (context.kernels, context.requires_grad) == (optimized, False)
    with pytest.raises(AttributeError):
        context.left = 1  # what would outlive the call


class Own(optimized.ops.BasicOperation):
    """An operation of a user's."""

    def op_forward(self, ctx, input_, **unused):
        assert ctx.kernels is optimized
        return input_


def test_an_operation_of_ones_own_is_of_the_table_of_its_base():
    assert Own()(torch.ones(4)).sum() == 4


@pytest.mark.parametrize("make, error, words", [
    (lambda: ops.ForwardLinearScaleAdd(linear=ops.Bias(4), scale=window()[1], add=window()[2]), TypeError,
     "ForwardLinearScaleAdd: linear is a Bias, but must be a BasicLinear"),
    (lambda: ops.BackwardLinearScale(linear=window()[0], scale=ops.Identity()), TypeError,
     "scale is a Identity, but must be a ConstantScale"),
    (lambda: ops.ForwardLinearScaleAdd(**dict(zip(("linear", "scale", "add"), window(mode=False)))), ValueError,
     "the sum is not in place"),
])
def test_fused_operations_take_what_they_compute(make, error, words):
    with pytest.raises(error, match=words):
        make()
