"""Quantize and dequantize: inputs, work, and what their results are compared with."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from harness import quantized
from harness.cases import recipes
from harness.cases import values as of
from harness.cases.base import DTYPES, EXACT, RECIPES, Call, Case, Common, Expected, Work, known
from reference.quantization import quantize

CHUNK = 1 << 23
"""Elements of a stretch: the float64 temporaries of its distortion take about 1 GB."""

_KINDS = (
    "zeros", "negative_zeros", "zero_blocks", "subnormals", "constant", "outlier", "largest", "nan", "inf", "ties"
)
_POWERS = {"fp8_delayed": ("power_above",), "fp8_current": ("power_below", "power", "power_above"),
           "mxfp8": ("powers",), "nvfp4": ("powers", "power_below", "power_above")}
_CODES = ("codes", "largest_scale", "smallest_scale", "nan_scale", "zero_scale", "infinite_scale")
_FLT_MAX = torch.finfo(torch.float32).max


class _Quantization(Common):
    """What the two functions share. Everything is compared with the reference to the bit."""

    outputs, recipes, allowance = ("output",), RECIPES[1:], EXACT

    def oracle(self, call: Call) -> dict[str, Tensor]:
        """The output whole, float64: (rows, cols) whatever the rank."""
        return {"output": torch.cat([part.value for part in self.expected(call)])}

    def _known(self, case: Case) -> None:
        if case.recipe not in self.recipes:
            raise ValueError(f"{case.function} needs a recipe, one of {', '.join(self.recipes)}")

    def _drawn(self, case: Case, device, source, kind: str) -> Tensor:
        layout = case.option("layout", "contiguous")
        x = of.normal(of.drawn_shape(case.shape, layout), DTYPES[case.dtype], device, source, outliers=True)
        if kind == "ties":
            values = quantized.table(_format(case), x.device).unique()
            of.spoil_with_ties(_matrix(x), values[values.isfinite() & (values >= 0)], source)
        elif kind != "normal":
            of.spoil_blocks(_matrix(x), kind)
        return of.lay_out(x, layout, case.shape)


class Quantize(_Quantization):
    """quantize(input, quantizer) -> a quantized tensor; with delayed scaling the quantizer's amax is raised in place.

    Useful bytes count the input once. Current scaling and NVFP4 must know the amax of the tensor before they cast its
    first element, and read an input that does not fit in L2 twice: `passes` counts those bytes, which a comparison
    with a copy is fair with.
    """

    def check(self, case: Case) -> None:
        """ValueError where the recipe does not take the case's shape or options."""
        self._known(case)
        recipes.check(case, ("layout",))
        recipes.check_flags(case)

    def adversarial(self, case: Case) -> tuple[str, ...]:
        """Kinds of values for the input, and of state for its quantizer; none where there are no elements."""
        if not math.prod(case.shape):
            return ()
        return _KINDS + _POWERS[case.recipe] + recipes.STATES.get(case.recipe, ())

    def make(self, case: Case, device, seed: int, values: str = "normal") -> Call:
        """Input and quantizer of `case` on `device` from `seed`; `values` may be a kind of adversarial input or
        state."""
        self.check(case)
        states = recipes.STATES.get(case.recipe, ())
        known("kind of values", values, ("normal", *_KINDS, *sum(_POWERS.values(), ()), *states))
        source = of.generator(device, seed)
        kind, state = ("normal", values) if values in states else (values, values)
        x = self._drawn(case, device, source, kind)
        return Call((x, recipes.quantizer(case, device, source, seed, state)), {})

    def in_place(self, call: Call) -> dict[str, Tensor]:
        """The amax of delayed scaling."""
        return recipes.amax_of(call)

    def expected(self, call: Call) -> Iterator[Expected]:
        """The input itself, a stretch of rows at a time, with the largest magnitude of each row."""
        x = _matrix(call.args[0])
        for where in stretches(*x.shape):
            rows = x[where].double()
            yield Expected("output", where, rows, _largest(rows))

    def work(self, case: Case) -> Work:
        """Read the input once, and the quantizer's state; write data, padded scales, and the amax."""
        read, written = recipes.state_bytes(case)
        distinct = math.prod(of.drawn_shape(case.shape, case.option("layout", "contiguous")))
        return Work(read + distinct * DTYPES[case.dtype].itemsize, written + recipes.stored_bytes(case),
                    2 * math.prod(case.shape))

    def arithmetic(self, call: Call) -> int:
        """An absolute value's maximum and a product for each element."""
        return 2 * call.args[0].numel()

    def passes(self, case: Case, l2_bytes: int) -> int:
        """Bytes that must cross the memory's pins: the input twice where it is read twice and does not fit in L2."""
        size = math.prod(case.shape) * DTYPES[case.dtype].itemsize
        return self.work(case).bytes + (size if recipes.seen_twice(case) and size > l2_bytes else 0)


