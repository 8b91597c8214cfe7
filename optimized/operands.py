"""What launchers ask of their operands, and what they keep of a call for the next one like it."""

from typing import Any

from torch import Tensor

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


def signature(t: Tensor) -> tuple:
    """All of a tensor that checks and plans look at."""
    return t.shape, t.stride(), t.dtype, t.device, t.data_ptr() & 15


def type_of(dtype: Any) -> str:
    """A dtype as template arguments spell it."""
    return TYPES[str(dtype).removeprefix("torch.")]


def regular(t: Tensor) -> Tensor:
    """`t` itself where its rows are dense and lie at one distance from each other, else a contiguous copy."""
    return t if pitch(t) is not None else t.contiguous()


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
