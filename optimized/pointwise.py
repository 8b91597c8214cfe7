"""The operations between linear layers: the twins of reference.pointwise.

Every call is one launch, which reads each operand and writes the output once. Any compute capability from 8.0. An
operand whose rows are not dense or do not lie at one distance from each other is copied first; into an `out` like that
the result is copied afterwards.
"""

import inspect
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from optimized.launch import Launch, allocate, chip, untraced
from optimized.operands import (
    Prepared, bump, in_memory, lie_apart, on_gpu, pitch, regular, signature, slot, span_bytes, type_of, written_back
)
from optimized.plan import MAX_GRID, SIZES, Chip, Plan
from reference.formats import FLT_MAX
from reference.tensors import products

THREADS, BYTES = 256, 16  # kThreads, kBytes
_prepared = Prepared()


def constant_scale(input, scale):
    """reference.constant_scale on a GPU."""
    if torch.compiler.is_dynamo_compiling():
        return untraced(constant_scale)(input, scale)
    try:
        key = signature(input)
        ready = _prepared.get(key)
    except (AttributeError, TypeError, RuntimeError):
        ready = None  # no dense tensor: the checks say what is wrong
    if ready is None or type(scale) is not float or not -FLT_MAX <= scale <= FLT_MAX:
        products.scaled("constant_scale", input, scale)
        on_gpu("constant_scale", "input", input)
        in_memory("constant_scale", input=input)
    if ready is None:
        dense = regular(input)
        if dense is not input:
            return constant_scale(dense, scale)
        ready = _prepared.keep(key, _prepare("Scale", (input,), None))

    y = allocate(ready.shape, input.dtype, input.device)

    if ready.launch is not None:
        ready.launch(input.data_ptr(), 0, y.data_ptr(), slot(scale))
    return y


def add(input, other, *, out=None):
    """reference.add on a GPU."""
    if torch.compiler.is_dynamo_compiling():
        return untraced(add)(input, other, out=out)
    try:
        key = signature(input), signature(other), None if out is None else signature(out)
        ready = _prepared.get(key)
    except (AttributeError, TypeError, RuntimeError):
        ready = None
    if ready is None or not (out is None or ready.writes_apart(out, input, other)):
        products.added("add", input, other, out=out)
        on_gpu("add", "input", input)
        in_memory("add", input=input, other=other, out=out)
    if ready is None:
        a, b, y = regular(input), regular(other), None if out is None else regular(out)
        if a is not input or b is not other or y is not out:
            total = add(a, b, out=y)
            return total if out is None or y is out else written_back(total, out)
        ready = _prepared.keep(key, _prepare("Add", (input, other), out))

    y = allocate(ready.shape, input.dtype, input.device) if out is None else out

    if ready.launch is not None:
        ready.launch(input.data_ptr(), other.data_ptr(), y.data_ptr(), 0)
    if out is not None:
        bump(out)
    return y


def plan_of(function: str, *args, chip: Chip, **kwargs) -> Plan:
    """The plan that a call of `function` takes on `chip`; tensors may be on any device, "meta" included.

    Errors: those of the call, but for the device.
    """
    given = inspect.signature(globals()[function]).bind(*args, **kwargs)
    given.apply_defaults()
    a = given.arguments
    if function == "constant_scale":
        products.scaled(function, **a)
        return _plan("Scale", _Layout.of((regular(a["input"]),), None), chip)
    products.added(function, **a)
    out = None if a["out"] is None else regular(a["out"])
    return _plan("Add", _Layout.of((regular(a["input"]), regular(a["other"])), out), chip)


@dataclass(frozen=True)
class _Layout:
    """rows x cols elements of a dtype, spelled `element`, with the pitch of each operand and of the output; `run`
    elements of each lie together for one access."""

    element: str
    rows: int
    cols: int
    pitches: tuple[int, ...]
    run: int

    @classmethod
    def of(cls, operands: tuple[Tensor, ...], out: Tensor | None) -> "_Layout":
        model, given = operands[0], operands if out is None else (*operands, out)
        flat = all(t.is_contiguous() for t in given)
        cols = model.numel() if flat else model.shape[-1]
        pitches = tuple(cols if flat else pitch(t) for t in given) + (() if out is not None else (cols,))
        rows, size = 1 if flat or not cols else model.numel() // cols, model.element_size()
        run = 16 // size
        while any(t.data_ptr() % (run * size) for t in given) or rows > 1 and any(each % run for each in pitches):
            run //= 2
        return cls(type_of(model.dtype), rows, cols, pitches, run)


@dataclass(frozen=True)
class _Ready:
    """What is kept of a call for the next one like it: `launch` (None where there are no elements), the shape, and the
    bytes that each operand and `out` span; `same`: operands that `out` may lie on, having its strides."""

    launch: Launch | None
    shape: tuple[int, ...]
    spans: tuple[int, ...] = ()
    same: tuple[bool, ...] = ()

    def writes_apart(self, out: Tensor, *operands: Tensor) -> bool:
        """Whether `out` is an operand, or has no byte in common with it; where not, the checks look closer."""
        y, *_, y_bytes = out.data_ptr(), *self.spans
        return all(same and y == t.data_ptr() or lie_apart(y, y_bytes, t.data_ptr(), size)
                   for t, size, same in zip(operands, self.spans, self.same))


def _prepare(op: str, operands: tuple[Tensor, ...], out: Tensor | None) -> _Ready:
    model = operands[0]
    shape, given = tuple(model.shape), operands if out is None else (*operands, out)
    spans = tuple(span_bytes(t) for t in given)
    same = tuple(out is not None and t.stride() == out.stride() for t in operands)
    if not model.numel():
        return _Ready(None, shape, spans, same)
    layout = _Layout.of(operands, out)
    a, b, y = (layout.pitches[0], *layout.pitches)[-3:] if op == "Scale" else layout.pitches
    scalars = tuple(map(numpy.int64, (layout.rows, layout.cols, a, b, y)))
    return _Ready(Launch(_plan(op, layout, chip(model.device)), model.device, 4, scalars), shape, spans, same)


def _plan(op: str, layout: _Layout, chip: Chip) -> Plan:
    runs, run_bytes = layout.rows * -(-layout.cols // layout.run), layout.run * SIZES[layout.element]
    grid = max(1, min(MAX_GRID, -(-runs * run_bytes // (BYTES * THREADS))))
    return Plan("pointwise.cu", f"pointwise<{op}, {layout.element}, {layout.run}>", op, grid, THREADS,
                programmatic=chip.is_hopper_or_later)
