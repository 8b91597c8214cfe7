"""Quantizers are values with the defaults of the surface, and refuse what they do not have."""

import dataclasses
import math

import pytest
import torch

import optimized
import reference
from reference.formats import E4M3, E5M2
from reference.quantizers import (
    QUANTIZERS, Float8CurrentScalingQuantizer, Float8Quantizer, MXFP8Quantizer, NVFP4Quantizer
)

one = torch.ones(1)
DEFAULTS = {
    Float8Quantizer: {},
    Float8CurrentScalingQuantizer: {"force_pow_2_scales": False, "amax_epsilon": 0.0},
    MXFP8Quantizer: {},
    NVFP4Quantizer: {"with_2d_quantization": False, "stochastic_rounding": False, "with_rht": False, "seed": 0,
                     "offset": 0},
}
SHARED = {"dtype": E4M3, "rowwise": True, "columnwise": False}


def made(cls, **options):
    return cls(**({"scale": one, "amax": one.clone()} if cls is Float8Quantizer else {}), **options)


@pytest.mark.parametrize("cls", QUANTIZERS)
def test_defaults(cls):
    fields = {name: value for name, value in vars(made(cls)).items() if name not in ("scale", "amax")}
    assert fields == DEFAULTS[cls] | SHARED


@pytest.mark.parametrize("cls", QUANTIZERS)
def test_frozen(cls):
    with pytest.raises(dataclasses.FrozenInstanceError):
        made(cls).rowwise = False
    assert hash(made(cls)) and dataclasses.replace(made(cls), columnwise=True).columnwise


def test_positions():
    """In the order of the surface."""
    assert Float8Quantizer(one, one.clone(), E5M2).dtype == E5M2
    assert Float8CurrentScalingQuantizer(E5M2, True, 0.5) == Float8CurrentScalingQuantizer(
        dtype=E5M2, force_pow_2_scales=True, amax_epsilon=0.5)
    assert MXFP8Quantizer(E5M2).dtype == E5M2
    assert NVFP4Quantizer(False, True, True, 3, 4) == NVFP4Quantizer(
        stochastic_rounding=True, with_rht=True, seed=3, offset=4)


BAD_FIELDS = [
    *((cls, {"dtype": torch.float16}, TypeError, ("dtype", "torch.float16", "float8_e4m3fn")) for cls in QUANTIZERS),
    *((cls, {"dtype": "e4m3"}, TypeError, ("dtype", "str", "torch.dtype")) for cls in QUANTIZERS),
    *((cls, {"rowwise": 1}, TypeError, ("rowwise", "int", "bool")) for cls in QUANTIZERS),
    *((cls, {"columnwise": None}, TypeError, ("columnwise", "NoneType", "bool")) for cls in QUANTIZERS),
    *((cls, {"rowwise": False}, ValueError, ("rowwise", "columnwise", "at least one")) for cls in QUANTIZERS),
    (Float8Quantizer, {"scale": 1.0}, TypeError, ("scale", "float", "torch.Tensor")),
    (Float8Quantizer, {"amax": one.double()}, TypeError, ("amax", "torch.float64", "torch.float32")),
    (Float8Quantizer, {"amax": torch.ones(2)}, ValueError, ("amax", "2 elements", "1")),
    (Float8Quantizer, {"scale": torch.ones(0)}, ValueError, ("scale", "0 elements", "1")),
    (Float8Quantizer, {"amax": one}, ValueError, ("amax", "overlaps scale", "must not")),
    (Float8Quantizer, {"amax": one.to("meta")}, ValueError, ("amax", "meta", "cpu", "device")),
    (Float8CurrentScalingQuantizer, {"force_pow_2_scales": 0}, TypeError, ("force_pow_2_scales", "int", "bool")),
    (Float8CurrentScalingQuantizer, {"amax_epsilon": -1.0}, ValueError, ("amax_epsilon", "-1.0", "at least 0")),
    (Float8CurrentScalingQuantizer, {"amax_epsilon": math.nan}, ValueError, ("amax_epsilon", "nan", "finite")),
    (Float8CurrentScalingQuantizer, {"amax_epsilon": "0"}, TypeError, ("amax_epsilon", "str", "float")),
    (NVFP4Quantizer, {"dtype": E5M2}, TypeError, ("dtype", "torch.float8_e5m2", "torch.float8_e4m3fn")),
    (NVFP4Quantizer, {"with_rht": 1}, TypeError, ("with_rht", "int", "bool")),
    (NVFP4Quantizer, {"stochastic_rounding": None}, TypeError, ("stochastic_rounding", "NoneType", "bool")),
    (NVFP4Quantizer, {"seed": -1}, ValueError, ("seed", "-1", "at least 0")),
    (NVFP4Quantizer, {"seed": 2**64}, ValueError, ("seed", str(2**64), "below")),
    (NVFP4Quantizer, {"seed": 1.0}, TypeError, ("seed", "float", "int")),
    (NVFP4Quantizer, {"offset": 2**63}, ValueError, ("offset", str(2**63), "below")),
    (NVFP4Quantizer, {"with_2d_quantization": True, "with_rht": True}, ValueError, ("with_rht", "with_2d")),
    (NVFP4Quantizer, {"with_2d_quantization": True, "stochastic_rounding": True}, ValueError,
     ("stochastic_rounding", "with_2d")),
]


