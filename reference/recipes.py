"""Recipes: which quantizer a tensor of an operation gets, and what is kept from step to step.

A recipe is a frozen value. `recipe.state(roles)` makes what it keeps for the tensors of one operation, each named by
its role: "input" and "weight" belong to forward, "grad_output" to backward. A step is: `state.quantizer(role)` for each
tensor, `quantize`, then once `state.update()`. Constructor arguments are those of TransformerEngine 2.20 that concern
what is here; its environment variables are not read.
"""

import abc
import contextlib
import contextvars
import enum
from dataclasses import dataclass

import torch

from reference import formats
from reference.arguments import is_flag, is_group, is_integer, kind, refuse
from reference.quantizers import Float8CurrentScalingQuantizer, Float8Quantizer, MXFP8Quantizer, NVFP4Quantizer

ROLES = ("input", "weight", "grad_output")


class Format(enum.Enum):
    """Number formats of a recipe. HYBRID has E4M3 in forward, for precision, and E5M2 in backward, for range."""

    E2M1 = "E2M1"
    E4M3 = "E4M3"
    E5M2 = "E5M2"
    HYBRID = "HYBRID"

    def dtype(self, role):
        """The FP8 dtype of a tensor with this role."""
        backward = role == "grad_output"
        return formats.E5M2 if self is Format.E5M2 or (self is Format.HYBRID and backward) else formats.E4M3


class RecipeState:
    """What a recipe keeps for the tensors of one operation: the number of the step, which counts random streams on.

    Errors: ValueError for a role that is unknown, given twice, or asked for and not given.
    """

    def __init__(self, recipe, roles, *, device=None, seed=0):
        for role in roles:
            _is_one_of("state", "roles", role, ROLES)
        if len(set(roles)) != len(roles):
            refuse(ValueError, "state", f"roles is {tuple(roles)}, but must name each role once")
        is_integer("state", "seed", seed, below=2**64)
        self.recipe, self.roles, self.seed, self.step = recipe, tuple(roles), seed, 0

    def quantizer(self, role, *, rowwise=True, columnwise=False):
        """The quantizer of this step for the tensor with this role."""
        _is_one_of("quantizer", "role", role, self.roles)
        return self.recipe._quantizer(role, self, {"rowwise": rowwise, "columnwise": columnwise})

    def update(self):
        """Go on to the next step."""
        self.step += 1

    def state_dict(self):
        """What a checkpoint must hold; later steps do not change it."""
        return {"step": self.step}

    def load_state_dict(self, state):
        """Go back to where `state_dict` was taken. Errors: ValueError for that of another recipe or other roles."""
        own = self.state_dict()
        if state.keys() != own.keys():
            refuse(ValueError, "load_state_dict", f"state has {sorted(state)}, but must have {sorted(own)}")
        for name, shape in ((name, value.shape) for name, value in own.items() if isinstance(value, torch.Tensor)):
            if state[name].shape != shape:
                refuse(ValueError, "load_state_dict",
                       f"{name} has shape {tuple(state[name].shape)}, but must have {tuple(shape)}")
        self.step = state["step"]


