"""Recipes in pipelines: what is quantized by whom, steps of delayed scaling, checkpoints of both kinds."""

import copy
import pickle
import types

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import reference
from reference import ops, recipes
from reference.quantized import QuantizedTensor
from reference.quantizers import QUANTIZERS

SIZE = 32
RECIPES = {"delayed": recipes.DelayedScaling(amax_history_len=2), "current": recipes.Float8CurrentScaling(),
           "mxfp8": recipes.MXFP8BlockScaling(), "nvfp4": recipes.NVFP4BlockScaling()}


def draw(*shape):
    return torch.randn(shape, dtype=torch.bfloat16, requires_grad=True)


def pipeline(*made, kernels=reference):
    return ops.Sequential(*made, kernels=kernels).bfloat16()


def recorded():
    """(a table, what it is called with): names, and operands that are quantized as lists of their orientations."""
    calls = []

    def told(name, function):
        def call(*args, **kwargs):
            sides = [[side for side in ("rowwise", "columnwise") if getattr(each, f"{side}_data") is not None]
                     if isinstance(each, QuantizedTensor) else None for each in args]
            asked = next((each for each in args if type(each) in QUANTIZERS), None)
            calls.append((name, sides, asked))
            return function(*args, **kwargs)
        return call

    return types.SimpleNamespace(**{name: told(name, getattr(reference, name)) for name in reference.__all__}), calls


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_norm_emits_what_the_linear_layer_wants(recipe):
    kernels, calls = recorded()
    made = pipeline(ops.RMSNorm(SIZE), ops.BasicLinear(SIZE, SIZE), ops.BasicLinear(SIZE, SIZE), kernels=kernels)
    with recipes.autocast(recipe=recipe):
        y = made(draw(64, SIZE))
    names = [name for name, *_ in calls]
    assert names == ["rmsnorm_fwd", "quantize", "linear_fwd", "quantize", "quantize", "linear_fwd"]
    assert calls[0][2] is not None and calls[0][2].rowwise and calls[0][2].columnwise
    assert calls[2][1] == [["rowwise", "columnwise"]] * 2
    calls.clear()
    y.sum().backward()
    assert [name for name, *_ in calls] == ["quantize", "linear_bwd", "linear_bwd"] * 2 + ["rmsnorm_bwd"]
    assert calls[1][1] == [["rowwise"], None, ["columnwise"]] and calls[2][1] == [["columnwise"], ["columnwise"], None]


@pytest.mark.parametrize("input_grad, weight_grad", [(True, False), (False, True), (False, False)])
def test_only_the_orientations_that_are_needed_are_made(input_grad, weight_grad):
    kernels, calls = recorded()
    made = pipeline(ops.BasicLinear(SIZE, SIZE), kernels=kernels)
    made[0].weight.requires_grad_(weight_grad)
    with recipes.autocast(recipe=RECIPES["mxfp8"]):
        y = made(draw(64, SIZE).detach().requires_grad_(input_grad))
    assert [asked.columnwise for name, _, asked in calls if name == "quantize"] == [weight_grad, input_grad]
    if input_grad or weight_grad:
        calls.clear()
        y.sum().backward()
        assert (calls[0][2].rowwise, calls[0][2].columnwise) == (input_grad, weight_grad) and len(calls) == 2


def test_what_is_quantized_leaves_a_pipeline_as_values():
    x = draw(64, SIZE)
    for recipe in RECIPES.values():
        with recipes.autocast(recipe=recipe):
            y = ops.Sequential(ops.Quantize(backward=True))(x)
        assert isinstance(y, torch.Tensor) and y.dtype == x.dtype and not torch.equal(y, x)
        (grad,) = torch.autograd.grad(y, x, torch.randn(64, SIZE).bfloat16())
        assert isinstance(grad, torch.Tensor) and 0.9 < torch.cosine_similarity(
            y.float().flatten(), x.float().flatten(), 0) < 1
    assert torch.equal(ops.Sequential(ops.Quantize(backward=True))(x), x)