@pytest.mark.parametrize("cls, fields, error, words", BAD_FIELDS)
def test_refuses_a_field(cls, fields, error, words):
    options = ({"scale": one, "amax": one.clone()} if cls is Float8Quantizer else {}) | fields
    with pytest.raises(error) as caught:
        cls(**options)
    message = str(caught.value)
    assert type(caught.value) is error and message.startswith(f"{cls.__name__}: ") and "\n" not in message
    assert [word for word in words if word not in message] == [], message


class Custom(MXFP8Quantizer):
    """A class of somebody else's."""


full = torch.ones(32, 64)
BAD_CALLS = {
    "no tensor": (full.tolist(), MXFP8Quantizer(), TypeError, ("input", "list", "torch.Tensor")),
    "float64": (full.double(), MXFP8Quantizer(), TypeError, ("input", "float64", "torch.bfloat16")),
    "int": (full.int(), Float8CurrentScalingQuantizer(), TypeError, ("input", "int32", "torch.float32")),
    "fp8": (full.to(E4M3), Float8CurrentScalingQuantizer(), TypeError, ("input", "float8_e4m3fn", "torch.float16")),
    "sparse": (full.to_sparse(), MXFP8Quantizer(), TypeError, ("input", "sparse_coo", "strided")),
    "no quantizer": (full, None, TypeError, ("quantizer", "NoneType", "MXFP8Quantizer", "Float8Quantizer")),
    "class": (full, MXFP8Quantizer, TypeError, ("quantizer", "type", "MXFP8Quantizer")),
    "subclass": (full, Custom(), TypeError, ("quantizer", "Custom", "MXFP8Quantizer")),
    "scalar": (full[0, 0], MXFP8Quantizer(), ValueError, ("input", "0 dimensions", "at least 1")),
    "columns of a vector": (full[0], Float8CurrentScalingQuantizer(columnwise=True), ValueError,
                            ("input", "1 dimension", "columnwise", "at least 2")),
    "elsewhere": (full.to("meta"), made(Float8Quantizer), ValueError, ("quantizer.scale", "cpu", "meta", "device")),
    "mxfp8 cols": (full[:, :40], MXFP8Quantizer(), ValueError, ("(32, 40)", "cols", "40", "32")),
    "mxfp8 rows": (full[:20], MXFP8Quantizer(columnwise=True), ValueError, ("(20, 64)", "rows", "20", "32")),
    "mxfp8 leading": (full.view(4, 8, 64)[:3], MXFP8Quantizer(rowwise=False, columnwise=True), ValueError,
                      ("(3, 8, 64)", "24 rows", "32")),
    "nvfp4 cols": (full[:, :40], NVFP4Quantizer(), ValueError, ("(32, 40)", "cols", "40", "16")),
    "nvfp4 rows": (full[:20], NVFP4Quantizer(columnwise=True), ValueError, ("(20, 64)", "rows", "20", "16")),
    "nvfp4 squares": (full[:20], NVFP4Quantizer(with_2d_quantization=True), ValueError, ("rows", "20", "16")),
    "nvfp4 squares down": (full[:, :40], NVFP4Quantizer(with_2d_quantization=True, rowwise=False, columnwise=True),
                           ValueError, ("cols", "40", "16")),
    "rht of float32": (full, NVFP4Quantizer(with_rht=True), TypeError, ("input", "float32", "torch.bfloat16")),
}