class DelayedScalingState(RecipeState):
    """Scales and histories of amax, on the device, where the quantizers' `scale` and `amax` are views of them.

    Shapes: scale (roles,); amax_history (amax_history_len, roles), slot 0 that of this step; float32.
    """

    def __init__(self, recipe, roles, *, device=None, seed=0):
        super().__init__(recipe, roles, device=device, seed=seed)
        largest = [formats.LARGEST[recipe.fp8_format.dtype(role)] * 2.0**-recipe.margin for role in roles]
        with torch.inference_mode(False):  # training may follow, which writes them
            self.scale = torch.ones(len(roles), dtype=torch.float32, device=device)
            self.amax_history = torch.zeros(recipe.amax_history_len, len(roles), dtype=torch.float32, device=device)
            self._largest = torch.tensor(largest, dtype=torch.float32, device=device)

    @torch.no_grad()
    def update(self):
        """slot i ← slot i+1, last ← slot 0, slot 0 ← 0; then scale = (largest·2^−margin)/amax, at most FLT_MAX.

        amax is the max of the history or, with "most_recent", its newest value. One that is 0, Inf or NaN leaves the
        scale as it was. Where slot 0 is 0, nothing changes. Nothing waits for the host.
        """
        super().update()
        newest = self.amax_history[0].clone()
        rolled = self.amax_history.roll(-1, 0)
        rolled[0] = 0
        amax = newest
        if self.recipe.amax_compute_algo == "max":
            amax = torch.maximum(rolled.amax(0), newest)  # a history of one slot holds its newest value no longer
        scale = (self._largest / amax).clamp(max=formats.FLT_MAX)
        fit = (newest != 0) & (amax > 0) & amax.isfinite()
        self.scale.copy_(torch.where(fit, scale, self.scale))
        self.amax_history.copy_(torch.where(newest != 0, rolled, self.amax_history))

    def state_dict(self):
        """What a checkpoint must hold; later steps do not change it."""
        return super().state_dict() | {"scale": self.scale.clone(), "amax_history": self.amax_history.clone()}

    def load_state_dict(self, state):
        """Go back to where `state_dict` was taken, in place."""
        super().load_state_dict(state)
        self.scale.copy_(state["scale"])
        self.amax_history.copy_(state["amax_history"])


class Recipe(abc.ABC):
    """What the recipes share."""

    def state(self, roles, *, device=None, seed=0):
        """What is kept for the tensors of one operation. `seed` chooses the random stream of stochastic rounding."""
        return RecipeState(self, roles, device=device, seed=seed)

    @abc.abstractmethod
    def _quantizer(self, role, state, orientations):
        """The quantizer of the state's step for the tensor with this role."""


@dataclass(frozen=True)
class DelayedScaling(Recipe):
    """FP8 with one scale for a tensor, from the largest values of the steps before.

    Units: margin the powers of two left free above amax; amax_history_len steps.
    Errors: TypeError for types; ValueError for what is out of range and for formats that training cannot have.
    """

    margin: int = 0
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: str = "max"
    reduce_amax: bool = True  # over the ranks of autocast's amax_reduction_group, where torch.distributed runs

    def __post_init__(self):
        is_flag("DelayedScaling", "reduce_amax", self.reduce_amax)
        is_integer("DelayedScaling", "margin", self.margin, least=-100, below=101)
        _is_format("DelayedScaling", "fp8_format", self.fp8_format, Format.E4M3, Format.HYBRID)
        is_integer("DelayedScaling", "amax_history_len", self.amax_history_len, least=1)
        _is_one_of("DelayedScaling", "amax_compute_algo", self.amax_compute_algo, ("max", "most_recent"))

    def state(self, roles, *, device=None, seed=0):
        """Scales of 1 and an empty history for the tensors of one operation."""
        return DelayedScalingState(self, roles, device=device, seed=seed)

    def _quantizer(self, role, state, orientations):
        i = state.roles.index(role)
        return Float8Quantizer(state.scale[i : i + 1], state.amax_history[0, i : i + 1],
                               dtype=self.fp8_format.dtype(role), **orientations)


@dataclass(frozen=True)
class Float8CurrentScaling(Recipe):
    """FP8 with one scale for a tensor, from its own largest value.

    Errors: TypeError for types; ValueError for formats that training cannot have.
    """

    use_power_2_scales: bool = False
    fp8_format: Format = Format.HYBRID

    def __post_init__(self):
        is_flag("Float8CurrentScaling", "use_power_2_scales", self.use_power_2_scales)
        _is_format("Float8CurrentScaling", "fp8_format", self.fp8_format, Format.E4M3, Format.HYBRID)

    def _quantizer(self, role, state, orientations):
        return Float8CurrentScalingQuantizer(dtype=self.fp8_format.dtype(role),
                                             force_pow_2_scales=self.use_power_2_scales, **orientations)


