"""Activation checkpoints with recipes: whatever is in flight, they give what backward gives without them."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from reference import ops, recipes

SIZE = 32
DELAYED = recipes.DelayedScaling(amax_history_len=2)
CURRENT, NVFP4 = recipes.Float8CurrentScaling(), recipes.NVFP4BlockScaling()
RECIPES = {"delayed": DELAYED, "current": CURRENT, "mxfp8": recipes.MXFP8BlockScaling(), "nvfp4": NVFP4}


def once(function, x):
    return checkpoint(function, x, use_reentrant=False, context_fn=ops.checkpoint_contexts)


MODES = {"once": once, "nested": lambda function, x: once(lambda given: once(function, given), x),
         "in reentrant": lambda function, x: checkpoint(lambda given: once(function, given), x, use_reentrant=True)}


def block():
    torch.manual_seed(0)
    return ops.Sequential(ops.RMSNorm(SIZE), ops.BasicLinear(SIZE, SIZE), ops.Quantize(backward=True), ops.Bias(SIZE),
                          ops.BasicLinear(SIZE, SIZE)).bfloat16()


def inside(recipe):
    return recipes.autocast(recipe is not None, recipe=recipe)


def plain(function, x):
    return function(x)


def train(wrapped, calls, backward, around=None, function=None):
    """Gradients and states after these micro-batches, each a recipe and a factor, forward one after another, with a
    look at something else between, then backward in the order given, inside `around`."""
    made = block()
    for scale in (1.0, 3.0):
        with recipes.autocast(recipe=DELAYED):
            made(torch.full((SIZE, SIZE), scale, dtype=torch.bfloat16)).sum().backward()
    given, outputs = [], []
    for recipe, factor in calls:
        x = (factor * torch.randn(SIZE, SIZE)).bfloat16().requires_grad_()
        with inside(recipe):
            given.append(x)
            outputs.append(wrapped(function(made) if function else made, x))
    with torch.no_grad():
        made(x)
    found = []
    for index in backward:
        made.zero_grad()
        with inside(around):
            outputs[index].float().square().sum().backward()
        found += [given[index].grad, *[each.grad for each in made.parameters()]]
    with recipes.autocast(recipe=DELAYED):
        found.append(made(x).detach())
    for op in (made[1], made[2], made[4]):
        found += [op._state.scale, op._state.amax_history]
    return [each.clone() for each in found]


def compare(wrapped, *arguments, **options):
    found, wanted = train(wrapped, *arguments, **options), train(plain, *arguments, **options)
    assert len(found) == len(wanted) and all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("wrapped", [once, MODES["nested"]], ids=["once", "nested"])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("backward", [(0, 1, 2), (2, 1, 0), (1, 2, 0)], ids=str)
def test_micro_batches_in_flight(wrapped, recipe, backward):
    compare(wrapped, [(recipe, 1.0), (recipe, 1e4), (recipe, 30.0)], backward)


@pytest.mark.parametrize("wrapped", [once, MODES["nested"]], ids=["once", "nested"])
@pytest.mark.parametrize("around", [None, CURRENT, DELAYED], ids=["outside", "in current", "in delayed"])
@pytest.mark.parametrize("calls", [(CURRENT, None), (None, CURRENT), (CURRENT, NVFP4, None), (DELAYED, CURRENT)],
                         ids=lambda calls: "-".join(type(each).__name__ for each in calls))
def test_a_recipe_is_that_of_forward(wrapped, around, calls):
    compare(wrapped, [(each, 1.0) for each in calls], range(len(calls)), around)


def changing(made):
    """Calls with several recipes, and with none, inside one checkpoint."""
    def call(x):
        for recipe in (None, CURRENT, NVFP4, None):
            with inside(recipe):
                x = made(x)
        return torch.nn.functional.gelu(made(x))

    return call


@pytest.mark.parametrize("wrapped", [once, MODES["nested"]], ids=["once", "nested"])
def test_several_calls_in_a_checkpoint(wrapped):
    compare(wrapped, [(DELAYED, 1.0), (DELAYED, 100.0), (None, 1.0)], (1, 0, 2), CURRENT, function=changing)


@pytest.mark.parametrize("wrapped", MODES.values(), ids=MODES)
def test_one_micro_batch_in_each_mode(wrapped):
    compare(wrapped, [(DELAYED, 5.0)], (0,), DELAYED)


@pytest.mark.parametrize("recipe", [DELAYED, NVFP4])
def test_backward_computes_again_each_time(recipe):
    made, x = block(), torch.randn(SIZE, SIZE).bfloat16().requires_grad_()
    with recipes.autocast(recipe=recipe):
        y = once(changing(made), x)
    first, second = [], []
    for found in (first, second):
        made.zero_grad()
        y.sum().backward(retain_graph=True)
        found += [each.grad.clone() for each in made.parameters()]
        with torch.no_grad(), recipes.autocast(recipe=NVFP4):
            made(100 * x)
    assert all(map(torch.equal, first, second))


def test_backward_in_another_thread():
    """As a GPU's is: two at once, of two micro-batches."""
    def train(run, wrapped):
        made = block()
        given = [(scale * torch.ones(SIZE, SIZE)).bfloat16().requires_grad_() for scale in (1.0, 3.0)]
        with recipes.autocast(recipe=NVFP4):
            losses = [wrapped(changing(made), x).sum() for x in given]
        list(run(lambda loss, x: torch.autograd.grad(loss, x, retain_graph=True), losses, given))
        return [grad for (grad,) in run(torch.autograd.grad, losses, given)]

    with ThreadPoolExecutor(2) as threads:
        assert all(map(torch.equal, train(threads.map, once), train(map, plain)))


def test_another_pipeline_than_in_forward_is_refused():
    one, other, x = block(), block(), torch.randn(SIZE, SIZE).bfloat16().requires_grad_()
    turns = iter((one, other))
    with recipes.autocast(recipe=CURRENT):
        y = once(lambda given: next(turns)(given), x)
    with pytest.raises(RuntimeError, match="checkpoint: a pipeline is computed again that was another one in forward"):
        y.sum().backward()
    with recipes.autocast(recipe=CURRENT):
        once(one, x).sum().backward()


def test_a_call_that_was_refused_is_refused_again():
    shared, made = ops.Sequential(ops.AddExtraInput(in_place=True)), block()

    def tried(given):
        h = 2 * given
        with pytest.raises(ValueError):
            shared(h, h)
        return made(h)

    compared = []
    for wrapped in (once, plain):
        x = torch.ones(SIZE, SIZE).bfloat16().requires_grad_()
        with recipes.autocast(recipe=CURRENT):
            wrapped(tried, x).sum().backward()
        compared.append(x.grad)
    assert torch.equal(*compared)
