"""Pipelines for tests: every row of operations, what plain PyTorch makes of it, and what should be fused."""

import copy
import itertools
import re

import torch
from torch.nn import functional

from reference import ops

SIZE = 32
KINDS = {
    "I": ops.Identity,
    "B": lambda **of: ops.Bias(SIZE, **of),
    "S": lambda **of: ops.ConstantScale(0.75),
    "a": lambda **of: ops.AddExtraInput(),
    "A": lambda **of: ops.AddExtraInput(in_place=True),
    "M": lambda **of: ops.MakeExtraOutput(in_place=True),
    "N": lambda **of: ops.LayerNorm(SIZE, **of),
    "R": lambda **of: ops.RMSNorm(SIZE, zero_centered_gamma=True, **of),
    "Q": lambda **of: ops.Quantize(backward=True),
    "L": lambda **of: ops.BasicLinear(SIZE, SIZE, **of),
}
"""Letter -> an operation. The letters of a pipeline are its name."""
FORWARD, BACKWARD = "LSA", "LS"


def names(longest=3):
    """Every pipeline of up to `longest` operations, and every one of one more with a window that is fused."""
    rows = ["".join(each) for length in range(1, longest + 2) for each in itertools.product(KINDS, repeat=length)]
    return [name for name in rows if len(name) <= longest or BACKWARD in name]


def make(name, device=None, dtype=None):
    """The operations of a pipeline, with parameters that are no neutral elements."""
    made = [KINDS[letter](**({} if letter in "ISaAMQ" else {"device": device, "dtype": dtype})) for letter in name]
    with torch.no_grad():
        for op in made:
            for parameter in op.parameters():
                if parameter.dim() == 1:
                    parameter.copy_(0.5 + torch.rand(SIZE))
    return made


def fused(name):
    """The lists of operations that forward and backward should have: names of classes, in order."""
    classes = {letter: type(make(letter)[0]).__name__ for letter in KINDS}
    lists = []
    for window, fusion in ((FORWARD, "ForwardLinearScaleAdd"), (BACKWARD, "BackwardLinearScale")):
        parts = re.findall(f"{window}|.", name)
        lists.append([fusion if part == window else classes[part] for part in parts])
    return lists


def inputs(name, device=None, dtype=None, rows=SIZE):
    """(input, extra inputs, gradients of output and extra outputs); all leaves."""
    def draw():
        return torch.randn(rows, SIZE, device=device, dtype=dtype)

    count = sum(letter in "aA" for letter in name)
    return draw(), [draw() for _ in range(count)], [draw() for _ in range(1 + name.count("M"))]


def eager(made, x, extras):
    """What PyTorch makes of the operations: (output, extra outputs)."""
    extras, outputs = list(extras), []
    for op in made:
        if isinstance(op, ops.Bias):
            x = x + op.bias
        elif isinstance(op, ops.ConstantScale):
            x = x * op.scale
        elif isinstance(op, ops.AddExtraInput):
            x = x + extras.pop(0)
        elif isinstance(op, ops.MakeExtraOutput):
            outputs.append(x)
        elif isinstance(op, ops.LayerNorm):
            x = functional.layer_norm(x, (SIZE,), op.weight, op.bias, op.eps)
        elif isinstance(op, ops.RMSNorm):
            x = functional.rms_norm(x, (SIZE,), 1 + op.weight, op.eps)
        elif isinstance(op, ops.BasicLinear):
            x = functional.linear(x, op.weight)
    return x, *outputs


def results(run, made, x, extras, grads):
    """Outputs and gradients of `run(*tensors)`, by name. Extra inputs are given as copies, which may be written;
    gradients are not, and must not be."""
    x, extras = (each.detach().requires_grad_() for each in (x,)), [each.detach().requires_grad_() for each in extras]
    (x,) = x
    for op in made:
        op.zero_grad()
    outputs = run(x, *[each.clone() for each in extras])
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    found = {f"output {index}": each.detach().clone() for index, each in enumerate(outputs)}
    before = [each.clone() for each in grads]
    torch.autograd.backward(outputs, grads)
    assert all(map(torch.equal, grads, before))
    found |= {"grad_input": x.grad} | {f"grad of extra input {i}": each.grad for i, each in enumerate(extras)}
    for index, op in enumerate(made):
        found |= {f"grad of {index}.{key}": each.grad for key, each in op.named_parameters()}
    return found


def sequential(made, kernels, fuse=True):
    """A copy of the operations as a pipeline."""
    return ops.Sequential(*copy.deepcopy(made), kernels=kernels, fuse=fuse)


def lists(pipeline):
    """Names of the classes that a pipeline's last plan has forward and backward."""
    (group,) = pipeline._groups
    return [[type(op).__name__ for op in each] for each in group._last.plan.fused]
