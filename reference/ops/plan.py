"""Plans: which operation computes what in a pipeline, for calls that are like one another."""

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
    places, in a call's quantizers, of the operations that are told of; 0 is that of nobody.
    """

    op: Any
    first: int
    end: int
    alone: bool
    before: int
    behind: int
    extra_inputs: tuple[tuple[int, int], ...]  # for each basic operation a range of the pipeline's
    extra_outputs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """What is kept for calls like one another: their recipe, the tensors that need gradients, the parameters.

    `settings`: of each basic operation whether backward reaches it, and whether its input needs a gradient. `unfused`
    is `backward` without fusions. `written`: places of the extra inputs that are written, by basic operation.
    """

    recipe: Any
    requires: tuple[bool, ...]
    parameters: tuple[Tensor, ...]
    versions: tuple[object, object]
    kernels: Any
    settings: tuple[tuple[bool, bool], ...]
    forward: tuple[Step, ...]
    first: int  # of the basic operations that backward reaches
    backward: tuple[Step, ...]
    unfused: tuple[Step, ...]
    parameter_counts: tuple[int, ...]
    extra_input_counts: tuple[int, ...]
    written: tuple[tuple[int, int], ...]
    quantizing: tuple[tuple[int, Any, bool, bool], ...]
    run: Any


def make_plan(fuser, recipe, requires, parameters, run):
    """The plan of an OperationFuser for calls with `recipe` whose input, parameters and extra inputs need gradients as
    `requires` says, in this order; empty where autograd records nothing. `run` is what computes it."""
    ops = fuser.basic_ops
    settings, own = _settings(ops, requires)
    first = next((index for index, (reached, _) in enumerate(settings) if reached), len(ops))
    fused = [list(ops), list(ops)]
    if fuser.fuse:
        fused = [pattern.FORWARD.fuse(list(ops)), [*ops[:first], *pattern.BACKWARD.fuse(list(ops[first:]))]]
    offsets = _offsets([op.num_extra_inputs for op in ops])
    return Plan(
        recipe, requires, tuple(parameters), (pattern.FORWARD.version, pattern.BACKWARD.version), fuser.kernels,
        settings, forward=_steps(fused[0], ops, "fuser_forward"), first=first,
        backward=_steps(fused[1], ops, "fuser_backward"), unfused=_steps(ops, ops, "fuser_backward"),
        parameter_counts=tuple(_count(op) for op in ops),
        extra_input_counts=tuple(op.num_extra_inputs for op in ops),
        written=tuple((index, offsets[index][0]) for index, op in enumerate(ops) if op.writes_extra_input),
        quantizing=tuple((index + 1, op, settings[index][1], own[index]) for index, op in enumerate(ops)
                         if isinstance(op, QuantizingOperation)),
        run=run,
    )


def _settings(ops, requires):
    """Of each operation (backward reaches it, its input needs a gradient), and whether a parameter of its own does."""
    settings, own = [], []
    reached, rest = requires[:1] == (True,), iter(requires[1:])
    parameters = [any([next(rest, False) for _ in range(_count(op))]) for op in ops]
    extra_inputs = [any([next(rest, False) for _ in range(op.num_extra_inputs)]) for op in ops]
    for needed, extra in zip(parameters, extra_inputs):
        settings.append((reached or needed or extra, reached))
        own.append(needed)
        reached = reached or needed or extra
    return tuple(settings), own


def _count(op):
    return sum(each is not None for each in op._parameters.values())


def _offsets(counts):
    """(begin, end) of each of `counts` things in a row."""
    ends = [sum(counts[:index + 1]) for index in range(len(counts))]
    return [(end - count, end) for end, count in zip(ends, counts)]


def _steps(fused, ops, method):
    """Steps of one direction, in forward order."""
    found, first = [], 0
    inputs = _offsets([op.num_extra_inputs for op in ops])
    outputs = _offsets([op.num_extra_outputs for op in ops])
    for op in fused:
        end = first + len(op.basic_ops)
        alone = isinstance(op, BasicOperation) and getattr(type(op), method) is getattr(BasicOperation, method)
        before = first if first and ops[first - 1].takes_quantized_grad_output else 0
        behind = end + 1 if end < len(ops) and ops[end].takes_quantized_input else 0
        found.append(Step(op, first, end, alone, before, behind, tuple(inputs[first:end]), tuple(outputs[first:end])))
        first = end
    return tuple(found)
