"""What a case's recipe stands for: the quantizer, the shapes that it takes, and the bytes that it gives."""

import math
from typing import Any

import torch
from torch import Tensor

from harness.cases.base import FORMATS, Call, Case
from reference import quantizers
from reference.formats import LARGEST

BLOCKS = {"mxfp8": 32, "nvfp4": 16}
"""Recipe -> length of its blocks. The others have one scale for the whole tensor."""

OPTIONS = {
    "none": (),
    "fp8_delayed": ("orientation", "format"),
    "fp8_current": ("orientation", "format", "force_pow_2_scales"),
    "mxfp8": ("orientation", "format"),
    "nvfp4": ("orientation", "with_2d_quantization", "stochastic_rounding", "with_rht"),
}
"""Recipe -> the options of a case that describe its quantizer."""

STATES = {"fp8_delayed": ("largest_scale", "subnormal_scale", "nan_amax"), "fp8_current": ("raised_amax",)}
"""Recipe -> the kinds of its quantizer's adversarial state. raised_amax: by an epsilon beyond all values."""

_TYPICAL = 64.0  # a typical amax: beyond it some of the outliers saturate
_EPSILON = 1000.0
_RANDOM = 0x5EED_0123_4567_89AB  # the seed of stochastic rounding: both words count
_OFFSET = 1 << 33


def check(case: Case, others: tuple[str, ...], least: int = 1) -> None:
    """ValueError where the recipe does not take the case's shape, or an option that is not among `others`, or rows have
    fewer elements than `least`."""
    if case.hidden < least:
        raise ValueError(f"{case.function} needs rows of at least {least} element")
    for key, _ in case.options:
        if key not in OPTIONS[case.recipe] and key not in others:
            raise ValueError(f"{case.function} with recipe {case.recipe} has no option {key}")
    block = BLOCKS.get(case.recipe)
    square = case.option("with_2d_quantization", False)
    for name, size in {"rowwise": case.hidden, "columnwise": case.rows}.items():
        if block and (square or name in orientations(case)) and size % block:
            what = "cols" if name == "rowwise" else "rows"
            raise ValueError(f"{size} {what} are no multiple of the block, {block}")
    if "columnwise" in orientations(case) and len(case.shape) < 2:
        raise ValueError("a vector has no columnwise data")


def check_flags(case: Case) -> None:
    """ValueError for a dtype, or an option, that another excludes."""
    if case.option("with_rht") and case.dtype != "bf16":
        raise ValueError("with_rht needs bf16")
    if case.option("with_2d_quantization") and (case.option("with_rht") or case.option("stochastic_rounding")):
        raise ValueError("with_2d_quantization excludes with_rht and stochastic_rounding")


def fused_path(case: Case) -> str:
    """The path on which a norm is fused with the case's quantizer; "unfused" where there is none."""
    if case.option("with_rht"):
        return "unfused"
    return {"fp8_current": "fused_norm_amax_fp8", "nvfp4": "fused_norm_amax_nvfp4"}.get(case.recipe, "fully_fused")


def orientations(case: Case) -> tuple[str, ...]:
    """The orientations that the case's quantizer makes; none without a recipe."""
    asked = case.option("orientation", "rowwise") if case.recipe != "none" else ()
    return ("rowwise", "columnwise") if asked == "both" else (asked,) if asked else ()


def rows_alike(case: Case, rows: int) -> int:
    """At most `rows` rows, but at least one block of them where blocks may lie down a column."""
    block = BLOCKS.get(case.recipe, 1)
    return max(rows // block, 1) * block


def quantizer(case: Case, device, source: torch.Generator | None, seed: int, state: str = "normal") -> Any:
    """The quantizer of the case. That of delayed scaling has scale and amax in one buffer, between values that are
    NaN, and, for one seed in four, an amax that is larger than any that comes.

    `state` is "normal", one of the recipe's STATES, or "ties", where a scale of 1 keeps values half-way between codes.
    """
    asked = {name: name in orientations(case) for name in ("rowwise", "columnwise")}
    if "format" in OPTIONS[case.recipe]:
        asked["dtype"] = FORMATS[case.option("format", "e4m3")]
    flags = {name: case.option(name, False) for name in OPTIONS[case.recipe] if name not in ("orientation", "format")}
    if case.recipe == "fp8_delayed":
        return quantizers.Float8Quantizer(*_state(asked["dtype"], device, source, seed, state), **asked)
    if case.recipe == "fp8_current":
        epsilon = _EPSILON if state == "raised_amax" else 0.0
        return quantizers.Float8CurrentScalingQuantizer(**asked, **flags, amax_epsilon=epsilon)
    if case.recipe == "mxfp8":
        return quantizers.MXFP8Quantizer(**asked)
    return quantizers.NVFP4Quantizer(seed=(_RANDOM + seed) % 2**64, offset=_OFFSET + 3, **asked, **flags)


def quantizer_of(call: Call) -> Any | None:
    """The quantizer among the arguments of a call."""
    given = (*call.args, *call.kwargs.values())
    return next((value for value in given if isinstance(value, quantizers.QUANTIZERS)), None)


def amax_of(call: Call) -> dict[str, Tensor]:
    """{"amax": the amax that a call raises in place}; empty where its quantizer has no state."""
    found = quantizer_of(call)
    return {"amax": found.amax} if isinstance(found, quantizers.Float8Quantizer) else {}


def state_bytes(case: Case) -> tuple[int, int]:
    """Bytes of the quantizer's state that are read (scale and amax) and written (amax)."""
    return (8, 4) if case.recipe == "fp8_delayed" else (0, 0)


def stored_bytes(case: Case) -> int:
    """Bytes of the quantized tensor: data, scales with their padding, and the amax of each orientation."""
    elements, rows, cols = math.prod(case.shape), case.rows, case.hidden
    held = orientations(case)
    if case.recipe not in BLOCKS:
        return elements * len(held) + 4
    block = BLOCKS[case.recipe]
    scales = {"rowwise": (rows, cols // block), "columnwise": (cols, rows // block)}
    data, amax = (elements, 0) if case.recipe == "mxfp8" else (elements // 2, 4)
    return sum(data + _up(scales[name][0], 128) * _up(scales[name][1], 4) + amax for name in held)


def seen_twice(case: Case) -> bool:
    """Whether an amax of the whole tensor must be known before its first element can be cast."""
    return case.recipe in ("fp8_current", "nvfp4")


def _state(dtype, device, source, seed: int, state: str) -> tuple[Tensor, Tensor]:
    buffer = torch.full((8,), float("nan"), device=device)
    typical = LARGEST[dtype] / _TYPICAL
    scale = {"largest_scale": torch.finfo(torch.float32).max, "subnormal_scale": 2.0**-127 * 1.5,
             "ties": 1.0}.get(state, typical)
    if scale == typical and source is not None:
        scale *= 0.7 + 0.7 * torch.rand((), device=device, generator=source)
    buffer[3] = scale
    buffer[5] = float("nan") if state == "nan_amax" else 1000.0 if seed % 4 == 1 else 0.5
    return buffer[3:4], buffer[5:6]


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
