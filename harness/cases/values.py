"""Values and layouts of input tensors: seeded, made on the device, never zeros or small integers."""

import torch
from torch import Tensor

from harness.cases.base import LAYOUTS, known

_MARGIN = 8
_EVERY = 3
_FLOAT32_SQUARES = 1e37
_FLOAT32_PRODUCTS = 1e36


def generator(device, seed: int) -> torch.Generator | None:
    """A seeded generator on `device`; None on the meta device, where nothing is drawn."""
    device = torch.device(device)
    return None if device.type == "meta" else torch.Generator(device).manual_seed(seed)


def normal(shape, dtype, device, source, outliers=False) -> Tensor:
    """Standard normal values; with `outliers`, about one channel in 1,024 is 10 to 30 times larger.

    Such channels are what activations and gradients of trained transformers look like, and what makes a sum
    of squares lose digits where it is taken carelessly.
    """
    tensor = torch.randn(shape, dtype=dtype, device=device, generator=source)
    hidden = shape[-1]
    if outliers and hidden >= 32:
        count = 1 + hidden // 1024
        where = torch.randint(hidden, (count,), device=device, generator=source)
        sizes = 10 + 20 * torch.rand(count, device=device, generator=source)
        tensor *= torch.ones(hidden, device=device).scatter_(0, where, sizes).to(dtype)
    return tensor


def lay_out(tensor: Tensor, layout: str, shape) -> Tensor:
    """The values of `tensor` in one of LAYOUTS; `shape` differs from the tensor's where it is expanded.

    What lies between the elements of a strided tensor is NaN, so that reading it shows.
    """
    if known("layout", layout, LAYOUTS) == "strided":
        columns = tensor.shape[-1]
        wide = (*tensor.shape[:-1], columns + 2 * _MARGIN) if tensor.dim() > 1 else (columns, 2)
        buffer = tensor.new_full(wide, float("nan"))
        inner = buffer[..., _MARGIN:_MARGIN + columns] if tensor.dim() > 1 else buffer[:, 0]
        return inner.copy_(tensor)
    if layout == "offset":
        return tensor.new_empty(tensor.numel() + 1)[1:].view(tensor.shape).copy_(tensor)
    if layout == "transposed" and tensor.dim() > 1:
        return tensor.mT.contiguous().mT
    return tensor.expand(shape)


def drawn_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """The shape of the values behind a tensor of `shape`: one leading entry where the layout is expanded."""
    return (min(1, shape[0]), *shape[1:]) if layout == "expanded" and len(shape) > 1 else tuple(shape)


