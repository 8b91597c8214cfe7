"""Quantizers, inputs and comparisons for tests of quantize and dequantize."""

from contextlib import contextmanager
from dataclasses import dataclass, fields

import torch

from harness.guards import Guarded
from optimized.launch import allocator
from reference import quantizers
from reference.quantizers import Float8CurrentScalingQuantizer, Float8Quantizer, MXFP8Quantizer, NVFP4Quantizer

E4M3, E5M2 = FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
SEED, OFFSET = 0x9ABCDEF012345678, 2**62 + 0x123456789


@dataclass(frozen=True)
class Recipe:
    """What a quantizer is made of; `make` gives a new one, with tensors of its own."""

    cls: type
    options: tuple = ()
    rowwise: bool = True
    columnwise: bool = False

    @property
    def name(self):
        """As a test is called by."""
        side = {(True, False): "row", (False, True): "col", (True, True): "both"}[self.rowwise, self.columnwise]
        shown = [f"{key}={value}" for key, value in self.options if key not in ("seed", "offset")]
        return " ".join([self.cls.__name__.removesuffix("Quantizer"), side, *shown]).replace("torch.float8_", "")

    def make(self, device, scale=3.7, amax=0.5):
        """A quantizer whose tensors, if any, are on `device`."""
        state = {}
        if self.cls is Float8Quantizer:
            state = {"scale": torch.full((1,), scale, device=device), "amax": torch.full((1,), amax, device=device)}
        return self.cls(**state, **dict(self.options), rowwise=self.rowwise, columnwise=self.columnwise)

    def takes(self, shape, dtype):
        """Whether the quantizer can take an input of that shape."""
        try:
            quantizers.check("quantize", torch.empty(shape, dtype=dtype, device="meta"), self.make("meta"))
        except (ValueError, TypeError):
            return False
        return True


def recipes(orientations=((True, False), (False, True), (True, True))):
    """Every quantizer with every option that changes what is computed."""
    kinds = []
    for dtype in FP8:
        kinds += [(Float8Quantizer, {"dtype": dtype}), (MXFP8Quantizer, {"dtype": dtype})]
        kinds += [(Float8CurrentScalingQuantizer, {"dtype": dtype, **more})
                  for more in ({}, {"force_pow_2_scales": True}, {"amax_epsilon": 9.0})]
    stream = {"seed": SEED, "offset": OFFSET}
    rounded = {"stochastic_rounding": True, **stream}
    kinds += [(NVFP4Quantizer, options) for options in (
        {}, {"with_2d_quantization": True}, rounded, {"with_rht": True}, {"with_rht": True, **rounded})]
    return [Recipe(cls, tuple(options.items()), *sides) for cls, options in kinds for sides in orientations]


