"""Operations that quantize: what a recipe keeps for each, from step to step and from checkpoint to checkpoint."""

import torch
import torch.distributed

from reference.arguments import refuse
from reference.ops.op import BasicOperation
from reference.recipes import DelayedScaling

_LOADED = object()  # the step of a state that was loaded: the next one is another


class QuantizingOperation(BasicOperation):
    """A basic operation that quantizes its `roles` where a recipe is active.

    The state of the recipe goes into `state_dict`, where there is one, and comes back from there; without one, a loaded
    state waits for the first call with a recipe. Any other recipe starts anew, be it another margin alone, whether the
    state is in use or was loaded.
    """

    def __init__(self):
        super().__init__()
        self._state, self._state_device, self._step, self._made, self._waiting = None, None, None, None, None
        self._seed = int(torch.randint(2**62, (), device="cpu"))  # follows torch.manual_seed, as weights do

    def recipe_state(self, recipe, device):
        """What `recipe` keeps for this operation: what there is, that of a checkpoint, or a new one."""
        if self._state is None or self._state.recipe != recipe:
            state, step = recipe.state(self.roles, device=device, seed=self._seed), None
            if self._waiting is not None:
                held = dict(self._waiting)
                if held.pop("recipe", repr(recipe)) == repr(recipe):
                    state.load_state_dict(held)
                    step = _LOADED
            self._state, self._state_device, self._step, self._waiting = state, device, step, None
        elif self._state_device != device:
            held = self._state.state_dict()
            self._state, self._state_device = recipe.state(self.roles, device=device, seed=self._seed), device
            self._state.load_state_dict(held)
        return self._state

    def quantizers(self, input_requires_grad, weight_requires_grad):
        """This step's quantizers, with the orientations that the products need: rows forward and for the gradient of
        the input, columns for that of the weight."""
        state = self._state
        key = (state, state.step, input_requires_grad, weight_requires_grad)
        if self._made is None or self._made[0] != key:
            self._made = key, self._quantizers(state, input_requires_grad, weight_requires_grad)
        return self._made[1]

    def __getstate__(self):
        """What copies and pickles hold: quantizers can be made again."""
        return super().__getstate__() | {"_made": None}

    def _quantizers(self, state, input_requires_grad, weight_requires_grad):
        raise NotImplementedError(f"{type(self).__name__} has no quantizers")

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        held = self._waiting
        if self._state is not None:
            held = self._state.state_dict() | {"recipe": repr(self._state.recipe)}
        if held is not None:
            destination[f"{prefix}_extra_state"] = held | {"seed": self._seed}

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        super()._load_from_state_dict(state_dict, prefix, *rest)
        key = f"{prefix}_extra_state"
        if key in state_dict:
            unexpected_keys = rest[-2]
            unexpected_keys[:] = [name for name in unexpected_keys if name != key]
            held = {name: each.clone() if isinstance(each, torch.Tensor) else each
                    for name, each in state_dict[key].items()}  # as weights are copied
            self._seed = held.pop("seed")
            self._state, self._made, self._waiting = None, None, held


def begin(operations, region, device, recomputed):
    """Make ready the states of the operations for a call inside `region`; at the first call of a step the step before
    ends: amax is reduced over ranks, and delayed scaling takes its new scales.

    Operations in eval mode, and a forward that is `recomputed` inside backward, stay in their step: the newest one, be
    it that of another forward than the one which is computed again. See `checkpoint_contexts`.
    """
    ended = []
    for op in operations:
        state = op.recipe_state(region.recipe, device)
        if op._step is not region.step and op.training and not recomputed:
            if op._step is not None:
                ended.append(state)
            op._step = region.step
    if ended and isinstance(region.recipe, DelayedScaling) and region.recipe.reduce_amax:
        _reduce(ended, region.amax_reduction_group)
    for state in ended:
        state.update()


@torch.no_grad()
def _reduce(states, group):
    """amax of this step ← its max over the ranks of the group, NaN if one is.

    As the bits of a float32 without its sign, which are in the order of the values, with NaN above Inf.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    if torch.distributed.get_world_size(group) == 1:
        return
    newest = [state.amax_history[0] for state in states]
    bits = torch.cat(newest).view(torch.int32) & 0x7FFFFFFF
    torch.distributed.all_reduce(bits, torch.distributed.ReduceOp.MAX, group=group)
    for row, reduced in zip(newest, bits.view(torch.float32).split([row.numel() for row in newest])):
        row.copy_(reduced)


def no_keywords(op, keywords):
    """TypeError for keywords of a call that an operation does not take."""
    if keywords:
        refuse(TypeError, type(op).__name__, f"{', '.join(keywords)} given, but there are no keywords")
