"""Plans: which operation computes what in a pipeline, for calls that are like one another."""

import itertools
import operator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from reference.ops import pattern
from reference.ops.op import BasicOperation, OperationContext
from reference.ops.quantizing import QuantizingOperation


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """One operation of a plan, which covers the basic operations from `first` to before `end`.

    run: its method for the direction. alone: a basic operation without extra inputs and outputs of a kind of its own,
    called at once. before, behind: the basic operations that are told of, None for none. extra_inputs: takes the
    pipeline's tensors, gives for each basic operation its own. extra_outputs: for each basic operation a slice of the
    pipeline's.
    """

    op: Any
    run: Any
    first: int
    end: int
    covered: slice
    alone: bool
    before: int | None
    behind: int | None
    extra_inputs: Any
    extra_outputs: tuple[slice, ...]
    has_extra_outputs: bool
    no_extra_outputs: tuple[tuple, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """What is kept for calls like one another: their recipe, the tensors that need gradients, the parameters.

    recording: whether autograd does. flags: of the extra inputs, the input and the parameters, in this order, whether
    they need gradients; requires: the same, empty where autograd records nothing. slots: where each parameter is found;
    absent: where one may be put, and is none; counts: of the places of each operation.
    fused: what is computed together, forward and backward, both in forward order. settings: of each basic operation
    whether backward reaches it; whether its input needs a gradient. forward, backward: steps in the order in which they
    run; `unfused` is `backward` without fusions. no_gradients: None for each parameter, and for each extra input, of
    each basic operation. input: its place among the tensors, behind the extra inputs. written: (basic operation, place
    among the extra inputs) of what is written. checked: for each of these its place, and what takes the tensors and
    gives those that must be apart from it; None where the function that writes sees to all of them.
    may_be_view: whether what is written becomes the only output, and comes first.
    constants: places of the extra outputs that backward does not reach.
    quantizing: (place, operation, whether its input, and whether its weight, needs a gradient). run: what computes it.
    """

    recipe: Any
    recording: bool
    flags: tuple[bool, ...]
    requires: tuple[bool, ...]
    parameters: tuple[Tensor, ...]
    slots: tuple[tuple[dict, str, Tensor, bool], ...]
    absent: tuple[tuple[dict, str], ...]
    counts: tuple[tuple[dict, int], ...]
    version: object
    kernels: Any
    fused: tuple[tuple[Any, ...], tuple[Any, ...]]
    settings: tuple[tuple[bool, ...], tuple[bool, ...]]
    forward: tuple[Step, ...]
    backward: tuple[Step, ...]
    unfused: tuple[Step, ...]
    no_gradients: tuple[tuple, tuple]
    input: int
    extra_outputs: int
    written: tuple[tuple[int, int], ...]
    checked: tuple[tuple[int, Any], ...]
    may_be_view: bool
    constants: tuple[int, ...]
    quantizing: tuple[tuple[int, Any, bool, bool], ...]
    run: Any

    def suits(self, recipe, recording, given):
        """Whether it is for a call with this recipe and these extra inputs and input, as all else is now."""
        if (self.recipe is not recipe and self.recipe != recipe or self.recording is not recording
                or self.version is not pattern.Fusions.version):
            return False
        for tensor, flag in zip(given, self.flags):
            if tensor.requires_grad is not flag:
                return False
        try:
            for held, name, parameter, flag in self.slots:
                if held[name] is not parameter or parameter.requires_grad is not flag:
                    return False
            for held, name in self.absent:
                if held[name] is not None:
                    return False
            for held, count in self.counts:
                if len(held) != count:
                    return False
        except KeyError:  # a parameter that was deleted
            return False
        return True

    def holds_parameters(self):
        """Whether its parameters are still those of the operations."""
        return all(held.get(name) is parameter for held, name, parameter, _ in self.slots)


class Prepared:
    """A plan with the quantizers and the keywords of a call, for that call and all that are like it.

    forward: (step, quantizer of the gradient before, quantizer of the input behind, keywords), in the order in which
    they run. Contexts are made once and used again, by one call, forward or backward, at a time: between calls they
    hold nothing.
    """

    __slots__ = ("plan", "run", "quantizers", "forward", "input", "spare")

    def __init__(self, plan, quantizers, keywords):
        self.plan, self.run, self.input, self.quantizers, self.spare = plan, plan.run, plan.input, quantizers, []
        self.forward = tuple(
            (step, None if step.before is None else quantizers[step.before].grad_output,
             None if step.behind is None else quantizers[step.behind].input,
             keywords[step.first] if step.alone else tuple(keywords[step.covered]))
            for step in plan.forward)

    def take(self):
        """A context for each basic operation."""
        try:
            return self.spare.pop()
        except IndexError:
            plan = self.plan
            return tuple([OperationContext(plan.kernels, *each) for each in zip(*plan.settings, self.quantizers)])

    def give_back(self, contexts):
        """What was taken, for the next call."""
        for ctx in contexts:
            ctx.saved = None
        self.spare.append(contexts)


def make_plan(fuser, recipe, recording, flags, run):
    """The plan of an OperationFuser for calls with `recipe` whose extra inputs, input and parameters need gradients as
    `flags` says, in this order, where autograd is `recording`. `run` is what computes it."""
    ops = fuser.basic_ops
    requires = flags if recording else ()
    reached, inputs, own = _settings(ops, requires)
    first = reached.index(True) if True in reached else len(ops)
    fused = ops, ops
    if fuser.fuse:
        fused = tuple(pattern.FORWARD.fuse(ops)), (*ops[:first], *pattern.BACKWARD.fuse(ops[first:]))
    backward, unfused = (
        tuple(step for step in reversed(_steps(each, ops, "fuser_backward")) if step.first >= first)
        for each in (fused[1], ops))
    places, outputs = (_slices([getattr(op, name) for op in ops]) for name in ("num_extra_inputs", "num_extra_outputs"))
    written = tuple((index, places[index].start) for index, op in enumerate(ops) if op.writes_extra_input)
    forward = _steps(fused[0], ops, "fuser_forward")
    slots = tuple((held, name, held[name], flag)
                  for (held, name), flag in zip(fuser.slots, flags[fuser.num_extra_inputs + 1:]))
    return Plan(
        recipe, recording, flags, requires, tuple(each for _, _, each, _ in slots), slots,
        tuple((op._parameters, name) for op in ops for name, each in op._parameters.items() if each is None),
        tuple((op._parameters, len(op._parameters)) for op in ops),
        pattern.Fusions.version, fuser.kernels, fused, (tuple(reached), tuple(inputs)), forward, backward, unfused,
        no_gradients=(tuple((None,) * _count(op) for op in ops), tuple((None,) * op.num_extra_inputs for op in ops)),
        input=fuser.num_extra_inputs, extra_outputs=fuser.num_extra_outputs,
        written=written, checked=tuple(_checked(*each, forward, ops, recipe) for each in written),
        may_be_view=written == ((len(ops) - 1, 0),) and not fuser.num_extra_outputs,
        constants=tuple(place for op, each, made in zip(ops, reached, outputs) if not each
                        for place in range(made.start, made.stop)),
        quantizing=tuple((index, op, inputs[index], own[index]) for index, op in enumerate(ops)
                         if isinstance(op, QuantizingOperation)),
        run=run,
    )


def _checked(index, place, forward, ops, recipe):
    """(place, what takes the tensors and gives those that the writer of operation `index` does not see, or None)."""
    behind = sum(op.num_extra_inputs for op in ops)
    ends = list(itertools.accumulate(map(_count, ops), initial=behind + 1))
    (step,) = (step for step in forward if step.first <= index < step.end)
    seen = {place}
    if step.op.refuses_overlap and recipe is None:
        seen |= {*range(ends[step.first], ends[step.end]), *([behind] if step.first == 0 else ())}
    unseen = [other for other in range(ends[-1]) if other not in seen]
    if not unseen and step.op.refuses_overlap:
        return place, None
    return place, operator.itemgetter(*unseen, *unseen[:1]) if unseen else lambda tensors: ()


def _settings(ops, requires):
    """Of each operation: whether backward reaches it; whether its input, and a parameter, needs a gradient."""
    rest = iter(requires)
    extra_inputs = [any([next(rest, False) for _ in range(op.num_extra_inputs)]) for op in ops]
    given = next(rest, False)
    own = [any([next(rest, False) for _ in range(_count(op))]) for op in ops]
    reached = list(itertools.accumulate(map(operator.or_, own, extra_inputs), operator.or_, initial=given))
    return reached[1:], reached[:-1], own


def _count(op):
    return sum(each is not None for each in op._parameters.values())


def _slices(counts):
    """The slices of `counts` things in a row."""
    ends = itertools.accumulate(counts, initial=0)
    return [slice(*each) for each in itertools.pairwise(ends)]


def _steps(fused, ops, method):
    """Steps of one direction, in forward order."""
    found, first = [], 0
    inputs = _slices([op.num_extra_inputs for op in ops])
    outputs = _slices([op.num_extra_outputs for op in ops])
    for op in fused:
        end, alone = first + len(op.basic_ops), _is_alone(op, method)
        found.append(Step(
            op, getattr(op, method.replace("fuser", "op") if alone else method), first, end, slice(first, end), alone,
            before=first - 1 if first and ops[first - 1].takes_quantized_grad_output else None,
            behind=end if end < len(ops) and ops[end].takes_quantized_input else None,
            extra_inputs=_parts(inputs[first:end]), extra_outputs=tuple(outputs[first:end]),
            has_extra_outputs=any(each.num_extra_outputs for each in op.basic_ops),
            no_extra_outputs=((),) * len(op.basic_ops),
        ))
        first = end
    return tuple(found)


def _is_alone(op, method):
    return (isinstance(op, BasicOperation) and getattr(type(op), method) is getattr(BasicOperation, method)
            and not op.num_extra_inputs and not op.num_extra_outputs)


def _parts(slices):
    """What takes a tuple and gives a tuple of its `slices`."""
    if len(slices) > 1:
        return operator.itemgetter(*slices)
    (only,) = slices
    return lambda tensors: (tensors[only],)
