"""Bad calls: what each norm must refuse, with which exception, and words that its message must hold."""

import inspect
import math
from dataclasses import dataclass
from typing import Any, Callable

import torch

import reference
from harness.tests.norms import BACKWARD, FORWARD

ROWS, HIDDEN = 3, 8
FUNCTIONS = FORWARD + BACKWARD


def good_call(function, device="cpu"):
    """Arguments by name, in the order of the signature, that `function` of both packages accepts."""
    full, row, vector = (torch.ones(shape, device=device) for shape in ((ROWS, HIDDEN), (ROWS,), (HIDDEN,)))
    values = {
        "input": full, "x": full, "dz": full, "add": full, "mu": row, "rsigma": row, "weight": vector,
        "gamma": vector, "bias": vector, "eps": 1e-5, "quantizer": None, "sm_margin": 0,
        "zero_centered_gamma": False,
    }
    return {name: values[name] for name in inspect.signature(getattr(reference, function)).parameters}


@dataclass(frozen=True)
class BadCall:
    """A good call of `function` in which `change` has replaced the value of `argument`."""

    function: str
    argument: str
    what: str
    change: Callable[[Any], Any]
    exception: type[Exception]
    words: tuple[str, ...]

    @property
    def name(self):
        return f"{self.function}-{self.argument}-{self.what}"

    def arguments(self, device="cpu"):
        call = good_call(self.function, device)
        call[self.argument] = self.change(call[self.argument])
        return call


def _to(dtype):
    return lambda tensor: tensor.to(dtype)


def _put(value):
    return lambda _: value


_TENSOR = (
    ("none", _put(None), TypeError, ("NoneType", "Tensor")),
    ("list", lambda tensor: tensor.tolist(), TypeError, ("list", "Tensor")),
    ("elsewhere", _to("meta"), ValueError, ("meta", "device")),
    ("sparse", lambda tensor: tensor.to_sparse(), TypeError, ("sparse_coo", "strided")),
)
_UNSUPPORTED = tuple(
    (str(dtype).removeprefix("torch."), _to(dtype), TypeError, (str(dtype), "float32"))
    for dtype in (torch.float64, torch.float8_e4m3fn, torch.int32, torch.bool, torch.complex64)
)
_FLOAT = (*_TENSOR, *_UNSUPPORTED)
_ROWS = (
    *_FLOAT,
    ("scalar", lambda tensor: tensor[0, 0], ValueError, ("no dimensions",)),
    ("no-columns", lambda tensor: tensor[:, :0], ValueError, ("rows of 0",)),
)
_LIKE_X = (
    *_FLOAT,
    ("fewer-rows", lambda tensor: tensor[:2], ValueError, ("(2, 8)", "(3, 8)")),
    ("fewer-columns", lambda tensor: tensor[:, :5], ValueError, ("(3, 5)", "(3, 8)")),
    ("other-rank", lambda tensor: tensor[None], ValueError, ("(1, 3, 8)", "(3, 8)")),
)
_VECTOR = (
    *_FLOAT,
    ("short", lambda tensor: tensor[:5], ValueError, ("5", "8")),
    ("long", lambda tensor: tensor.repeat(2), ValueError, ("16", "8")),
    ("scalar", lambda tensor: tensor[0], ValueError, ("1", "8")),
    ("empty", lambda tensor: tensor[:0], ValueError, ("0", "8")),
)
_STATISTIC = (
    *_FLOAT,
    ("bfloat16", _to(torch.bfloat16), TypeError, ("torch.bfloat16", "float32")),
    ("short", lambda tensor: tensor[:2], ValueError, ("2", "3")),
    ("long", lambda tensor: tensor.repeat(2), ValueError, ("6", "3")),
)
_TABLE = {
    "input": _ROWS,
    "x": _ROWS,
    "dz": _LIKE_X,
    "add": _LIKE_X,
    "weight": _VECTOR,
    "gamma": _VECTOR,
    "bias": tuple(row for row in _VECTOR if row[0] != "none"),
    "mu": _STATISTIC,
    "rsigma": _STATISTIC,
    "eps": (
        ("negative", _put(-1e-5), ValueError, ("-1e-05", "at least 0")),
        ("nan", _put(math.nan), ValueError, ("nan", "finite")),
        ("inf", _put(math.inf), ValueError, ("inf", "finite")),
        ("beyond-float32", _put(1e39), ValueError, ("1e+39", "float32")),
        ("beyond-float64", _put(10**400), ValueError, ("000", "float32")),
        ("none", _put(None), TypeError, ("NoneType", "float")),
        ("text", _put("1e-5"), TypeError, ("str", "float")),
        ("bool", _put(True), TypeError, ("bool", "float")),
        ("tensor", lambda value: torch.tensor(value), TypeError, ("Tensor", "float")),
    ),
    "quantizer": (
        ("text", _put("fp8"), TypeError, ("str", "None")),
        ("object", _put(object()), TypeError, ("object", "None")),
    ),
    "sm_margin": (
        ("negative", _put(-1), ValueError, ("-1", "at least 0")),
        ("float", _put(1.0), TypeError, ("float", "int")),
        ("bool", _put(True), TypeError, ("bool", "int")),
        ("none", _put(None), TypeError, ("NoneType", "int")),
    ),
    "zero_centered_gamma": (
        ("int", _put(1), TypeError, ("int", "bool")),
        ("none", _put(None), TypeError, ("NoneType", "bool")),
        ("text", _put("yes"), TypeError, ("str", "bool")),
    ),
}

BAD_CALLS = [
    BadCall(function, argument, what, change, exception, (f"{function}: ", argument, *words))
    for function in FUNCTIONS
    for argument in good_call(function)
    for what, change, exception, words in _TABLE[argument]
]