def test_transformed_columns_meet_transformed_columns():
    """NVFP4's random Hadamard transform cancels only where both operands of a product have it."""
    made, x, grad = pipeline(ops.BasicLinear(SIZE, SIZE)), draw(64, SIZE), torch.randn(64, SIZE).bfloat16()
    found = []
    for disable in (False, True):
        recipe = recipes.NVFP4BlockScaling(disable_rht=disable, disable_stochastic_rounding=True)
        with recipes.autocast(recipe=recipe):
            found.append(torch.autograd.grad(made(x), made[0].weight, grad)[0].float().flatten())
    exact = (grad.float().t() @ x.float()).flatten()
    assert all(torch.cosine_similarity(each, exact, 0) > 0.97 for each in found) and not torch.equal(*found)


@pytest.mark.parametrize("recipe", [RECIPES["mxfp8"], RECIPES["nvfp4"]], ids=["mxfp8", "nvfp4"])
@pytest.mark.parametrize("rows, cols", [(33, 32), (32, 33)])
def test_what_a_recipe_does_not_take_is_refused_forward(recipe, rows, cols):
    made = pipeline(ops.BasicLinear(cols, SIZE))
    with recipes.autocast(recipe=recipe), pytest.raises(ValueError, match="must be a multiple of the block"):
        made(draw(rows, cols))


def steps(made, count, recipe, run=None):
    """Outputs, gradients and scales of training steps, with what each step sees growing."""
    found = []
    torch.manual_seed(3)
    for step in range(count):
        x = (draw(64, SIZE) * 2.0**step).detach().requires_grad_()
        if run is None:
            with recipes.autocast(recipe=recipe):
                y = made(x)
        else:
            y = run(made, x)
        y.square().sum().backward()
        found += [y.detach(), x.grad, *[p.grad.clone() for p in made.parameters()]]
        found += [op._state.scale.clone() for op in made if hasattr(op, "_state") and hasattr(op._state, "scale")]
    return found


def same(found, wanted):
    return all(map(torch.equal, found, wanted)) and len(found) == len(wanted)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_recomputed_activations_are_those_of_forward(recipe, reentrant, inside):
    """Also where the `autocast` is around the checkpoint, hence gone in backward; the step is counted once."""
    made = pipeline(ops.RMSNorm(SIZE), ops.BasicLinear(SIZE, SIZE))
    twin = copy.deepcopy(made)

    def quantized(x):
        with recipes.autocast(recipe=recipe):
            return twin(x)

    def run(pipeline, x):
        if inside:
            return checkpoint(quantized, x, use_reentrant=reentrant)
        with recipes.autocast(recipe=recipe):
            return checkpoint(pipeline, x, use_reentrant=reentrant)

    assert same(steps(twin, 3, recipe, run), steps(made, 3, recipe))
    assert twin[1]._state.step == made[1]._state.step == 2


def test_a_step_is_an_outermost_autocast():
    made, x, recipe = pipeline(ops.BasicLinear(SIZE, SIZE)), draw(64, SIZE), RECIPES["delayed"]
    with recipes.autocast(recipe=recipe):
        made(x)
        with recipes.autocast(recipe=recipe):
            made(2 * x)
    state = made[0]._state
    assert state.step == 0 and state.amax_history[0, 0] == 2 * x.abs().max() and (state.scale == 1).all()
    made.eval()
    with recipes.autocast(recipe=recipe):
        made(x)
    assert state.step == 0
    made.train()
    with recipes.autocast(recipe=recipe):
        made(x)
    assert state.step == 1 and state.scale[0] == 448 / (2 * x.detach().float().abs().max()) and state.scale[2] == 1


def test_another_recipe_starts_anew_and_none_quantizes_nothing():
    made, x = pipeline(ops.BasicLinear(SIZE, SIZE)), draw(64, SIZE)
    exact = made(x)
    for recipe in RECIPES.values():
        with recipes.autocast(recipe=recipe):
            assert not torch.equal(made(x), exact)
            with recipes.autocast(enabled=False):
                assert torch.equal(made(x), exact)
        assert made[0]._state.recipe is recipe
    assert torch.equal(made(x), exact)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_training_goes_on_from_a_saved_state(recipe, tmp_path):
    made = pipeline(ops.RMSNorm(SIZE), ops.Quantize(), ops.BasicLinear(SIZE, SIZE))
    steps(made, 2, recipe)
    torch.save(made.state_dict(), tmp_path / "state.pt")
    again = pipeline(ops.RMSNorm(SIZE), ops.Quantize(), ops.BasicLinear(SIZE, SIZE))
    again.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert again.state_dict().keys() == made.state_dict().keys()
    made.zero_grad()
    assert same(steps(again, 2, recipe), steps(made, 2, recipe))


