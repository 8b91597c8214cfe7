"""Tensor parallelism: how a linear layer is split over the ranks of a process group, and what these exchange.

"column": each rank has rows of the weight, hence columns of the output. "row": each has columns of the weight, hence
needs columns of the input, and the outputs are added up. With `sequence_parallel` the tensors that every rank would
have whole are split along their first dimension instead. All ranks' inputs must have as many rows: nothing looks, and
where they differ, the backend of the group fails, waits for ever or ends the process. Source: Shoeybi et al.,
"Megatron-LM", arXiv:1909.08053; Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
arXiv:2205.05198.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as distributed

from reference.arguments import is_flag, is_group, refuse

MODES = (None, "column", "row")


@dataclass(frozen=True, eq=False)
class TensorParallel:
    """Mode, process group, its size and this rank in it; on one rank the mode is None, and nothing is exchanged."""

    mode: str | None = None
    group: Any = None
    size: int = 1
    rank: int = 0
    sequence_parallel: bool = False

    def __deepcopy__(self, memo):
        return self

    @cached_property
    def gathers_input(self):
        """Whether the input is split along its first dimension, and every rank needs it whole."""
        return self.sequence_parallel and self.mode == "column"

    @cached_property
    def gathers_grad_output(self):
        """Whether the same holds of the gradient of the output."""
        return self.sequence_parallel and self.mode == "row"

    def local(self, function, name, size, mode):
        """This rank's share of `size` where the mode splits it. ValueError where ranks do not divide it."""
        if self.mode != mode:
            return size
        if size % self.size:
            refuse(ValueError, function, f"{name} is {size}, but must be a multiple of the {self.size} ranks of "
                                         "tensor_parallel_group")
        return size // self.size

    def gather(self, tensor):
        """(whole, work): all ranks' parts, along the first dimension, once work.wait() returns."""
        _needs_rows("gather", tensor)
        tensor = tensor.contiguous()
        whole = tensor.new_empty((self.size * tensor.shape[0], *tensor.shape[1:]))
        return whole, distributed.all_gather_into_tensor(whole, tensor, group=self.group, async_op=True)

    def sum(self, tensor):
        """(sum, work): the sum over ranks, with `sequence_parallel` this rank's part, once work.wait() returns."""
        tensor = tensor.contiguous()
        if not self.sequence_parallel:
            return tensor, distributed.all_reduce(tensor, group=self.group, async_op=True)
        _needs_rows("sum", tensor)
        if tensor.shape[0] % self.size:
            refuse(ValueError, "sequence_parallel", f"the first dimension is {tensor.shape[0]}, but must be a multiple "
                                                    f"of the {self.size} ranks")
        part = tensor.new_empty((tensor.shape[0] // self.size, *tensor.shape[1:]))
        return part, distributed.reduce_scatter_tensor(part, tensor, group=self.group, async_op=True)


def _needs_rows(function, tensor):
    if tensor.dim() < 2:
        refuse(ValueError, function, f"a tensor of shape {tuple(tensor.shape)} has no rows to share out, which "
                                     "sequence_parallel needs")


def tensor_parallel(function, mode, group=None, sequence_parallel=False, device=None):
    """The TensorParallel of constructor arguments; a group of None is that of all ranks.

    Errors: ValueError for an unknown mode, a group or `sequence_parallel` without one, a mode without initialised
    torch.distributed, a group that this rank is not in, and a group that cannot reach the device. TypeError for types.
    """
    if mode not in MODES:
        refuse(ValueError, function, f"tensor_parallel_mode is {mode!r}, but must be None, 'column' or 'row'")
    is_flag(function, "sequence_parallel", sequence_parallel)
    if mode is None:
        for name, given in (("tensor_parallel_group", group is not None), ("sequence_parallel", sequence_parallel)):
            if given:
                refuse(ValueError, function, f"{name} is given, but tensor_parallel_mode is None")
        return TensorParallel()
    if not (distributed.is_available() and distributed.is_initialized()):
        refuse(ValueError, function, f"tensor_parallel_mode is {mode!r}, but torch.distributed is not initialised")
    is_group(function, "tensor_parallel_group", group)
    kind = torch.device(device or torch.get_default_device()).type
    if kind == "cpu" and distributed.get_backend(group) == "nccl":
        refuse(ValueError, function, "tensor_parallel_group uses nccl, but the weight is on cpu")
    size = distributed.get_world_size(group)
    if size == 1:
        return TensorParallel()
    return TensorParallel(mode, group, size, distributed.get_rank(group), sequence_parallel)
