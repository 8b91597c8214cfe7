"""What a case is: the values that name it, the call that it stands for, and the work that the call does."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
"""Short dtype name, as it stands in cases, filters and rows -> dtype."""

FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
"""Short name of an FP8 format -> dtype."""

RECIPES = ("none", "fp8_delayed", "fp8_current", "mxfp8", "nvfp4")
"""How a case quantizes: not at all; FP8 with delayed or with current scaling; MXFP8; NVFP4."""

ORIENTATIONS = ("rowwise", "columnwise", "both")

IN_TWO = "_in_two"
PATHS = ("unfused", "fully_fused", *(path + launches for path in ("fused_norm_amax_fp8", "fused_norm_amax_nvfp4")
                                     for launches in ("", IN_TWO)))
"""How a norm's output is quantized: optimized.normalization.Path by value; or with amax and cast in two launches."""

LAYOUTS = ("contiguous", "strided", "offset", "expanded", "transposed")
"""strided: a column slice of a wider tensor. offset: a data pointer aligned to the element only. expanded:
the leading dimension has stride 0. transposed: the last two dimensions swapped in memory."""


def known(kind: str, name: str, names) -> str:
    """`name` if it is among `names`; else a ValueError that says what `kind` of name it is and lists those
    known."""
    if name not in tuple(names):
        raise ValueError(f"unknown {kind} {name!r}; known: {', '.join(names)}")
    return name