@pytest.mark.parametrize("other", [*list(RECIPES.values())[1:], recipes.DelayedScaling(amax_history_len=7),
                                   recipes.DelayedScaling(amax_history_len=2, margin=1)], ids=repr)
@pytest.mark.parametrize("loaded", [True, False])
def test_a_recipe_that_is_another_starts_anew(loaded, other):
    """Whether the state before was loaded or is in use."""
    made = pipeline(ops.RMSNorm(SIZE), ops.Quantize(), ops.BasicLinear(SIZE, SIZE))
    fresh = copy.deepcopy(made)
    steps(made, 2, RECIPES["delayed"])
    if loaded:
        state, made = made.state_dict(), copy.deepcopy(fresh)
        made.load_state_dict(state)
    made.zero_grad()
    assert same(steps(made, 2, other), steps(fresh, 2, other)) and made[2]._state.recipe == other


def test_a_state_that_does_not_fit_is_refused_at_every_call():
    made = pipeline(ops.BasicLinear(SIZE, SIZE))
    steps(made, 1, RECIPES["delayed"])
    state = made.state_dict()
    state["0._extra_state"] |= {"scale": torch.ones(7)}
    made.load_state_dict(state)
    for _ in range(2):
        with recipes.autocast(recipe=RECIPES["delayed"]), pytest.raises(ValueError, match="must have"):
            made(draw(64, SIZE))


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_inference_may_come_first(recipe):
    made = pipeline(ops.RMSNorm(SIZE), ops.Quantize(), ops.BasicLinear(SIZE, SIZE))
    twin, x = copy.deepcopy(made), draw(64, SIZE).detach()
    for pipe, guard in ((made, torch.inference_mode), (twin, torch.no_grad)):
        with guard(), recipes.autocast(recipe=recipe):
            pipe(x)
    assert same(steps(made, 3, recipe), steps(twin, 3, recipe))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_copy_has_a_state_of_its_own(recipe, duplicate):
    made = pipeline(ops.RMSNorm(SIZE), ops.Quantize(), ops.BasicLinear(SIZE, SIZE))
    steps(made, 2, recipe)
    copied = duplicate(made)
    for each in (made, copied):
        each.zero_grad()
    wanted = steps(made, 3, recipe)
    assert copied[2]._state.step == made[2]._state.step - 3
    assert same(steps(copied, 3, recipe), wanted)


def test_weights_alone_load_too():
    made = pipeline(ops.BasicLinear(SIZE, SIZE))
    assert list(made.state_dict()) == ["0.weight"]
    steps(made, 1, RECIPES["delayed"])
    assert list(made.state_dict()) == ["0.weight", "0._extra_state"]
    made.load_state_dict({"0.weight": torch.zeros(SIZE, SIZE)})
    assert made[0]._state is not None and not made[0].weight.any()


def test_a_copy_within_a_step_stays_in_it():
    made, x = pipeline(ops.BasicLinear(SIZE, SIZE)), torch.ones(SIZE, SIZE).bfloat16()
    with recipes.autocast(recipe=RECIPES["delayed"]):
        made(x)
        copied = copy.deepcopy(made)
        assert torch.equal(copied(x), made(x)) and copied[0]._state.step == made[0]._state.step


def test_what_was_loaded_is_a_copy():
    made, twin = (pipeline(ops.BasicLinear(SIZE, SIZE)) for _ in range(2))
    steps(made, 2, RECIPES["delayed"])
    held = made.state_dict()
    twin.load_state_dict(held)
    scale = held["0._extra_state"]["scale"].clone()
    held["0._extra_state"]["scale"].zero_()
    assert torch.equal(twin.state_dict()["0._extra_state"]["scale"], scale)
