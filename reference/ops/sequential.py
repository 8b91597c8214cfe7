"""Sequential: operations, and other modules among them, one after another."""

from itertools import count

import torch

import reference
from reference.arguments import kind, refuse
from reference.ops.fuser import OperationFuser
from reference.ops.op import FusedOperation, FusibleOperation


class _Table:
    """A function table among the attributes that are copied: it is shared. It cannot be pickled, as no module can."""

    def __init__(self, kernels):
        self.kernels = kernels

    def __deepcopy__(self, memo):
        return self


class Sequential(torch.nn.Module):
    """Operations in a row, on the function table `kernels`; runs of them are fused, unless `fuse` is False.

    Called with an input and the extra inputs of its operations, in their order; gives the output, behind it the extra
    outputs. Other modules may stand among the operations. Hooks of an operation do not run, as it is not called by
    itself; those of the Sequential and of other modules do.
    Errors: TypeError for what is no module; ValueError for an operation that is there twice.
    Source: TransformerEngine, Sequential.
    """

    kernels = reference

    def __init__(self, *ops, kernels=None, fuse=True):
        super().__init__()
        self.fuse, self._held, self._groups, self._only = fuse, None, (), None
        if kernels is not None and kernels is not type(self).kernels:
            self.kernels = kernels
        self.extend(ops)

    def append(self, op):
        """Put an operation or module at the end."""
        return self.extend((op,))

    def extend(self, ops):
        """Put operations or modules at the end; those that are there keep their names."""
        more = _one_by_one(ops)
        _refuse_twice([*self, *more])
        for op in more:
            self.add_module(next(name for name in map(str, count(len(self))) if name not in self._modules), op)
        return self

    def insert(self, index, op):
        """Put an operation or module before the one at `index`."""
        held = list(self)
        held.insert(index, op)
        return self._set(held)

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self._modules.values())

    def __getitem__(self, index):
        held = list(self)[index]
        return type(self)(*held, kernels=self.kernels, fuse=self.fuse) if isinstance(index, slice) else held

    def __setitem__(self, index, op):
        held = list(self)
        held[index] = op
        self._set(held)

    def __delitem__(self, index):
        held = list(self)
        del held[index]
        self._set(held)

    def pop(self, index):
        """Take out the one at `index`."""
        taken = self[index]
        del self[index]
        return taken

    def __iadd__(self, other):
        return self.extend(other)

    def __add__(self, other):
        return type(self)(*self, *other, kernels=self.kernels, fuse=self.fuse)

    def forward(self, input, *extra_inputs):
        """The output; behind it the extra outputs of the operations, in their order."""
        if torch.compiler.is_dynamo_compiling():
            return torch.compiler.disable(self.forward)(input, *extra_inputs)
        held = (self.kernels, self.fuse, *self._modules.values())
        if held != self._held:  # whoever has put an operation there, and however
            self._regroup(held)
        group = self._only
        if group is not None:
            call, tensors = group.ready(input, extra_inputs)
            outputs = call.run(call, *tensors)
            return group.visible(outputs) if type(outputs) is tuple else outputs
        if len(extra_inputs) != self._num_extra_inputs:
            refuse(ValueError, "Sequential", f"{len(extra_inputs)} extra inputs, but its operations take "
                                             f"{self._num_extra_inputs}")
        x, outputs, taken = input, (), 0
        for group in self._groups:
            if type(group) is not OperationFuser:
                x = group(x)
                continue
            begin, taken = taken, taken + group.num_extra_inputs
            call, tensors = group.ready(x, extra_inputs[begin:taken])
            x = call.run(call, *tensors)
            if type(x) is tuple:
                x, *more = x
                outputs += tuple(more[:group.num_extra_outputs])
        return (x, *outputs) if outputs else x

    def _set(self, ops):
        """Hold `ops`, by their numbers."""
        held = _one_by_one(ops)
        _refuse_twice(held)
        self._modules.clear()
        for index, op in enumerate(held):
            self.add_module(str(index), op)
        return self

    def _regroup(self, held):
        """Take `held`, the table, whether to fuse and the operations, for what the fusers are made of. `_only` is the
        fuser of all operations; where modules stand among them it is None, and `_groups` are runs of operations, each
        as one fuser, and the modules between them."""
        groups, run = [], []
        for op in (*held[2:], None):
            if isinstance(op, FusibleOperation):
                run.append(op)
                continue
            if run:
                groups.append(OperationFuser(run, *held[:2]))
            run = []
            groups += [] if op is None else [op]
        self._num_extra_inputs = sum(group.num_extra_inputs for group in groups if type(group) is OperationFuser)
        self._groups = tuple(groups)
        self._only = groups[0] if len(groups) == 1 and type(groups[0]) is OperationFuser else None
        self._held = held

    def __getstate__(self):
        """What copies and pickles hold: fusers can be made again."""
        state = self.__dict__ | {"_held": None, "_groups": (), "_only": None}
        return state | {"kernels": _Table(state["kernels"])} if "kernels" in state else state

    def __setstate__(self, state):
        if isinstance(state.get("kernels"), _Table):
            state = state | {"kernels": state["kernels"].kernels}
        super().__setstate__(state)


def _one_by_one(ops):
    """The operations, those of fused ones by themselves."""
    held = []
    for op in ops:
        if not isinstance(op, torch.nn.Module):
            refuse(TypeError, "Sequential", f"{op!r} is {kind(op)}, but must be an operation or a module")
        held += op.basic_ops if isinstance(op, FusedOperation) else [op]
    return held


def _refuse_twice(held):
    for op in held:
        if isinstance(op, FusibleOperation) and sum(op is other for other in held) > 1:
            refuse(ValueError, "Sequential", f"{type(op).__name__} is in the pipeline twice, but what it keeps from "
                                             "forward to backward is for one use")