@dataclass(frozen=True)
class MXFP8BlockScaling(Recipe):
    """FP8 with a power of two for each 32 elements.

    Errors: TypeError for types; ValueError for a margin, which the scale of a block does not have, and for formats that
    training cannot have.
    """

    margin: int = 0
    fp8_format: Format = Format.E4M3

    def __post_init__(self):
        is_integer("MXFP8BlockScaling", "margin", self.margin, below=1)
        _is_format("MXFP8BlockScaling", "fp8_format", self.fp8_format, Format.E4M3, Format.HYBRID)

    def _quantizer(self, role, state, orientations):
        return MXFP8Quantizer(dtype=self.fp8_format.dtype(role), **orientations)


@dataclass(frozen=True)
class NVFP4BlockScaling(Recipe):
    """E2M1 with an E4M3 scale for each 16 elements: weights in squares of 16×16, inputs and gradients with a random
    Hadamard transform (for which they must be bfloat16), gradients with stochastic rounding.

    Errors: TypeError for types; ValueError for other formats.
    """

    disable_rht: bool = False
    disable_stochastic_rounding: bool = False
    disable_2d_quantization: bool = False
    fp4_format: Format = Format.E2M1
    fp8_format: Format = Format.E4M3

    def __post_init__(self):
        for name in ("disable_rht", "disable_stochastic_rounding", "disable_2d_quantization"):
            is_flag("NVFP4BlockScaling", name, getattr(self, name))
        _is_format("NVFP4BlockScaling", "fp4_format", self.fp4_format, Format.E2M1)
        _is_format("NVFP4BlockScaling", "fp8_format", self.fp8_format, Format.E4M3)

    def _quantizer(self, role, state, orientations):
        if role == "weight":
            return NVFP4Quantizer(with_2d_quantization=not self.disable_2d_quantization, **orientations)
        return NVFP4Quantizer(
            stochastic_rounding=role == "grad_output" and not self.disable_stochastic_rounding,
            with_rht=not self.disable_rht, seed=state.seed,
            offset=state.step * len(state.roles) + state.roles.index(role), **orientations,
        )


@dataclass(frozen=True, eq=False)
class Region:
    """What is inside one `autocast`: its recipe, and the group over which amax is reduced (None: that of all ranks).

    `step` is an object that regions inside one another share: what they quantize belongs to one step.
    """

    recipe: Recipe
    amax_reduction_group: object
    step: object


_active = contextvars.ContextVar("region", default=None)


class _Step:
    """One is like no other, but a copy of an operation is in the step that the operation is in."""

    def __deepcopy__(self, memo):
        return self


@contextlib.contextmanager
def autocast(enabled=True, *, recipe=None, amax_reduction_group=None):
    """Operations whose forward runs inside quantize by `recipe`; None means DelayedScaling().

    `enabled=False` turns an outer one off. The recipe of forward is also that of the backward that belongs to it; for
    one with activation checkpoints see `reference.ops.checkpoint_contexts`. The outermost `autocast` is a step: at the
    first forward of the next one, delayed scaling takes its new scales.
    Errors: TypeError for what is no bool or no recipe, ValueError for a group that this rank is not in.
    """
    is_flag("autocast", "enabled", enabled)
    if recipe is not None and not isinstance(recipe, Recipe):
        refuse(TypeError, "autocast", f"recipe is {kind(recipe)}, but must be a recipe or None")
    is_group("autocast", "amax_reduction_group", amax_reduction_group)
    outer = _active.get()
    step = _Step() if outer is None else outer.step
    token = _active.set(Region(recipe or DelayedScaling(), amax_reduction_group, step) if enabled else None)
    try:
        yield
    finally:
        _active.reset(token)


active_region = _active.get
"""The innermost `autocast` around the call, None where there is none or it is not enabled."""


def active_recipe():
    """The recipe of the innermost `autocast` around the call, None where there is none or it is not enabled."""
    region = _active.get()
    return region and region.recipe


def _is_format(function, name, value, *allowed):
    if not isinstance(value, Format):
        refuse(TypeError, function, f"{name} is {kind(value)}, but must be a Format")
    _is_one_of(function, name, value, allowed)


def _is_one_of(function, name, value, allowed):
    if value not in allowed:
        refuse(ValueError, function, f"{name} is {value!r}, but must be {' or '.join(map(repr, allowed))}")
