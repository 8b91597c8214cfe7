"""Activation checkpointing: what backward computes again finds what forward found."""

import contextvars
from collections import deque
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from reference.arguments import refuse
from reference.ops.op import UNQUANTIZED
from reference.quantizers import Float8Quantizer


class Found(NamedTuple):
    """What a call found: its operations, its region, None without a recipe, and the quantizers of each operation."""

    ops: tuple
    region: Any
    quantizers: tuple


class Checkpoints(NamedTuple):
    """The checkpoints around a call: of those in forward the list of each, for what calls find; of the innermost one
    that is computed again what its next calls found, else None."""

    outer: Any
    forward: tuple[list[Found], ...]
    again: deque[Found] | None

    def found(self, ops):
        """What a call of `ops`, if it is next, found in forward; None where none is computed again."""
        return self.again[0] if self.again and self.again[0].ops == ops else None

    def note(self, found):
        """Have it found again, and the next call find the next one."""
        if self.again is not None and (not self.again or self.again.popleft() is not found):
            refuse(RuntimeError, "checkpoint", "a pipeline is computed again that was another one in forward")
        for each in self.forward:
            each.append(found)


_active = contextvars.ContextVar("checkpoints", default=None)
active_checkpoints = _active.get
"""The Checkpoints around the call, None where there are none."""


class _Context:
    """One of the two contexts of a checkpoint; it may be entered again and again."""

    def __init__(self, calls, again):
        self._calls, self._again = calls, again

    def __enter__(self):
        outer = _active.get()
        if self._again:
            _active.set(Checkpoints(outer, (), deque(self._calls)))
        else:
            forward, again = (outer.forward, outer.again) if outer else ((), None)
            _active.set(Checkpoints(outer, (*forward, self._calls), again))

    def __exit__(self, *raised):
        _active.set(_active.get().outer)


def checkpoint_contexts():
    """The `context_fn` of torch.utils.checkpoint.checkpoint(..., use_reentrant=False) for pipelines with recipes.

    What backward computes again then has the recipe of its own forward, the scales of delayed scaling as they were and
    the same random bits, however many micro-batches are in flight and whatever `autocast` backward is in.

    A checkpoint without it, or with `use_reentrant=True`, takes the `autocast` that is active by then, or else that of
    the pipeline's last forward, and the scales and random bits of the newest step. They are those of its own forward
    where one micro-batch is in flight (backward comes before any other forward of the pipeline) and backward is inside
    no other `autocast`.
    """
    calls = []
    return _Context(calls, False), _Context(calls, True)


@torch.no_grad()
def kept(quantizers):
    """`quantizers` of one operation with the scales as they are now. That of the gradient has no part in forward: it
    goes with its step, as in any backward."""
    if quantizers is UNQUANTIZED:
        return quantizers
    return quantizers._replace(input=_kept(quantizers.input), weight=_kept(quantizers.weight))


def _kept(quantizer):
    if not isinstance(quantizer, Float8Quantizer):
        return quantizer
    return replace(quantizer, scale=quantizer.scale.clone(), amax=torch.zeros_like(quantizer.amax))