class Dequantize(_Quantization):
    """dequantize(tensor, dtype) -> the values of the one orientation that the tensor holds.

    The padding of the tensor's scales is full of NaN: it must not be read as data.
    """

    def check(self, case: Case) -> None:
        """ValueError where the recipe does not take the case's shape or options, or there are two orientations, of
        which only one would be read."""
        self._known(case)
        recipes.check(case, ())
        for name, value in case.options:
            if name not in ("orientation", "format") or value == "both":
                raise ValueError(f"dequantize has no option {name}={value}")

    def adversarial(self, case: Case) -> tuple[str, ...]:
        """codes: any data and scales; the largest and the smallest scale; a scale, or an amax, of NaN, 0 or Inf."""
        return _CODES if math.prod(case.shape) else ()

    def make(self, case: Case, device, seed: int, values: str = "normal") -> Call:
        """What the reference makes of random values, or random bytes; the case's dtype is that of the output."""
        self.check(case)
        known("kind of values", values, ("normal", *_CODES))
        source = of.generator(device, seed)
        made = recipes.quantizer(case, device, source, seed)
        tensor = quantize(self._drawn(case, device, source, "normal"), made)
        if source is not None:
            _spoil(tensor, values, source)
            for side in quantized.sides(tensor).values():
                _fill_padding(side)
        return Call((tensor, DTYPES[case.dtype]), {})

    def in_place(self, call: Call) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def expected(self, call: Call) -> Iterator[Expected]:
        """code · scale, a stretch of rows at a time, with the largest finite magnitude of each row."""
        tensor, (name, side) = call.args[0], next(iter(quantized.sides(call.args[0]).items()))
        for where in stretches(tensor.shape[:-1].numel(), tensor.shape[-1]):
            part = side.part(where, name).values()
            rows = part if name == "rowwise" else part.t()
            yield Expected("output", where, rows, _largest(rows))

    def work(self, case: Case) -> Work:
        """Read data, padded scales and amax; write the values."""
        size = math.prod(case.shape)
        return Work(recipes.stored_bytes(case), size * DTYPES[case.dtype].itemsize, size)

    def arithmetic(self, call: Call) -> int:
        """One product for each element."""
        return call.args[0].shape.numel()

    def passes(self, case: Case, l2_bytes: int) -> int:
        """Bytes that must cross the memory's pins: those of `work`."""
        return self.work(case).bytes


FAMILIES = {"quantize": Quantize(), "dequantize": Dequantize()}


def stretches(rows: int, cols: int) -> Iterator[slice]:
    """Slices that cover the rows, each of about CHUNK elements and beginning with a block; one empty slice where there
    are none."""
    step = max(1, CHUNK // max(cols, 1) // of.TILE) * of.TILE
    for start in range(0, max(rows, 1), step):
        yield slice(start, min(start + step, rows))


def _format(case: Case) -> str:
    return "e2m1" if case.recipe == "nvfp4" else case.option("format", "e4m3")


def _matrix(tensor: Tensor) -> Tensor:
    return tensor.reshape(tensor.shape[:-1].numel(), tensor.shape[-1])


def _largest(rows: Tensor) -> Tensor:
    """The largest finite magnitude of each row, (rows, 1)."""
    return rows.abs().nan_to_num(nan=0.0, posinf=0.0).amax(-1, keepdim=True)


def _spoil(tensor, kind: str, source: torch.Generator) -> None:
    """Other bytes in a quantized tensor: any data, with any scales or with extreme ones (MXFP8 has no 0, no Inf)."""
    if kind == "normal":
        return
    for name, held in tensor.tensors().items():
        if name == "scale_inv" or name.endswith("amax"):
            extremes = {"largest_scale": _FLT_MAX / 4, "smallest_scale": 2.0**-130, "nan_scale": math.nan,
                        "zero_scale": 0.0, "infinite_scale": math.inf}
            held.fill_(extremes.get(kind, 1.5))
        else:
            drawn = torch.randint(256, held.shape, dtype=torch.uint8, device=held.device, generator=source)
            ends = {"largest_scale": 254, "smallest_scale": 0}
            if held.dtype == torch.float8_e4m3fn and name.endswith("scale_inv"):
                drawn, ends = drawn & 0x7F, {"largest_scale": 0x7E, "smallest_scale": 1}
            if name.endswith("scale_inv") and kind in ends:
                drawn.fill_(ends[kind])
            held.view(torch.uint8).copy_(drawn)


def _fill_padding(side: quantized.Side) -> None:
    if side.padded is not None:
        outer, blocks = side.scales.shape
        side.padded[:outer, blocks:] = quantized.NAN_SCALES[side.kind]
        side.padded[outer:] = quantized.NAN_SCALES[side.kind]