def spoil(rows: Tensor, kind: str) -> None:
    """Make every third row of `rows` (rows, H), the first among them, adversarial, in place.

    zero_row, constant_row; subnormals: just below the dtype's smallest normal number, signs alternating, so
    that nothing cancels where float32 has few digits left; outlier: one element outweighs all others; nan,
    inf: one element a row, infinities of both signs; largest: the largest magnitude, both signs, whose square
    float32 can still sum over H; largest_product: the largest whose products with normalized rows it can.
    Float32 and float64 therefore agree about which results are finite, and the oracle's non-finite values are
    binding.
    """
    picked, hidden, limits = rows[::_EVERY], rows.shape[-1], torch.finfo(rows.dtype)
    if kind == "zero_row":
        picked.zero_()
    elif kind == "constant_row":
        picked.fill_(3.3)
    elif kind == "largest":
        picked.sign_().mul_(min(limits.max, (_FLOAT32_SQUARES / hidden) ** 0.5))
    elif kind == "largest_product":
        picked.sign_().mul_(min(limits.max, _FLOAT32_PRODUCTS / hidden**1.5))
    elif kind == "subnormals":
        picked.abs_().clamp_(max=1).mul_(0.4).add_(0.5).mul_(limits.tiny)
        picked[:, 1::2].neg_()
    elif kind == "outlier":
        picked[:, hidden // 2] = min(limits.max / 2, 1e15)
    elif kind == "nan":
        picked[:, hidden // 3] = float("nan")
    else:
        picked[::2, hidden - 1] = float("inf")
        picked[1::2, hidden - 1] = float("-inf")


TILE = 32
"""Rows and columns of a tile of `spoil_blocks`: the longest block of a recipe."""


def spoil_blocks(matrix: Tensor, kind: str) -> None:
    """Make a matrix (rows, cols) adversarial to quantization, in place.

    zeros, negative_zeros: all of it; zero_blocks: one tile in three, with zeros of both signs, so that blocks of
    either orientation are all zero; subnormals: all below the dtype's smallest normal number; constant; outlier: the
    last element, which outweighs all others; largest: all ± the largest finite value; nan, inf: in one tile in three,
    one element, of both signs, its place in a block another from tile to tile; powers: magnitudes of a tile all the
    same, a power of two, its neighbour below or its neighbour above, over all exponents as far as there are tiles;
    power_below, power, power_above: nothing is larger than that neighbour of a power of two.
    """
    limits, (rows, cols) = torch.finfo(matrix.dtype), matrix.shape
    row, col = torch.arange(rows, device=matrix.device)[:, None], torch.arange(cols, device=matrix.device)
    tile = 7 * (row // TILE) + col // TILE
    if kind in ("zeros", "negative_zeros"):
        matrix.copy_(torch.tensor(0.0 if kind == "zeros" else -0.0).expand_as(matrix))
    elif kind == "zero_blocks":
        matrix.copy_(torch.where(tile % 3 == 0, matrix * 0.0, matrix))
    elif kind == "subnormals":
        matrix.mul_(limits.tiny / 8).clamp_(-limits.tiny / 2, limits.tiny / 2)
    elif kind == "constant":
        matrix.fill_(3.3)
    elif kind == "outlier":
        matrix[-1, -1] = min(limits.max / 2, 1e15)
    elif kind == "largest":
        matrix.copy_(matrix.sign() * limits.max)
    elif kind in ("nan", "inf"):
        place = row % TILE == (5 + 11 * tile) % min(TILE, rows), col % TILE == (7 + 13 * tile) % min(TILE, cols)
        value = torch.full_like(matrix, float(kind)).copysign(torch.where(tile % 2 == 0, 1.0, -1.0).to(matrix.dtype))
        matrix.copy_(torch.where(place[0] & place[1] & (tile % 3 == 0), value, matrix))
    elif kind == "powers":
        matrix.copy_(matrix.sign() * _near_powers(tile, matrix.dtype))
    else:
        power = torch.full((), 2.0**5, dtype=matrix.dtype, device=matrix.device)
        most = {"power_below": power * (1 - limits.eps / 2), "power_above": power * (1 + limits.eps)}.get(kind, power)
        matrix.clamp_(-most, most)[rows // 2, cols // 2] = most


def _near_powers(tile: Tensor, dtype: torch.dtype) -> Tensor:
    """A power of two for each number of a tile, or a neighbour of it: exponents three tiles apart differ by one, and
    all exponents of the dtype come in turn, from the middle."""
    limits = torch.finfo(dtype)
    low, high = (round(torch.tensor(limit, dtype=torch.float64).log2().item()) for limit in (limits.tiny, limits.max))
    exponent = (tile // 3 * 37 % (high - low - 2) + low + 1).double()
    neighbour = torch.where(tile % 3 == 0, 1 - limits.eps / 2, torch.where(tile % 3 == 1, 1.0, 1 + limits.eps))
    return (torch.exp2(exponent) * neighbour).to(dtype)


def spoil_with_ties(matrix: Tensor, magnitudes: Tensor, source) -> None:
    """Make a matrix (rows, cols) of values half-way between neighbours of a format, in place; signs stay.

    `magnitudes` are the format's, ascending. One element in 16, along rows and down columns, is the largest of them, so
    that the scale of every block is a power of two; tiles differ by powers of two, of which the first is 1.
    """
    rows, cols = (torch.arange(size, device=matrix.device) for size in matrix.shape)
    halves = (magnitudes[1:] + magnitudes[:-1]) / 2
    drawn = halves[torch.randint(len(halves), matrix.shape, device=matrix.device, generator=source)]
    largest = (rows[:, None] + cols) % 16 == 0
    shift = torch.exp2(-((rows[:, None] // TILE + cols // TILE) % 3).double())
    matrix.copy_(torch.copysign(torch.where(largest, magnitudes[-1], drawn) * shift, matrix.double()))
