"""The op graph of reference.ops, the same classes, with the optimized table where none is named."""

import optimized
from reference import ops

__all__ = ops.__all__


class OperationContext(ops.OperationContext):
    """reference.ops.OperationContext on the optimized table."""

    __slots__ = ()

    def __init__(self, kernels=optimized, *settings, **more):
        super().__init__(kernels, *settings, **more)


class OperationFuser(ops.OperationFuser):
    """reference.ops.OperationFuser on the optimized table."""

    def __init__(self, ops, kernels=optimized, fuse=True):
        super().__init__(ops, kernels, fuse)


def _here(base):
    """`base` on the optimized table, and a subclass of its own bases that are here."""
    bases = [globals()[each.__name__] for each in base.__mro__[1:] if each.__name__ in __all__]
    said = f"reference.ops.{base.__name__} on the optimized table."
    return type(base.__name__, (base, *bases), {"kernels": optimized, "__module__": __name__, "__doc__": said})


for _each in sorted((getattr(ops, name) for name in __all__ if name not in globals()),
                    key=lambda each: len(getattr(each, "__mro__", ()))):
    globals()[_each.__name__] = _here(_each) if isinstance(_each, type) else _each