def values(kind, shape, dtype, device="cpu", seed=0):
    """Inputs by name: "normal", "heavy" (six decades) or one of ADVERSARIAL."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    if kind != "normal":
        x = x * torch.exp(3 * torch.randn(shape, generator=generator))
    if kind in ADVERSARIAL:
        x = ADVERSARIAL[kind](x, generator)
    return x.to(dtype).to(device)


def _somewhere(x, generator, value, share=0.001):
    chosen = torch.rand(x.shape, generator=generator) < share
    if x.numel():
        chosen.view(-1)[int(torch.randint(x.numel(), (), generator=generator))] = True
    return torch.where(chosen, value, x)


def _powers(x, generator):
    """Blocks of 32 whose largest value is a power of two, or the largest value of a format times one, ± one ulp."""
    flat = x.reshape(-1)
    count = -(-flat.numel() // 32)
    exponent = torch.arange(count) % 250 - 124
    base = torch.tensor([1.0, 448.0, 57344.0, 6.0, 2688.0])[torch.arange(count) % 5].double()
    peak = (base * torch.pow(2.0, exponent.double())).clamp(max=3e38).float()
    off = torch.tensor([0, 1, -1])[torch.arange(count) // 5 % 3].int()
    peak = (peak.view(torch.int32) + off).view(torch.float32)
    inside = torch.rand(count, 32, generator=generator) * 2 - 1
    inside[torch.arange(count), torch.randint(32, (count,), generator=generator)] = 1
    return (inside * peak[:, None]).reshape(-1)[: flat.numel()].reshape(x.shape)


def _bits(x, generator):
    """Any bits of float32, NaN and Inf left out."""
    bits = torch.randint(-2**31, 2**31, x.shape, generator=generator).int().view(torch.float32)
    return torch.where(bits.isfinite(), bits, 0.0)


def _boundaries(x, generator):
    """Midpoints and values of E2M1 and their neighbours, in blocks whose largest value is 6."""
    grid = torch.tensor([0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6])
    near = torch.cat([(grid.view(torch.int32) + step).view(torch.float32) for step in (-1, 0, 1)])
    picked = near[torch.randint(len(near), x.shape, generator=generator)]
    picked = picked.clamp(max=6) * torch.where(torch.rand(x.shape, generator=generator) < 0.5, -1.0, 1.0)
    picked.reshape(-1)[::8] = 6.0
    return picked


ADVERSARIAL = {
    "zeros": lambda x, g: torch.zeros_like(x),
    "negative_zeros": lambda x, g: torch.where(x > 0, -0.0, x * 0),
    "zero_blocks": lambda x, g: torch.where(torch.arange(x.shape[-1]) // 48 % 2 == 0, 0.0, x),
    "nan": lambda x, g: _somewhere(x, g, float("nan")),
    "negative_nan": lambda x, g: _somewhere(x, g, float("nan")).neg(),
    "inf": lambda x, g: _somewhere(_somewhere(x, g, float("inf")), g, float("-inf")),
    "all_nan": lambda x, g: torch.full_like(x, float("nan")),
    "subnormal": lambda x, g: x * 2.0**-133,
    "tiny": lambda x, g: x * 2.0**-120,
    "huge": lambda x, g: (x * 2.0**120).clamp(-3.3e38, 3.3e38),
    "outlier": lambda x, g: torch.where(torch.arange(x.numel()).view(x.shape) == x.numel() // 2, 3e38, x),
    "outlier_column": lambda x, g: torch.where(torch.arange(x.shape[-1]) == x.shape[-1] // 2, x * 1000, x),
    "powers": _powers,
    "bits": _bits,
    "boundaries": _boundaries,
}


def layouts(shape, dtype, device):
    """Views of one shape that are not contiguous, not aligned, or share memory, by name."""
    rows, cols = shape
    wide = values("heavy", (rows, cols + 24), dtype, device)
    flat = values("heavy", (rows * cols + 16,), dtype, device)
    doubled = values("heavy", (rows, 2 * cols), dtype, device)
    return {
        "pitch of 16 bytes": wide[:, 8:8 + cols], "pitch between": wide[:, 5:5 + cols],
        "offset": flat[1:1 + rows * cols].view(rows, cols), "offset of 4": flat[4:4 + rows * cols].view(rows, cols),
        "transposed": values("heavy", (cols, rows), dtype, device).t(),
        "expanded rows": wide[:1, :cols].expand(rows, cols), "expanded columns": wide[:, :1].expand(rows, cols),
        "every second": doubled[:, ::2], "every second row": doubled.view(2 * rows, cols)[::2],
        "three dimensions": wide[:, :cols].unflatten(0, (4, -1)),
        "three, transposed": doubled.view(rows, 2, cols).movedim(1, 0),
    }


@contextmanager
def guarded(poison):
    """Outputs between bands, filled with poison."""
    guard = Guarded(poison)
    with allocator(guard.allocate):
        yield guard
    assert guard.intact(), "something was written beside an output"


def difference(got, want):
    """Which field of two quantized tensors differs where; "" where their bytes are the same, any NaN like another."""
    for field in fields(want):
        ours, theirs = getattr(got, field.name), getattr(want, field.name)
        if not isinstance(theirs, torch.Tensor):
            if ours != theirs:
                return f"{field.name} is {ours}, not {theirs}"
            continue
        theirs = theirs.to(ours.device)
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return f"{field.name} is {ours.dtype} {tuple(ours.shape)}, not {theirs.dtype} {tuple(theirs.shape)}"
        wrong = different(ours, theirs)
        if wrong.any():
            count, at = f"{int(wrong.sum())} of {wrong.numel()}", tuple(wrong.nonzero()[0].tolist())
            return f"{field.name}: {count} differ, first at {at}: {ours[at]} not {theirs[at]}"
    return ""


def different(ours, theirs):
    """Where two tensors of one dtype differ in their bits; any NaN of more than a byte is like another."""
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[ours.element_size()]
    unequal = ours.contiguous().view(integer) != theirs.contiguous().view(integer)
    return unequal & ~(ours.isnan() & theirs.isnan()) if ours.element_size() > 1 else unequal
