"""Plans: which operation computes what in a pipeline, for calls that are like one another."""

import itertools
import operator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from reference.ops import pattern
from reference.ops.op import BasicOperation
from reference.ops.quantizing import QuantizingOperation


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """One operation of a plan, which covers the basic operations from `first` to before `end`.

    `alone`: a basic operation without extra inputs and outputs of a kind of its own, called at once. before, behind:
    the basic operations that are told of, None for none. extra_inputs, extra_outputs: for each basic operation a slice
    of the pipeline's.
    """

    op: Any
    first: int
    end: int
    alone: bool
    before: int | None
    behind: int | None
    extra_inputs: tuple[slice, ...]
    extra_outputs: tuple[slice, ...]
    has_extra_outputs: bool


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """What is kept for calls like one another: their recipe, the tensors that need gradients, the parameters.

    fused: what is computed together, forward and backward, both in forward order. settings: of each basic operation
    whether backward reaches it; whether its input needs a gradient. forward, backward: steps in the order in which they
    run; `unfused` is `backward` without fusions. no_gradients: None for each parameter, and for each extra input, of
    each basic operation. input: its place among the tensors, behind the extra inputs. written: (basic operation, place
    among the extra inputs) of what is written.
    may_be_view: whether what is written becomes the only output, and comes first.
    constants: places of the extra outputs that backward does not reach.
    quantizing: (place, operation, whether its input, and whether its weight, needs a gradient). run: what computes it.
    """

    recipe: Any
    requires: tuple[bool, ...]
    parameters: tuple[Tensor, ...]
    versions: tuple[object, object]
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
    may_be_view: bool
    constants: tuple[int, ...]
    quantizing: tuple[tuple[int, Any, bool, bool], ...]
    run: Any


def make_plan(fuser, recipe, requires, parameters, run):
    """The plan of an OperationFuser for calls with `recipe` whose extra inputs, input and parameters need gradients as
    `requires` says, in this order; empty where autograd records nothing. `run` is what computes it."""
    ops = fuser.basic_ops
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
    return Plan(
        recipe, requires, tuple(parameters), (pattern.FORWARD.version, pattern.BACKWARD.version), fuser.kernels, fused,
        (tuple(reached), tuple(inputs)), _steps(fused[0], ops, "fuser_forward"), backward, unfused,
        no_gradients=(tuple((None,) * _count(op) for op in ops), tuple((None,) * op.num_extra_inputs for op in ops)),
        input=fuser.num_extra_inputs, extra_outputs=fuser.num_extra_outputs,
        written=written, may_be_view=written == ((len(ops) - 1, 0),) and not fuser.num_extra_outputs,
        constants=tuple(place for op, each, made in zip(ops, reached, outputs) if not each
                        for place in range(made.start, made.stop)),
        quantizing=tuple((index, op, inputs[index], own[index]) for index, op in enumerate(ops)
                         if isinstance(op, QuantizingOperation)),
        run=run,
    )


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
        end = first + len(op.basic_ops)
        found.append(Step(
            op, first, end,
            alone=isinstance(op, BasicOperation) and getattr(type(op), method) is getattr(BasicOperation, method)
            and not op.num_extra_inputs and not op.num_extra_outputs,
            before=first - 1 if first and ops[first - 1].takes_quantized_grad_output else None,
            behind=end if end < len(ops) and ops[end].takes_quantized_input else None,
            extra_inputs=tuple(inputs[first:end]), extra_outputs=tuple(outputs[first:end]),
            has_extra_outputs=any(each.num_extra_outputs for each in op.basic_ops),
        ))
        first = end
    return tuple(found)
