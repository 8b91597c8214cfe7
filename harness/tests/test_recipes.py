"""Recipes: what each role gets, what is kept from step to step, and what is refused."""

import contextvars
import itertools
import math
import threading

import numpy as np
import pytest
import torch

from reference import quantize, recipes
from reference.formats import E4M3, E5M2, FLT_MAX
from reference.quantizers import Float8CurrentScalingQuantizer, Float8Quantizer, MXFP8Quantizer, NVFP4Quantizer
from reference.recipes import (
    DelayedScaling, Float8CurrentScaling, Format, MXFP8BlockScaling, NVFP4BlockScaling, active_recipe, autocast
)

ROLES = ("input", "weight", "grad_output")
RECIPES = (DelayedScaling, Float8CurrentScaling, MXFP8BlockScaling, NVFP4BlockScaling)
HYBRID = (E4M3, E4M3, E5M2)


@pytest.mark.parametrize("recipe, kind, dtypes", (
    (DelayedScaling(), Float8Quantizer, HYBRID),
    (DelayedScaling(fp8_format=Format.E4M3), Float8Quantizer, (E4M3,) * 3),
    (Float8CurrentScaling(), Float8CurrentScalingQuantizer, HYBRID),
    (MXFP8BlockScaling(), MXFP8Quantizer, (E4M3,) * 3),
    (MXFP8BlockScaling(fp8_format=Format.HYBRID), MXFP8Quantizer, HYBRID),
    (NVFP4BlockScaling(), NVFP4Quantizer, (E4M3,) * 3),
), ids=str)
def test_quantizers(recipe, kind, dtypes):
    state = recipe.state(ROLES)
    for role, dtype in zip(ROLES, dtypes):
        for rowwise, columnwise in ((True, False), (False, True), (True, True)):
            made = state.quantizer(role, rowwise=rowwise, columnwise=columnwise)
            assert type(made) is kind
            assert (made.dtype, made.rowwise, made.columnwise) == (dtype, rowwise, columnwise)


def test_options_reach_the_quantizers():
    assert Float8CurrentScaling(use_power_2_scales=True).state(ROLES).quantizer("input").force_pow_2_scales
    for disabled in itertools.product((False, True), repeat=3):
        rht, stochastic, square = (not flag for flag in disabled)
        state = NVFP4BlockScaling(*disabled).state(ROLES)
        flags = [(q.with_rht, q.stochastic_rounding, q.with_2d_quantization) for q in map(state.quantizer, ROLES)]
        assert flags == [(rht, False, False), (False, False, square), (rht, stochastic, False)]


def test_streams_of_stochastic_rounding_never_repeat():
    """Not over steps, nor over the tensors of a step; another seed gives another stream."""
    seen = set()
    for seed in (0, 7):
        state = NVFP4BlockScaling().state(ROLES, seed=seed)
        for _ in range(3):
            seen |= {(q.seed, q.offset) for q in map(state.quantizer, ("input", "grad_output"))}
            state.update()
    assert len(seen) == 12 and {seed for seed, _ in seen} == {0, 7}


def updated(history, scale, largest, recipe):
    """The rule, in numbers: one role's history (slot 0 first) and scale after a step."""
    newest = history[0]
    if newest == 0:
        return history, scale
    history = history[1:] + [newest]
    history[0] = 0.0
    seen = [newest] if recipe.amax_compute_algo == "most_recent" else [*history, newest]
    amax = math.nan if any(map(math.isnan, seen)) else max(seen)
    if amax > 0 and math.isfinite(amax):
        with np.errstate(over="ignore"):
            scale = min(float(np.float32(largest * 2.0**-recipe.margin) / np.float32(amax)), FLT_MAX)
    return history, scale


STEPS = (1.0, 8.0, 0.0, 3.0, 0.5, math.nan, 2.0, 1.0, 1.0, math.inf, 4.0, 1e-45, 1e-45, 1e-45, 1e-45, 0.0, 3e38, 7.0)