def check_refused(quantize, input, quantizer, error, words):
    before = quantizer.amax.clone() if isinstance(quantizer, Float8Quantizer) else None
    with pytest.raises(error) as caught:
        quantize(input, quantizer)
    message = str(caught.value)
    assert type(caught.value) is error and message.startswith("quantize: ") and "\n" not in message
    assert [word for word in words if word not in message] == [], message
    assert before is None or torch.equal(quantizer.amax, before), "nothing is written"


@pytest.mark.parametrize("input, quantizer, error, words", BAD_CALLS.values(), ids=BAD_CALLS)
def test_refuses_a_call(input, quantizer, error, words):
    check_refused(reference.quantize, input, quantizer, error, words)


@pytest.mark.gpu
@pytest.mark.parametrize("input, quantizer, error, words", BAD_CALLS.values(), ids=BAD_CALLS)
def test_optimized_refuses_a_call(input, quantizer, error, words):
    """Before memory is allocated, and also after a good call has prepared what it needs."""
    def allocates(shape, dtype, device):
        raise AssertionError("memory was allocated before the arguments were refused")

    on_gpu = isinstance(input, torch.Tensor) and not input.is_meta
    given = input.cuda() if on_gpu else input
    with optimized.launch.allocator(allocates):
        check_refused(optimized.quantize, given, quantizer, error, words)
    if type(quantizer) in QUANTIZERS and not isinstance(quantizer, Float8Quantizer):
        optimized.quantize(torch.ones(32, 32, dtype=torch.bfloat16, device="cuda"), quantizer)
        check_refused(optimized.quantize, given, quantizer, error, words)


@pytest.mark.parametrize("package, device", [
    (reference, "cpu"), pytest.param(optimized, "cuda", marks=pytest.mark.gpu),
])
def test_refuses_an_amax_within_the_input(package, device):
    """Also after an amax beside the input, in the same memory, which is fine."""
    buffer = torch.ones(33, 64, device=device)
    scale, (input, beside) = torch.ones(1, device=device), (buffer[:32], buffer[32, :1])
    for _ in range(2):
        package.quantize(input, Float8Quantizer(scale, beside))
        words = ("quantizer.amax", "overlaps input", "must not")
        for within in (buffer[0, :1], buffer[3, 4], buffer[31, 63:]):
            check_refused(package.quantize, input, Float8Quantizer(scale, within), ValueError, words)


@pytest.mark.parametrize("cls", QUANTIZERS)
def test_optimized_refuses_cpu_tensors(cls):
    with pytest.raises(ValueError, match="^quantize: input is on cpu, but .* CUDA"):
        optimized.quantize(full, made(cls))


@pytest.mark.parametrize("shape, quantizer", (
    ((20, 64), MXFP8Quantizer()),
    ((32, 40), MXFP8Quantizer(rowwise=False, columnwise=True)),
    ((20, 64), NVFP4Quantizer()),
    ((16, 3), NVFP4Quantizer(rowwise=False, columnwise=True)),
    ((7, 5), Float8CurrentScalingQuantizer(columnwise=True)),
    ((64,), MXFP8Quantizer()),
))
def test_only_the_dimension_of_the_blocks_counts(shape, quantizer):
    assert reference.quantize(torch.ones(shape), quantizer).shape == shape
