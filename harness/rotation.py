"""Copies of a call's inputs in memory of their own, as many as it takes to outgrow the L2 cache."""

from dataclasses import fields, is_dataclass, replace

import torch
from torch import Tensor

from harness.cases import Call

MOST = 64  # a call so small that 64 of them stay in L2 would be in L2 in use, too


def inputs(call: Call, call_bytes: int, l2_bytes: int) -> list[Call]:
    """`call` and copies of it that together move at least 3 x L2 bytes, 64 at most."""
    wanted = -(-3 * l2_bytes // max(call_bytes, 1))
    return [call, *(duplicate(call) for _ in range(min(max(wanted, 1), MOST) - 1))]


def duplicate(call: Call) -> Call:
    """The same values at other addresses, with the same strides and alignment; shared storage stays shared. A
    quantizer among the arguments has its state, and a quantized tensor its data, at other addresses, too."""
    storages: dict[int, torch.UntypedStorage] = {}

    def copy(value):
        if is_dataclass(value):
            return replace(value, **{each.name: copy(getattr(value, each.name)) for each in fields(value)})
        if not isinstance(value, Tensor):
            return value
        storage = value.untyped_storage()
        clone = storages.setdefault(storage.data_ptr(), storage.clone() if storage.nbytes() else storage)
        empty = torch.empty(0, dtype=value.dtype, device=value.device)
        return empty.set_(clone, value.storage_offset(), value.shape, value.stride())

    return Call(tuple(map(copy, call.args)), {key: copy(value) for key, value in call.kwargs.items()})
