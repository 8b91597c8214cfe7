"""Implementations of rmsnorm_fwd that cheat, over an allocation hook like that of the kernels.

Each is right but for the one thing that its name says. CHEATS maps it to words of the reason that it must be
given.
"""

from contextlib import contextmanager

import torch

import reference
from harness.cases import Call

_allocate = None


@contextmanager
def allocator(replacement):
    """Replaces the hook, as `optimized.launch.allocator` does."""
    global _allocate
    before, _allocate = _allocate, replacement
    try:
        yield
    finally:
        _allocate = before


def allocate(like):
    """Uninitialised memory for an output shaped like `like`."""
    return _allocate(tuple(like.shape), like.dtype, like.device) if _allocate else torch.empty_like(like)


def right(call: Call):
    """What the reference computes."""
    return reference.rmsnorm_fwd(*call.args, **call.kwargs)


def given(results):
    """The same results in memory from the hook."""
    return tuple(None if each is None else allocate(each).copy_(each) for each in results)


def honest(call):
    """Uses a workspace of which it writes only a part, as a kernel may."""
    allocate(call.args[0].new_empty(4096, dtype=torch.uint8))[:64] = 1
    return given(right(call))


def does_nothing(call):
    return tuple(None if each is None else allocate(each) for each in right(call))


def writes_half(call):
    results, outputs = right(call), does_nothing(call)
    half = len(results[0]) // 2
    outputs[0][:half] = results[0][:half]
    outputs[2].copy_(results[2])
    return outputs


def skips_the_tail(call):
    results, outputs = right(call), does_nothing(call)
    whole = results[0].shape[-1] // 8 * 8
    outputs[0][:, :whole] = results[0][:, :whole]
    outputs[2].copy_(results[2])
    return outputs


def zeroes_the_tail(call):
    y, none, rsigma = given(right(call))
    y[:, y.shape[-1] // 8 * 8:] = 0
    return y, none, rsigma


def mutates_an_input(call):
    results = given(right(call))
    call.args[0].view(-1)[-1] += 1
    return results


class MutatesAndRestores:
    """Leaves an input changed after one run, and puts it back in the next."""

    def __init__(self):
        self.saved = None

    def __call__(self, call):
        x = call.args[0]
        if self.saved is not None:
            x.copy_(self.saved)
        results = given(right(call))
        self.saved = x.clone() if self.saved is None else None
        if self.saved is not None:
            x.zero_()
        return results


def knows_the_usual_eps(call):
    return given(reference.rmsnorm_fwd(*call.args[:2], 1e-5, **call.kwargs))


def writes_beyond_the_end(call):
    results = given(right(call))
    results[0].as_strided((1,), (1,), results[0].storage_offset() + results[0].numel()).fill_(1)
    return results


def writes_before_the_start(call):
    results = given(right(call))
    results[2].as_strided((1,), (1,), results[2].storage_offset() - 1).fill_(1)
    return results


def overruns_a_workspace(call):
    workspace = allocate(call.args[0].new_empty(256, dtype=torch.uint8))
    workspace.as_strided((260,), (1,), workspace.storage_offset()).fill_(1)
    return given(right(call))


def reads_an_unwritten_workspace(call):
    y, none, rsigma = right(call)
    return given((y + allocate(y).view(torch.uint8)[0, 0], none, rsigma))


class ReturnsThePreviousResult:
    """Gives the memory of the call before, and fills it for the next."""

    def __init__(self):
        self.previous = None

    def __call__(self, call):
        previous, self.previous = self.previous, given(right(call))
        return previous or self.previous


class CachesByPointer:
    """Computes only what it has not seen at these addresses."""

    def __init__(self):
        self.seen = {}

    def __call__(self, call):
        key = tuple(tensor.data_ptr() for tensor in call.tensors())
        return given(self.seen.setdefault(key, right(call)))


class IsNotDeterministic:
    """Adds a bit of noise that differs from run to run."""

    def __init__(self):
        self.runs = 0

    def __call__(self, call):
        self.runs += 1
        y, none, rsigma = right(call)
        return given((y, none, rsigma * (1 + 2e-7 * (self.runs % 2))))


def computes_in_low_precision(call):
    x, weight, eps = call.args
    rsigma = 1 / (x.square().mean(-1).float() + eps).sqrt()
    return given(((x * rsigma.to(x.dtype).unsqueeze(-1) * weight).to(x.dtype), None, rsigma))


def leaves_nan(call):
    y, none, rsigma = given(right(call))
    y[0, 0] = float("nan")
    return y, none, rsigma


def hides_nan(call):
    return given(tuple(None if each is None else each.nan_to_num() for each in right(call)))


def flushes_subnormals(call):
    x, *others = call.args
    return given(right(Call((torch.where(x.abs() < torch.finfo(x.dtype).tiny, 0, x), *others), call.kwargs)))


def is_constant(call):
    return given(tuple(None if each is None else torch.full_like(each, 0.5) for each in right(call)))


def returns_another_dtype(call):
    y, none, rsigma = right(call)
    return given((y.float(), none, rsigma))


def returns_another_layout(call):
    y, none, rsigma = right(call)
    return allocate(y.mT.contiguous()).mT.copy_(y), none, given((rsigma,))[0]


def carries_a_graph(call):
    y, none, rsigma = given(right(call))
    return y.requires_grad_(), none, rsigma


def returns_no_tensor(call):
    return right(call)[0].tolist(), None, None


def returns_too_few(call):
    return given(right(call)[:2])


def keeps_its_own_memory(call):
    return right(call)


CHEATS = {
    does_nothing: "y: 6464 of 6464 bytes were never written",
    writes_half: "y: 3232 of 6464 bytes were never written",
    skips_the_tail: "y: 320 of 6464 bytes were never written",
    zeroes_the_tail: "y: error max",
    mutates_an_input: "an input was changed",
    MutatesAndRestores: "an input was changed",
    writes_beyond_the_end: "memory beside an output or workspace was overwritten",
    writes_before_the_start: "memory beside an output or workspace was overwritten",
    overruns_a_workspace: "memory beside an output or workspace was overwritten",
    reads_an_unwritten_workspace: "y: two runs on the same input differ",
    ReturnsThePreviousResult: "y: not allocated through the hook",
    CachesByPointer: "y: error max",
    IsNotDeterministic: "rsigma: two runs on the same input differ",
    computes_in_low_precision: "rsigma: error max",
    leaves_nan: "y: 1 NaN or infinite values on one side only",
    hides_nan: "NaN or infinite values on one side only (nan)",
    flushes_subnormals: "(subnormals)",
    is_constant: "y: constant",
    returns_another_dtype: "y: ((32, 101), torch.float32, ",
    returns_another_layout: "y: strides (1, 32) are not those of a contiguous tensor",
    carries_a_graph: "y: carries an autograd graph",
    returns_no_tensor: " instead of ((32, 101), torch.bfloat16, ",
    returns_too_few: "2 results instead of 3",
    keeps_its_own_memory: "y: not allocated through the hook",
}
