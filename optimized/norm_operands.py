"""What the launchers of norms ask of their operands."""

import torch
from torch import Tensor

from optimized.operands import contiguous, in_memory, on_gpu, pitch, type_of
from optimized.plan import Problem

MAX_COLS = 2**31 - 2**20  # whoever walks along a row in int32 steps over its end


def takes(function: str, **operands: Tensor | None) -> None:
    """ValueError where the first operand is not on a CUDA device or its rows are too long; TypeError for one without
    memory of its own."""
    name, first = next(iter(operands.items()))
    on_gpu(function, name, first)
    in_memory(function, **operands)
    if first.shape[-1] > MAX_COLS:
        raise ValueError(f"{function}: {name} has rows of {first.shape[-1]} elements, but optimized takes at most "
                         f"{MAX_COLS}")


def forward_problem(function: str, input: Tensor, weight: Tensor, bias: Tensor | None, zero_centered: bool,
                    output: str | None = None) -> Problem:
    """What a forward norm of regular operands computes."""
    norm = "LayerNorm" if function == "layernorm_fwd" else "RmsNorm"
    cols = input.shape[-1]
    vector = widest_vector(cols, [input], [t for t in (weight, bias) if t is not None])
    return Problem(norm, input.shape[:-1].numel(), cols, type_of(input.dtype), type_of(weight.dtype), vector=vector,
                   zero_centered=zero_centered, output=output)


def widest_vector(cols: int, rowwise: list[Tensor], columnwise: list[Tensor]) -> int:
    """The widest vector, in elements, of at most 16 bytes of x and dz, that every operand can move as it lies."""
    def fits(vector):
        units = [(t, min(16, vector * t.element_size())) for t in rowwise + columnwise]
        return cols % vector == 0 and all(t.data_ptr() % unit == 0 for t, unit in units) and all(
            pitch(t) * t.element_size() % unit == 0 for t, unit in units[:len(rowwise)])

    vector = 16 // max(t.element_size() for t in rowwise[:2])
    while not fits(vector):
        vector //= 2
    return vector


def alike(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Both dense and of one dtype: of two, float32, which holds either exactly."""
    dtype = weight.dtype if bias is None or bias.dtype == weight.dtype else torch.float32
    return contiguous(weight.to(dtype)), bias if bias is None else contiguous(bias.to(dtype))


def on_16_bytes(t: Tensor) -> bool:
    """Whether a dense tensor, or every row of a regular one, begins at a multiple of 16 bytes."""
    rows = t.shape[:-1].numel()
    return t.data_ptr() % 16 == 0 and (rows < 2 or pitch(t) * t.element_size() % 16 == 0)