def _is_count(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_eps(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


_NAMED = {
    "gamma_dtype": ("dtype of gamma_dtype", DTYPES), "dz_dtype": ("dtype of dz_dtype", DTYPES),
    "layout": ("layout", LAYOUTS), "format": ("format", FORMATS), "orientation": ("orientation", ORIENTATIONS),
    "out_dtype": ("dtype of out_dtype", DTYPES), "main_grad": ("dtype of main_grad", DTYPES),
    "gradients": ("gradients", ("input", "weight")),
    "path": ("path", PATHS),
}
_FLAG = ("True or False", lambda value: isinstance(value, bool))
_VALUED = {
    "zero_centered_gamma": _FLAG, "bias": _FLAG, "eps": ("finite and at least 0", _is_eps),
    "sm_margin": ("a whole number from 0", _is_count), "force_pow_2_scales": _FLAG,
    "with_2d_quantization": _FLAG, "stochastic_rounding": _FLAG, "with_rht": _FLAG, "in_place": _FLAG,
}
"""Option -> what it may be, in words and as a test."""


def _check_option(key: str, value) -> None:
    if known("option", key, (*_NAMED, *_VALUED)) in _NAMED:
        known(_NAMED[key][0], value, _NAMED[key][1])
    elif not _VALUED[key][1](value):
        raise ValueError(f"option {key} is {value!r}, but must be {_VALUED[key][0]}")


@dataclass(frozen=True)
class Case:
    """One function at one shape, dtype, recipe and set of options.

    `shape` is that of the input, `(..., H)`, of a matrix product (M, N, K). `options` are pairs, kept sorted, so that
    equal cases compare equal: `gamma_dtype`, `dz_dtype` (dtype names; default: `dtype`), `zero_centered_gamma` (bool),
    `layout` (see LAYOUTS), `bias` (False: none), `eps`, `sm_margin`; of a quantizer `orientation` (see ORIENTATIONS;
    default: rowwise), `format` (see FORMATS; default: e4m3), `force_pow_2_scales`, `with_2d_quantization`,
    `stochastic_rounding`, `with_rht` (bool); of a norm with a quantizer `path` (see PATHS; default: what it chooses);
    of a product those of harness.cases.linear.
    """

    function: str
    shape: tuple[int, ...]
    dtype: str = "bf16"
    recipe: str = "none"
    options: tuple[tuple[str, Any], ...] = field(default=())

    def __post_init__(self):
        known("dtype", self.dtype, DTYPES)
        known("recipe", self.recipe, RECIPES)
        for key, value in self.options:
            _check_option(key, value)
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "options", tuple(sorted(self.options)))

    @property
    def rows(self) -> int:
        """How many rows of length `hidden` the input has: the product of the leading dimensions."""
        return math.prod(self.shape[:-1])

    @property
    def hidden(self) -> int:
        """H, the length of a row."""
        return self.shape[-1]

    @property
    def shape_text(self) -> str:
        """The shape as rows show it: "4096x8192"."""
        return "x".join(map(str, self.shape))

    @property
    def name(self) -> str:
        """What a person reads and `-k` searches: "rmsnorm_fwd 4096x8192 bf16 gamma_dtype=fp32"."""
        recipe = [] if self.recipe == "none" else [self.recipe]
        options = [f"{key}={value}" for key, value in self.options]
        return " ".join([self.function, self.shape_text, self.dtype, *recipe, *options])

    def option(self, key: str, default: Any = None) -> Any:
        """The value of one option, or `default` where the case does not set it."""
        return dict(self.options).get(key, default)


@dataclass(frozen=True)
class Call:
    """The arguments that both twins of a function are called with."""

    args: tuple
    kwargs: dict[str, Any]

    def tensors(self) -> list[Tensor]:
        """Every input tensor, in order of the arguments: also those in the fields of a quantizer or a quantized
        tensor."""
        return list(tensors_in((self.args, self.kwargs)))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of a tuple, list or dict, and of the fields of dataclasses, however deep, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from tensors_in(getattr(value, each.name))


@dataclass(frozen=True)
class Work:
    """The least traffic and arithmetic of a call: each input read once, each output written once. `operands` is the
    dtype that its matrix products multiply: "bf16", "fp16", "fp8"."""

    read_bytes: int
    written_bytes: int
    flops: int
    operands: str = "bf16"

    @property
    def bytes(self) -> int:
        """Bytes read and written together."""
        return self.read_bytes + self.written_bytes


class Expected(NamedTuple):
    """A stretch of one output as the oracle has it.

    `where` indexes the output after it is viewed as `value` is shaped: a slice of its rows, or of all of it. `value` is
    float64; of a quantized output it is what was quantized. `unit` broadcasts against it: the magnitude that errors are
    relative to. `slack`, where it is not None, is how far what was quantized may have been from `value`: it was
    computed and rounded first.
    """

    name: str
    where: slice
    value: Tensor
    unit: Tensor
    slack: Tensor | None = None


@dataclass(frozen=True)
class Allowance:
    """How far quantized outputs may be from the reference's.

    `codes`, `scales`: the share of codes, and of block scales, that may be another, by one step. `amax`: whether the
    scale or amax of a tensor may be off by one ulp of the activation dtype. With nothing allowed, outputs that are
    not quantized have the reference's values, too, NaN for NaN.
    """

    codes: float = 0.0
    scales: float = 0.0
    amax: bool = False


EXACT = Allowance()
"""Of a direct cast: every byte is the reference's."""

FUSED = Allowance(1e-3, 1e-3, True)
"""Of a cast of what was just computed in float32, perhaps in another order than the reference's."""


class Common:
    """What holds of a family that says nothing else."""

    accumulates = False
    """Whether inputs that are updated in place depend on how often."""

    closer = False
    """Whether 16-bit outputs must be at least as near to the oracle as the reference's: they are rounded less often."""

    def loosely(self, call: Call) -> float:
        """What a reference may be off by, in units, beyond what float32 arithmetic with one rounding is."""
        return 0.0


class Family(Protocol):
    """What the harness knows of one function, beside what is Common; `harness.cases.FAMILIES[function]` is the
    instance."""

    outputs: tuple[str | None, ...]
    """Names of the function's results in order; None where the function always returns None."""

    recipes: tuple[str, ...]
    """The recipes that the function takes."""

    allowance: Allowance | None
    """What outputs may differ by from the reference's; None where only the oracle counts."""

    def check(self, case: Case) -> None:
        """ValueError where the function does not take the case's recipe, options or shape."""

    def in_place(self, call: Call) -> dict[str, Tensor]:
        """The inputs that the function updates, by the name that they have as outputs; a result that is one of them has
        its name."""

    def make(self, case: Case, device, seed: int, values: str = "normal") -> Call:
        """Inputs of the case from a seed; `values` is "normal" or one of `adversarial(case)`."""

    def adversarial(self, case: Case) -> tuple[str, ...]:
        """The kinds of adversarial values that suit the case."""

    def expected(self, call: Call) -> Iterator[Expected]:
        """The oracle's outputs in stretches small enough that their float64 temporaries fit in memory. One that
        accumulates takes `times`, 1 by default: how often it was called."""

    def oracle(self, call: Call) -> dict[str, Tensor]:
        """The oracle's outputs whole: float64, keyed by name, computed from the very values received."""

    def work(self, case: Case) -> Work:
        """Bytes and flops of the case from a formula; allocates nothing."""

    def arithmetic(self, call: Call) -> int:
        """Flops of a call by the formula, at the sizes of the tensors that really go in."""
