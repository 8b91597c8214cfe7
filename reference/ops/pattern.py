"""The one matcher of patterns, and the fusions that it looks for."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from reference.ops.op import BasicOperation, FusedOperation

_COMPUTING = ("op_forward", "op_backward", "fuser_forward", "fuser_backward")


@dataclass(frozen=True)
class Fusion:
    """Adjacent basic operations of the classes of `pattern`, for which `when` holds, are computed by `fused`. So are
    those of a subclass, unless it computes in a way of its own: has another `op_forward`, `op_backward`,
    `fuser_forward` or `fuser_backward`.

    pattern: keyword of the constructor of `fused` -> class of a basic operation, in forward order.
    when: takes the operations by the same keywords; None takes all.
    """

    pattern: Mapping[str, type]
    fused: type
    when: Callable[..., bool] | None = None

    def fuse(self, ops):
        """The list `ops`, forward order, with each window that matches replaced, from the left.

        Errors: TypeError where `fused` then covers other operations than the window, or these in another order.
        """
        found, start = [], 0
        while start < len(ops):
            window = self._window(ops[start:start + len(self.pattern)])
            found.append(self._built(window) if window else ops[start])
            start += len(window) or 1
        return found

    def _window(self, ops):
        """Keyword -> operation where `ops` match; else empty."""
        if len(ops) < len(self.pattern) or not all(map(_computes_as, ops, self.pattern.values())):
            return {}
        window = dict(zip(self.pattern, ops))
        return window if self.when is None or self.when(**window) else {}

    def _built(self, window):
        built = self.fused(**window)
        covered, wanted = list(map(id, built.basic_ops)), list(map(id, window.values()))
        if covered != wanted:
            names = [", ".join(type(op).__name__ for op in ops) for ops in (built.basic_ops, window.values())]
            raise TypeError(f"{self.fused.__name__}: covers the operations ({names[0]}), but its pattern matched "
                            f"({names[1]})")
        return built


class Fusions:
    """The fusions of one direction: those that were registered, the last one first, then the built-in ones.

    `method` is what a class must have of its own for this direction.
    """

    version = object()
    """Of both directions: another object after every change."""

    def __init__(self, method):
        self.method, self.registered, self.built_in = method, (), ()

    def fuse(self, ops):
        """The list `ops` of basic operations after all fusions, one after another."""
        for fusion in (*self.registered, *self.built_in):
            ops = fusion.fuse(ops)
        return ops

    def register(self, pattern, fused, when=None):
        """Try a fusion before all others. -> its Registration. Errors: TypeError where class and pattern do not fit."""
        _check(pattern, fused, when, self.method)
        fusion = Fusion(MappingProxyType(dict(pattern)), fused, when)
        self.set((fusion, *self.registered))
        return Registration(self, fusion)

    def set(self, registered):
        """Have these registered, and no others."""
        self.registered, Fusions.version = registered, object()


@dataclass(frozen=True)
class Registration:
    """A fusion that was registered."""

    fusions: Fusions
    fusion: Fusion

    def remove(self):
        """Try it no more."""
        self.fusions.set(tuple(each for each in self.fusions.registered if each is not self.fusion))


FORWARD, BACKWARD = Fusions("fuser_forward"), Fusions("fuser_backward")


def register_forward_fusion(pattern, fused, when=None):
    """Compute adjacent operations by one class of your own in forward, before any built-in fusion is tried.

    pattern: keyword of the constructor of `fused` -> class of a basic operation, in forward order; `when`, if given,
    takes the operations by the same keywords and says whether the fusion applies. Subclasses that compute in a way of
    their own need a pattern that names them. With a recipe the input of `fused` may be a quantized tensor, where its
    first operation takes one (`takes_quantized_input`). -> a Registration, to `remove()`.
    Errors: TypeError for a class that takes other operations than the pattern has, or has no `fuser_forward`.
    """
    return FORWARD.register(pattern, fused, when)


def register_backward_fusion(pattern, fused, when=None):
    """The same for backward, whose list is in forward order, too: the class has a `fuser_backward`."""
    return BACKWARD.register(pattern, fused, when)


def _computes_as(op, kind):
    return isinstance(op, kind) and all(getattr(type(op), each) is getattr(kind, each) for each in _COMPUTING)


def _check(pattern, fused, when, method):
    if not (isinstance(pattern, Mapping) and pattern):
        raise TypeError(f"pattern is {pattern!r}, but must map keywords to classes of basic operations")
    for keyword, kind in pattern.items():
        if not (isinstance(kind, type) and issubclass(kind, BasicOperation)):
            raise TypeError(f"pattern has {kind!r} for {keyword}, but must have a class of basic operations")
    if not (isinstance(fused, type) and issubclass(fused, FusedOperation)):
        raise TypeError(f"fused is {fused!r}, but must be a class of FusedOperation")
    if getattr(fused, method) is getattr(FusedOperation, method):
        raise TypeError(f"{fused.__name__} has no {method}")
    if when is not None and not callable(when):
        raise TypeError(f"when is {when!r}, but must be a function of the operations or None")
    taken = inspect.signature(fused).parameters
    if set(taken) != set(pattern):
        raise TypeError(f"{fused.__name__} takes the operations {', '.join(taken)}, but the pattern has "
                        f"{', '.join(pattern)}")
    for keyword, kind in pattern.items():
        wanted = taken[keyword].annotation
        if isinstance(wanted, type) and wanted is not inspect.Parameter.empty and not issubclass(kind, wanted):
            raise TypeError(f"{fused.__name__} takes a {wanted.__name__} as {keyword}, but the pattern has a "
                            f"{kind.__name__}")
