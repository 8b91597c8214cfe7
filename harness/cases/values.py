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
