"""A pipeline is one node of the autograd graph: what it saves, writes, passes on, and what PyTorch makes of it."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import optimized
import optimized.ops
import reference
from harness.tests import pipelines
from reference import ops


def draw(*shape):
    return torch.randn(shape, requires_grad=True)


def add(in_place=True):
    return ops.AddExtraInput(in_place=in_place)


def gradients(loss, *tensors):
    return torch.autograd.grad(loss, tensors)


@pytest.mark.parametrize("name", ["LSA", "A", "ALS", "AI", "AM", "LSAB"])
def test_a_residual_is_written_and_stays_in_the_graph(name):
    """Also where it is no output of the pipeline, and used again afterwards."""
    made = pipelines.make(name)
    pipeline = pipelines.sequential(made, reference)
    x, r, w = draw(8, 32), draw(8, 32), torch.randn(8, 32)
    residual, twin = r.clone(), r.clone()
    memory, version = residual.data_ptr(), residual._version
    outputs = pipeline(x, residual)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    assert residual.data_ptr() == memory and residual._version > version and residual.grad_fn is not None
    found = gradients(sum((each * w).sum() for each in outputs) + residual.square().sum(), x, r)
    made_by_hand = pipelines.eager(made[:name.index("A")], x, ())[0] + twin
    rest = pipelines.eager(made[name.index("A") + 1:], made_by_hand, ())
    wanted = gradients(sum((each * w).sum() for each in rest) + made_by_hand.square().sum(), x, r)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("fuse", [True, False])
def test_what_would_make_backward_wrong_raises(fuse):
    pipeline = pipelines.sequential(pipelines.make("LSA"), reference, fuse)
    x, r = draw(8, 32), draw(8, 32)
    residual = r.clone()
    square = residual.square()
    loss = square.sum() + pipeline(x, residual).sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    y = pipeline(x, r.clone())
    with torch.no_grad():
        pipeline[0].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("shared, words", [
    (lambda x, w: x[:], "overlaps the input"), (lambda x, w: w.view(32, 32), "overlaps parameter 0"),
    (lambda x, w: torch.zeros(1, 32).expand(32, 32), "overlaps itself"),
])
def test_shared_memory_is_refused_before_anything_is_written(fuse, shared, words):
    pipeline = pipelines.sequential(pipelines.make("LSA"), reference, fuse)
    x = torch.randn(32, 32)
    residual = shared(x, pipeline[0].weight.detach())
    before = residual.clone()
    with pytest.raises(ValueError, match=words):
        pipeline(x, residual)
    assert torch.equal(residual, before)


def test_one_residual_for_two_additions_is_refused():
    x, residual = torch.randn(2, 8, 32).unbind(0)
    residual = residual.clone()
    with pytest.raises(ValueError, match="overlaps extra input 1"):
        ops.Sequential(add(), add())(x, residual, residual)


@pytest.mark.parametrize("of, words", [
    (lambda leaf: leaf, "a leaf Variable"), (lambda leaf: leaf[:], "a view of a leaf Variable"),
    (lambda leaf: leaf.detach().clone()[:8], "one output"),
])
def test_what_autograd_lets_nobody_write_is_refused_before_anything_is_written(of, words):
    pipeline = ops.Sequential(add(), ops.ConstantScale(2.0))
    leaf = draw(8, 32)
    residual = of(leaf)
    before = residual.detach().clone()
    with pytest.raises(RuntimeError, match=words):
        pipeline(draw(8, 32), residual)
    assert torch.equal(residual, before)


def test_a_view_is_written_where_it_is_the_output():
    base, x = torch.randn(16, 32), draw(8, 32)
    wanted = base[:8].clone() + x.detach()
    y = ops.Sequential(add())(x, base[:8])
    assert torch.equal(base[:8], wanted) and base.requires_grad
    assert torch.equal(gradients(y.sum(), x)[0], torch.ones(8, 32))


def test_without_gradients_nothing_is_kept():
    pipeline = ops.Sequential(ops.RMSNorm(32), ops.BasicLinear(32, 32), ops.ConstantScale(0.5), add())
    x, residual = torch.randn(2, 8, 32).unbind(0)
    with torch.no_grad():
        y = pipeline(x, residual.clone())
    assert y.grad_fn is None and torch.equal(y, pipeline(x, residual.clone()).detach())
    with torch.inference_mode():
        assert torch.equal(pipeline(x, residual.clone()), y)


@pytest.mark.parametrize("frozen", range(8))
def test_only_what_is_asked_for_gets_gradients(frozen):
    pipeline = ops.Sequential(ops.RMSNorm(32), ops.BasicLinear(32, 32), ops.ConstantScale(0.5), add(False))
    x, r = draw(8, 32), draw(8, 32)
    held = [x, pipeline[0].weight, pipeline[1].weight]
    for bit, each in enumerate(held):
        each.requires_grad_(not frozen >> bit & 1)
    pipeline(x, r).sum().backward()
    wanted = r.detach() + 0.5 * functional.linear(functional.rms_norm(x, (32,), pipeline[0].weight, 1e-5),
                                                  pipeline[1].weight)
    for each in held:
        assert (each.grad is None) == (not each.requires_grad)
    asked = [each for each in held if each.requires_grad]
    if asked:
        torch.testing.assert_close([each.grad for each in asked], list(gradients(wanted.sum(), *asked)),
                                   rtol=1e-4, atol=1e-4)
    assert torch.equal(r.grad, torch.ones(8, 32))


def test_gradients_that_nobody_sends():
    pipeline = ops.Sequential(ops.ConstantScale(2.0), ops.MakeExtraOutput(), ops.BasicLinear(32, 32),
                              ops.MakeExtraOutput())
    x = draw(8, 32)
    for index, has_weight in ((0, True), (1, False), (2, True)):
        x.grad = pipeline[2].weight.grad = None
        pipeline(x)[index].sum().backward()
        assert (pipeline[2].weight.grad is not None) == has_weight
        wanted = functional.linear(2 * x, pipeline[2].weight) if index != 1 else 2 * x
        torch.testing.assert_close(x.grad, gradients(wanted.sum(), x)[0])


def test_what_no_gradient_reaches_needs_none():
    """What is written, or given out, before the first tensor that needs a gradient."""
    made = ops.Sequential(ops.MakeExtraOutput(), add(), ops.BasicLinear(32, 32), ops.MakeExtraOutput())
    x, residual = torch.randn(2, 8, 32).unbind(0)
    residual = residual.clone()
    y, before, behind = made(x, residual)
    assert not before.requires_grad and not residual.requires_grad and y.requires_grad and behind.requires_grad
    (y + behind + residual + before).sum().backward()
    torch.testing.assert_close(made[2].weight.grad, 2 * residual.sum(0).expand(32, 32))
    y, before = ops.Sequential(ops.MakeExtraOutput(), ops.BasicLinear(32, 32))(x)
    assert y.requires_grad and not before.requires_grad


def test_an_extra_output_that_is_written_later_raises_in_backward():
    y, extra = ops.Sequential(ops.ConstantScale(2.0), ops.MakeExtraOutput(), ops.RMSNorm(32))(draw(8, 32))
    extra.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_backward_runs_again_but_is_not_differentiated():
    linear, x = ops.BasicLinear(32, 32), draw(8, 32)
    loss = linear(x).square().sum()
    first = gradients_retained(loss, x)
    assert torch.equal(first, gradients(loss, x)[0])
    (grad,) = torch.autograd.grad(linear(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
    with pytest.raises(NotImplementedError, match="torch.func"):
        torch.func.grad(lambda t: linear(t).sum())(x)


def gradients_retained(loss, x):
    return torch.autograd.grad(loss, x, retain_graph=True)[0]


def test_calls_inside_and_beside_one_another():
    """Several forwards before a backward, one in each thread, and one inside a backward, as checkpoints have it."""
    pipeline = pipelines.sequential(pipelines.make("RLSA"), reference)
    given = [(draw(8, 32), torch.randn(8, 32)) for _ in range(4)]

    def run(x, residual):
        y = checkpoint(lambda *of: pipeline(of[0], of[1].clone()), x, residual, use_reentrant=False)
        return gradients(pipeline(y, residual.clone()).square().sum(), x, *pipeline.parameters())

    wanted = [run(*each) for each in given]
    losses = [pipeline(x, residual.clone()).square().sum() for x, residual in given]
    one_by_one = [gradients(pipeline(x, residual.clone()).square().sum(), x) for x, residual in given]
    assert all(torch.equal(*gradients(loss, x), *found) for loss, (x, _), found in zip(losses, given, one_by_one))
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            for found, each in zip(pool.map(run, *zip(*given)), wanted):
                assert all(map(torch.equal, found, each))


def test_other_modules_stand_among_operations():
    pipeline = ops.Sequential(ops.RMSNorm(32), torch.nn.Linear(32, 32), add(False), torch.nn.GELU(), add(False))
    x, one, two = (draw(8, 32) for _ in range(3))
    wanted = functional.gelu(pipeline[1](functional.rms_norm(x, (32,), eps=1e-5)) + one) + two
    torch.testing.assert_close(pipeline(x, one, two), wanted)
    assert len(pipeline) == 5 and isinstance(pipeline[1:], ops.Sequential) and len(pipeline[:2] + [ops.Identity()]) == 3


@pytest.mark.parametrize("pipeline", [ops.Sequential(ops.RMSNorm(32), ops.BasicLinear(32, 32)),
                                      ops.BasicLinear(32, 32)])
def test_compiled_code_breaks_its_graph_and_is_right(pipeline):
    x = draw(8, 32)
    compiled = torch.compile(lambda t: pipeline(t * 2) * 3, backend="eager")
    found, wanted = compiled(x), pipeline(x * 2) * 3
    assert torch.equal(found, wanted) and torch.equal(*[gradients(y.sum(), x)[0] for y in (found, wanted)])


@pytest.mark.parametrize("others", [False, True], ids=["its device", "other devices, too"])
@pytest.mark.parametrize("name", ["RLSB", "LSA"])
def test_autocast_of_torch_does_not_reach_inside(name, others):
    pipeline, x = pipelines.sequential(pipelines.make(name), reference), draw(8, 32)
    residual = [torch.ones(8, 32)] * name.count("A")

    def run():
        return pipeline(x, *[each.clone() for each in residual])

    wanted = run()
    grads = gradients(wanted.sum(), x, *pipeline.parameters())
    with torch.autocast("cpu", torch.bfloat16), autocast_of("cuda", others):
        y = run()
        assert torch.equal(y, wanted) and y.dtype == torch.float32
        assert all(map(torch.equal, gradients(y.sum(), x, *pipeline.parameters()), grads))
        assert torch.is_autocast_enabled("cpu") and torch.is_autocast_enabled("cuda") == others


@contextmanager
def autocast_of(device, enabled):
    """torch.autocast on a machine that may lack the device."""
    before = torch.is_autocast_enabled(device)
    torch.set_autocast_enabled(device, enabled)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, before)


def test_parameters_that_are_swapped_for_a_call():
    pipeline, x = ops.Sequential(ops.RMSNorm(32), ops.BasicLinear(32, 32)), draw(8, 32)
    other = {name: torch.randn_like(value).requires_grad_() for name, value in pipeline.named_parameters()}
    y = torch.func.functional_call(pipeline, other, x)
    wanted = functional.linear(functional.rms_norm(x, (32,), other["0.weight"], 1e-5), other["1.weight"])
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-4)
    for found, grad in zip(gradients(y.sum(), *other.values()), gradients(wanted.sum(), *other.values())):
        torch.testing.assert_close(found, grad, rtol=1e-4, atol=1e-4)


def test_saved_tensors_pass_through_hooks():
    pipeline, x = pipelines.sequential(pipelines.make("NLSB"), reference), draw(8, 32)
    wanted, packed = gradients(pipeline(x).sum(), x), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t.clone(), lambda t: t):
        y = pipeline(x)
    assert torch.equal(gradients(y.sum(), x)[0], wanted[0]) and len(packed) == 6


@pytest.mark.parametrize("kernels", [reference, optimized])
def test_copies_and_pickles(kernels):
    x = torch.randn(8, 32)
    pipeline = ops.Sequential(ops.RMSNorm(32), ops.BasicLinear(32, 32), kernels=kernels, fuse=False)
    copied = copy.deepcopy(pipeline)
    assert copied.kernels is kernels and not copied.fuse and copied[1].weight is not pipeline[1].weight
    single = ops.BasicLinear(32, 32)
    wanted = single(x)
    assert torch.equal(copy.deepcopy(single)(x), wanted) and torch.equal(pickle.loads(pickle.dumps(single))(x), wanted)
    default = {reference: ops, optimized: optimized.ops}[kernels].Sequential(ops.RMSNorm(32), ops.BasicLinear(32, 32))
    default.load_state_dict(pipeline.state_dict())
    assert default.kernels is kernels and pickle.loads(pickle.dumps(default)).kernels is kernels
    assert list(default.state_dict()) == ["0.weight", "1.weight"]


def test_the_table_is_the_pipelines():
    """Also of operations that were made for another one."""
    assert optimized.ops.__all__ == ops.__all__
    x = torch.randn(8, 32)
    with pytest.raises(ValueError, match="optimized needs it on a CUDA device"):
        optimized.ops.RMSNorm(32)(x)
    assert ops.Sequential(optimized.ops.RMSNorm(32))(x).shape == x.shape
    with pytest.raises(AttributeError, match="rmsnorm_fwd"):
        ops.Sequential(ops.RMSNorm(32), kernels=object())(x)