@pytest.mark.parametrize("length", (1, 2, 3, 5, 1024))
@pytest.mark.parametrize("algorithm", ("max", "most_recent"))
@pytest.mark.parametrize("margin", (0, 3, -2))
def test_delayed_scaling(length, algorithm, margin):
    recipe = DelayedScaling(margin, Format.HYBRID, length, algorithm)
    state = recipe.state(ROLES)
    columns = [([0.0] * length, 1.0) for _ in ROLES]
    quantizers = [state.quantizer(role) for role in ROLES]
    for step in range(len(STEPS)):
        for i, quantizer in enumerate(quantizers):
            value = float(np.float32(STEPS[(step + 5 * i) % len(STEPS)]))
            quantize(torch.tensor([[value / 2, -value]]), quantizer)
            columns[i][0][0] = value
        state.update()
        columns = [updated(*column, largest, recipe) for column, largest in zip(columns, (448.0, 448.0, 57344.0))]
        np.testing.assert_array_equal(state.amax_history.numpy(), np.float32([h for h, _ in columns]).T)
        np.testing.assert_array_equal(state.scale.numpy(), np.float32([s for _, s in columns]))
        np.testing.assert_array_equal([float(q.scale) for q in quantizers], state.scale.numpy())


def test_the_largest_leaves_the_history_in_time():
    state = DelayedScaling(amax_history_len=3, fp8_format=Format.E4M3).state(("input",))
    scales = []
    for value in (448.0, 1.0, 1.0, 1.0):
        quantize(torch.tensor([value]), state.quantizer("input"))
        state.update()
        scales.append(float(state.scale))
    assert scales == [1, 1, 448, 448]


def step(state):
    quantizer = state.quantizer("grad_output")
    x = torch.randn(32, 32, generator=torch.Generator().manual_seed(state.step)).bfloat16()
    result = quantize(x, quantizer)
    state.update()
    return result.dequantize(torch.float32)


@pytest.mark.parametrize("make", RECIPES)
def test_state_survives_a_checkpoint(make, tmp_path):
    first, second = (make().state(ROLES) for _ in range(2))
    for _ in range(3):
        step(first)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    kept = second.quantizer("grad_output")
    second.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert torch.equal(step(first), step(second))
    if make is DelayedScaling:
        assert torch.equal(kept.scale, second.scale[2:]), "quantizers made before see what was loaded"


@pytest.mark.parametrize("make", RECIPES)
def test_a_state_goes_back_within_a_process(make):
    state = make().state(ROLES)
    step(state)
    before = state.state_dict()
    once = step(state)
    state.load_state_dict(before)
    assert state.step == before["step"] and torch.equal(step(state), once)


def test_the_state_of_another_recipe_is_refused_and_changes_nothing():
    state = DelayedScaling(amax_history_len=3).state(("input",))
    others = {
        r"amax_history has shape \(1, 1\), but must have \(3, 1\)": DelayedScaling(amax_history_len=1).state(ROLES[:1]),
        r"scale has shape \(2,\), but must have \(1,\)": DelayedScaling(amax_history_len=3).state(ROLES[:2]),
        r"state has \['step'\], but must have \['amax_history', 'scale', 'step'\]": MXFP8BlockScaling().state(ROLES),
    }
    for message, other in others.items():
        other.update()
        with pytest.raises(ValueError, match=f"^load_state_dict: {message}"):
            state.load_state_dict(other.state_dict())
        assert state.step == 0


def test_autocast():
    outer, inner = MXFP8BlockScaling(), NVFP4BlockScaling()
    assert active_recipe() is None
    with autocast(recipe=outer):
        assert active_recipe() is outer
        with autocast(recipe=inner):
            assert active_recipe() is inner
        with autocast(enabled=False):
            assert active_recipe() is None
        assert active_recipe() is outer
        with pytest.raises(KeyError):
            with autocast(recipe=inner):
                raise KeyError
        assert active_recipe() is outer
    assert active_recipe() is None
    with autocast():
        assert active_recipe() == DelayedScaling()


