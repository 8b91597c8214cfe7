"""What launchers ask of their operands, and what they keep of a call for the next one like it."""

import struct
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from optimized.plan import TYPES

MAX_PREPARED = 4096


class Prepared(dict):
    """Calls by all that checks and plans look at; one that meets ever new shapes starts anew instead of growing."""

    def keep(self, key: Any, ready: Any) -> Any:
        """Keep `ready`, and give it back."""
        if len(self) >= MAX_PREPARED:
            self.clear()
        self[key] = ready
        return ready


def on_gpu(function: str, name: str, tensor: Any) -> None:
    """ValueError for what is not on a CUDA device."""
    if tensor.device.type != "cuda":
        raise ValueError(f"{function}: {name} is on {tensor.device}, but optimized needs it on a CUDA device")


def in_memory(function: str, **tensors: Any) -> None:
    """TypeError for a tensor without memory of its own, such as a DTensor or what torch.func hands on."""
    for name, t in tensors.items():
        if isinstance(t, Tensor) and not _has_memory(t):
            raise TypeError(f"{function}: {name} is a {type(t).__name__} without memory of its own, but optimized "
                            "needs a tensor that has it")


def signature(t: Tensor) -> tuple:
    """All of a tensor that checks and plans look at. An address of 0 is like no other. Of one on 16 bytes it does not
    tell whether it negates: such views are of imaginary parts, which lie behind real ones."""
    address = t.data_ptr()
    place = (address & 15 and (address & 15, t.is_neg())) if address else None
    return t.shape, t.stride(), t.dtype, t.device, place


def type_of(dtype: Any) -> str:
    """A dtype as template arguments spell it."""
    return TYPES[str(dtype).removeprefix("torch.")]


def regular(t: Tensor) -> Tensor:
    """`t` itself where its rows are dense, lie at one distance from each other and hold its values, else a copy."""
    lies = t.is_contiguous() or pitch(t) is not None
    return t if lies and not t.is_neg() else contiguous(t)


def contiguous(t: Tensor) -> Tensor:
    """`t` itself where it is contiguous and holds its values, not what a view negates; else a copy."""
    return t.resolve_neg().contiguous()


def pitch(t: Tensor) -> int | None:
    """Elements from a row to the next; None where there is no such number."""
    if t.stride(-1) != 1 and t.shape[-1] > 1:
        return None
    leading = [(size, stride) for size, stride in zip(t.shape[:-1], t.stride()[:-1]) if size != 1]
    if not leading or 0 in t.shape:
        return t.shape[-1]
    for (_, outer), (size, inner) in zip(leading, leading[1:]):
        if outer != size * inner:
            return None
    return leading[-1][1]


def span_bytes(t: Tensor) -> int:
    """Bytes from the first element to behind the last."""
    if not t.numel():
        return 0
    return (1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride()))) * t.element_size()


def lie_apart(first: int, first_bytes: int, second: int, second_bytes: int) -> bool:
    """Whether two stretches of memory, by address and length, have no byte in common."""
    return first + first_bytes <= second or second + second_bytes <= first


def bump(t: Tensor) -> None:
    """Autograd learns that a kernel has written a tensor: its version rises, if it has one."""
    if not t.is_inference():
        increment_version(t)


@torch.no_grad()
def written_back(values: Tensor, t: Tensor) -> Tensor:
    """`t`, of strides that no kernel takes, with the values that a copy of it received."""
    return t.copy_(values)


def slot(value: float) -> int:
    """A float32 in the place of a pointer: what changes from call to call goes the way of the pointers."""
    return _INT32.unpack(_FLOAT32.pack(value))[0]


def _has_memory(t: Tensor) -> bool:
    try:
        return t.data_ptr() != 0 or not t.numel()
    except RuntimeError:
        return False


_FLOAT32, _INT32 = struct.Struct("<f"), struct.Struct("<I")
