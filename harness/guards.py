"""Outputs between guard bands, filled with poison; bits of tensors, and whether inputs kept theirs."""

from typing import Any

import torch
from torch import Tensor

from harness.cases import Call
from harness.cases.base import tensors_in

BAND_BYTES = 256
"""Bytes watched on each side of an allocation; also its alignment."""

BAND_VALUE = 0xA5
"""What the bands hold: neither of the two poisons, and no byte pattern that a kernel is likely to write."""

_SAME_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Guarded:
    """Allocates in the place of a function package's hook: every block poisoned, and between two bands.

    `allocate` is what the hook is replaced by. Blocks live as long as this object, so that none is handed out
    twice.
    """

    def __init__(self, poison: int):
        self.poison = poison
        self._blocks: list[tuple[Tensor, int, int]] = []

    def allocate(self, shape, dtype, device) -> Tensor:
        """A contiguous tensor, 256-byte aligned, every byte of it the poison."""
        size = torch.Size(shape).numel() * dtype.itemsize
        buffer = torch.empty(size + 3 * BAND_BYTES, dtype=torch.uint8, device=device)
        start = BAND_BYTES + -buffer.data_ptr() % BAND_BYTES
        buffer[start - BAND_BYTES:start] = BAND_VALUE
        buffer[start + size:start + size + BAND_BYTES] = BAND_VALUE
        payload = buffer[start:start + size].fill_(self.poison)
        self._blocks.append((buffer, start, size))
        return payload.view(dtype).view(shape)

    def owns(self, tensor: Tensor) -> bool:
        """Whether the tensor's memory came from `allocate`."""
        home = tensor.untyped_storage().data_ptr()
        return any(buffer.data_ptr() == home for buffer, _, _ in self._blocks)

    def intact(self) -> bool:
        """Whether both bands of every block still hold what was put there."""
        bands = [buffer[at:at + BAND_BYTES] for buffer, start, size in self._blocks
                 for at in (start - BAND_BYTES, start + size)]
        return not bands or bool((torch.cat(bands) == BAND_VALUE).all())


class Inputs:
    """Remembers every byte of a call's inputs, also those between the elements of a strided tensor."""

    def __init__(self, call: Call):
        self._before = [(memory, memory.clone()) for memory in memories(call)]

    def unchanged(self) -> bool:
        """Whether every byte is what it was."""
        return all(same_bits(memory, before) for memory, before in self._before)


class Restored:
    """The inputs that a call updates in place: `take` gives what a run has made of them, and puts back what they
    were."""

    def __init__(self, tensors: dict[str, Tensor]):
        self._tensors, self._before = tensors, {name: tensor.clone() for name, tensor in tensors.items()}

    def take(self) -> tuple[Tensor, ...]:
        """Copies of the tensors as they are, in order."""
        found = tuple(tensor.clone() for tensor in self._tensors.values())
        for name, tensor in self._tensors.items():
            tensor.copy_(self._before[name])
        return found


def memories(call: Call) -> list[Tensor]:
    """The whole storage of each input tensor as bytes, in order of the arguments."""
    return [torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
            for tensor in call.tensors()]


def refill(call: Call, fresh: Call) -> None:
    """Put the values of `fresh` where the inputs of `call`, the same case, are: other values at the same
    addresses."""
    for memory, values in zip(memories(call), memories(fresh), strict=True):
        memory.copy_(values)


def poison(results: Any, value: int = 0xFF) -> None:
    """Fill every byte of each result: what is right after a replay was then written by the replay."""
    for result in tensors_in(results):
        width = result.element_size()
        bits(result).fill_(int.from_bytes(bytes([value]) * width, "little", signed=width > 1))


def bits(tensor: Tensor) -> Tensor:
    """The same memory as integers of the same width, so that NaN compares like any other pattern."""
    return tensor.view(_SAME_WIDTH[tensor.element_size()])


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one dtype hold the same bits."""
    return torch.equal(bits(one), bits(other))


def unwritten_bytes(poisoned_ones: Tensor, poisoned_zeros: Tensor) -> int:
    """How many bytes kept 0xFF in one run and 0x00 in the other: nothing was ever written there."""
    pair = (poisoned_ones, poisoned_zeros)
    ones, zeros = (tensor.contiguous().view(-1).view(torch.uint8) for tensor in pair)
    return int(((ones == 0xFF) & (zeros == 0)).sum())