def test_autocast_decorates():
    assert autocast(recipe=MXFP8BlockScaling())(active_recipe)() == MXFP8BlockScaling()
    assert active_recipe() is None


def test_autocast_belongs_to_its_thread_and_context():
    seen = []
    with autocast(recipe=MXFP8BlockScaling()):
        thread = threading.Thread(target=lambda: seen.append(active_recipe()))
        thread.start()
        thread.join()
        seen.append(contextvars.copy_context().run(active_recipe))
    assert seen == [None, MXFP8BlockScaling()]


@pytest.mark.parametrize("make, error, words", (
    (lambda: DelayedScaling(margin=0.5), TypeError, ("DelayedScaling: ", "margin", "float", "int")),
    (lambda: DelayedScaling(margin=200), ValueError, ("margin", "200", "at least -100")),
    (lambda: DelayedScaling(amax_history_len=0), ValueError, ("amax_history_len", "0", "at least 1")),
    (lambda: DelayedScaling(amax_compute_algo="mean"), ValueError, ("amax_compute_algo", "'mean'", "'most_recent'")),
    (lambda: DelayedScaling(fp8_format=Format.E5M2), ValueError, ("fp8_format", "E5M2", "HYBRID")),
    (lambda: DelayedScaling(fp8_format="E4M3"), TypeError, ("fp8_format", "str", "Format")),
    (lambda: Float8CurrentScaling(use_power_2_scales=1), TypeError, ("use_power_2_scales", "int", "bool")),
    (lambda: Float8CurrentScaling(fp8_format=Format.E2M1), ValueError, ("fp8_format", "E2M1", "HYBRID")),
    (lambda: MXFP8BlockScaling(margin=1), ValueError, ("MXFP8BlockScaling: ", "margin", "1", "below 1")),
    (lambda: NVFP4BlockScaling(fp8_format=Format.HYBRID), ValueError, ("NVFP4BlockScaling: ", "fp8_format", "E4M3")),
    (lambda: NVFP4BlockScaling(disable_rht=None), TypeError, ("disable_rht", "NoneType", "bool")),
    (lambda: DelayedScaling().state(("input", "bias")), ValueError, ("state: ", "roles", "'bias'", "'grad_output'")),
    (lambda: DelayedScaling().state(("input", "input")), ValueError, ("roles", "once")),
    (lambda: DelayedScaling().state(ROLES, seed=-1), ValueError, ("seed", "-1")),
    (lambda: DelayedScaling().state(("input",)).quantizer("weight"), ValueError, ("role", "'weight'", "'input'")),
    (lambda: DelayedScaling().state(ROLES).quantizer("input", rowwise=False), ValueError, ("rowwise", "columnwise")),
    (lambda: autocast(recipe="fp8").__enter__(), TypeError, ("autocast: ", "recipe", "str")),
    (lambda: autocast(1).__enter__(), TypeError, ("autocast: ", "enabled", "int")),
    (lambda: autocast(amax_reduction_group="all").__enter__(), ValueError, ("amax_reduction_group", "all")),
))
def test_refused(make, error, words):
    with pytest.raises(error) as caught:
        make()
    assert type(caught.value) is error
    assert [word for word in words if word not in str(caught.value)] == []


def test_recipes_are_values():
    assert MXFP8BlockScaling() == MXFP8BlockScaling() and len({DelayedScaling(), DelayedScaling()}) == 1
    with pytest.raises(TypeError):
        recipes.Recipe()


@pytest.mark.gpu
def test_update_on_a_gpu_waits_for_nothing():
    here, there = (DelayedScaling(amax_history_len=4).state(ROLES, device=device) for device in ("cpu", "cuda"))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for value in STEPS:
            for state in (here, there):
                state.amax_history[0].fill_(value)
                state.update()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    np.testing.assert_array_equal(there.scale.cpu().numpy(), here.scale.numpy())
    np.testing.assert_array_equal(there.amax_history.cpu().numpy(), here.amax_history.numpy())
