"""What the functions of linear layers, and the pointwise ones, must refuse, with which exception and in which words;
both packages alike, before anything is written."""

import math

import pytest
import torch

import optimized
import reference
from harness.tests.emulated import launched  # noqa: F401 - a fixture
from harness.tests.linear_calls import BACKWARD, FUNCTIONS, POINTWISE, operands
from optimized.launch import allocator
from reference.quantizers import MXFP8Quantizer

M, N, K = 4, 6, 8


def good_call(function, device="cpu", dtype=torch.float32):
    """Arguments by name that `function` of both packages accepts."""
    if function in POINTWISE:
        call = {"input": torch.ones(M, N, dtype=dtype, device=device)}
        return call | ({"scale": 0.5} if function == "constant_scale" else
                       {"other": torch.ones_like(call["input"]), "out": torch.ones_like(call["input"])})
    call = operands(function, M, N, K, dtype, device=device)
    if function == "linear_fwd":
        return call | {"out_dtype": None}
    if function == "linear_scale_add_fwd":
        return call | {"in_place": True}
    return call | {"input_requires_grad": True, "weight_requires_grad": True, "accumulate_into_grad_weight": False,
                   "grad_weight": torch.ones(N, K, dtype=dtype, device=device)}


def put(value):
    return lambda _: value


def to(dtype):
    return lambda tensor: tensor.to(dtype)


TENSOR = (
    ("none", put(None), TypeError, ("NoneType", "Tensor")),
    ("list", lambda tensor: tensor.tolist(), TypeError, ("list", "Tensor")),
    ("elsewhere", to("meta"), ValueError, ("meta", "device")),
    ("sparse", lambda tensor: tensor.to_sparse(), TypeError, ("sparse_coo", "strided")),
    *((str(dtype).removeprefix("torch."), to(dtype), TypeError, (str(dtype),))
      for dtype in (torch.float64, torch.float8_e4m3fn, torch.int32, torch.bool, torch.complex64)),
)
MIXED = ("bfloat16", to(torch.bfloat16), TypeError, ("torch.bfloat16", "torch.float32"))
OPERAND = (
    *TENSOR, MIXED,
    ("scalar", lambda tensor: tensor[0, 0], ValueError, ("dimensions",)),
    ("narrow", lambda tensor: tensor[:, :5], ValueError, ("5",)),
)
SCALE = (
    ("nan", put(math.nan), ValueError, ("nan", "finite")),
    ("inf", put(-math.inf), ValueError, ("-inf", "finite")),
    ("beyond-float32", put(1e39), ValueError, ("1e+39", "float32")),
    ("beyond-float64", put(-(10**400)), ValueError, ("000", "float32")),
    ("none", put(None), TypeError, ("NoneType", "float")),
    ("text", put("1"), TypeError, ("str", "float")),
    ("bool", put(True), TypeError, ("bool", "float")),
    ("tensor", put(torch.tensor(1.0)), TypeError, ("Tensor", "float")),
)
FLAG = (("int", put(1), TypeError, ("int", "bool")), ("none", put(None), TypeError, ("NoneType", "bool")))
SHAPED = (
    *TENSOR[1:], MIXED,
    ("fewer-rows", lambda tensor: tensor[:3], ValueError, ("(3, ",)),
    ("other-rank", lambda tensor: tensor[None], ValueError, ("(1, ",)),
    ("broadcast", lambda tensor: tensor[:1], ValueError, ("(1, ",)),
)
WRITTEN = (("expanded", lambda tensor: tensor[:1].expand_as(tensor), ValueError, ("overlaps itself", "strides")),
           ("sliding", lambda tensor: tensor.as_strided(tensor.shape, (1, 1)), ValueError, ("overlaps itself",)))
TABLE = {
    "input": OPERAND,
    "weight": (*OPERAND, ("other-rank", lambda tensor: tensor[None], ValueError, ("(1, 6, 8)", "two dimensions"))),
    "grad_output": OPERAND,
    "residual": (TENSOR[0], *SHAPED, *WRITTEN),
    "grad_weight": (
        *TENSOR[1:], ("float16", to(torch.float16), TypeError, ("torch.float16", "torch.float32")), *WRITTEN,
        ("transposed", lambda tensor: tensor.t(), ValueError, ("(8, 6)", "(6, 8)")),
    ),
    "other": (TENSOR[0], *SHAPED),
    "out": (*SHAPED, *WRITTEN),
    "scale": SCALE,
    "out_dtype": (("text", put("float32"), TypeError, ("str", "dtype")),
                  ("int8", put(torch.int8), TypeError, ("int8", "bfloat16"))),
    "in_place": FLAG, "input_requires_grad": FLAG, "weight_requires_grad": FLAG, "accumulate_into_grad_weight": FLAG,
}
POINTWISE_INPUT = tuple(row for row in OPERAND if row[0] not in ("scalar", "narrow", "bfloat16", "elsewhere"))


def rows():
    for function in (*FUNCTIONS, *POINTWISE):
        for argument in good_call(function):
            table = POINTWISE_INPUT if function in POINTWISE and argument == "input" else TABLE[argument]
            for what, change, exception, words in table:
                yield pytest.param(function, argument, change, exception, words, id=f"{function}-{argument}-{what}")


def check_refused(package, function, call, exception, words):
    before = {name: value.clone() for name, value in call.items() if isinstance(value, torch.Tensor)}
    with pytest.raises(exception) as caught:
        getattr(package, function)(**call)
    message = str(caught.value)
    assert type(caught.value) is exception and "\n" not in message
    assert message.startswith(f"{function}: "), message
    assert [word for word in words if word not in message] == [], message
    for name, value in before.items():
        assert value.is_meta or torch.equal(value.to_dense(), call[name].to_dense()), f"{name} was written"


def changed(function, argument, change, device="cpu"):
    call = good_call(function, device)
    return call | {argument: change(call[argument])}


@pytest.mark.parametrize("function, argument, change, exception, words", list(rows()))
def test_reference_refuses(function, argument, change, exception, words):
    check_refused(reference, function, changed(function, argument, change), exception, (argument, *words))


def nothing(shape, dtype, device):
    raise AssertionError("memory was allocated before the arguments were refused")


@pytest.mark.parametrize("function, argument, change, exception, words", list(rows()))
def test_launchers_refuse_after_a_good_call(function, argument, change, exception, words, launched):
    getattr(optimized, function)(**good_call(function))
    count = len(launched)
    with allocator(nothing):
        check_refused(optimized, function, changed(function, argument, change), exception, (argument, *words))
    assert len(launched) == count


@pytest.mark.gpu
@pytest.mark.parametrize("after", (False, True))
@pytest.mark.parametrize("function, argument, change, exception, words", list(rows()))
def test_optimized_refuses(function, argument, change, exception, words, after):
    if after:
        getattr(optimized, function)(**good_call(function, "cuda"))
    call = changed(function, argument, change, "cuda")
    with allocator(nothing):
        check_refused(optimized, function, call, exception, (argument, *words))


PACKAGES = (reference, optimized)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
class TestOverlaps:
    """Of what is written with what is read: found before anything is written."""

    def test_residual_and_operands(self, package, launched):
        memory = torch.ones(K, K)
        for name, view in (("input", memory), ("weight", memory), ("weight", memory.t())):
            call = {"input": torch.ones(K, K), "weight": torch.ones(K, K), "residual": memory, "scale": 1.0, name: view}
            check_refused(package, "linear_scale_add_fwd", call, ValueError, ("residual", name, "overlaps"))
            package.linear_scale_add_fwd(**call, in_place=False)

    @pytest.mark.parametrize("function", BACKWARD)
    def test_grad_weight_and_operands(self, package, function, launched):
        call = operands(function, K, K, K)
        for name in ("grad_output", "input", "weight"):
            check_refused(package, function, call | {"grad_weight": call[name]}, ValueError, ("grad_weight", name))

    def test_residual_and_the_data_of_a_quantized_operand(self, package, launched):
        quantized = reference.quantize(torch.ones(32, 64, dtype=torch.bfloat16), MXFP8Quantizer())
        residual = quantized.rowwise_data.view(torch.bfloat16)
        weight = torch.ones(32, 64, dtype=torch.bfloat16)
        call = {"input": quantized, "weight": weight, "residual": residual, "scale": 1.0}
        with pytest.raises(ValueError, match="residual.*overlaps input.rowwise_data"):
            getattr(package, "linear_scale_add_fwd")(**call)

    def test_out_and_part_of_an_operand(self, package, launched):
        memory = torch.ones(5, 4)
        for name in ("input", "other"):
            call = {"input": torch.ones(4, 4), "other": torch.ones(4, 4), name: memory[:4], "out": memory[1:]}
            check_refused(package, "add", call, ValueError, ("out", name, "overlaps"))
        square = torch.ones(4, 4)
        call = {"input": square.t(), "other": torch.ones(4, 4), "out": square}
        check_refused(package, "add", call, ValueError, ("out",))

    def test_columns_that_lie_between_one_another_do_not_overlap(self, package, launched):
        memory = torch.ones(4, 16)
        weight = torch.eye(8)
        package.linear_scale_add_fwd(memory[:, :8], weight, memory[:, 8:], 1.0)
        assert torch.equal(memory[:, 8:], torch.full((4, 8), 2.0)) and (memory[:, :8] == 1).all()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
@pytest.mark.parametrize("function", BACKWARD)
def test_what_belongs_together(package, function, launched):
    call = good_call(function)
    without = {"grad_weight": None, "accumulate_into_grad_weight": True}
    check_refused(package, function, call | without, ValueError, ("grad_weight is None",))
    check_refused(package, function, call | {"input": None}, TypeError, ("input", "NoneType"))
    check_refused(package, function, call | {"weight": None}, TypeError, ("weight", "NoneType"))
    check_refused(package, function, call | {"input": call["input"][:3]}, ValueError, ("input", "(3, 8)", "(4, "))
    narrow = {"input": None, "weight_requires_grad": False, "grad_output": call["grad_output"][:, :5]}
    check_refused(package, function, call | narrow, ValueError, ("grad_output", "5", "6"))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_a_damaged_quantized_operand_is_named(package, launched):
    quantized = reference.quantize(torch.ones(32, 64, dtype=torch.bfloat16), MXFP8Quantizer())
    object.__setattr__(quantized, "rowwise_scale_inv", quantized.rowwise_scale_inv[:64])
    with pytest.raises(ValueError, match="linear_fwd: weight: tensor.rowwise_scale_inv has shape"):
        package.linear_fwd(torch.ones(4, 64, dtype=torch.bfloat16), quantized)


@pytest.mark.parametrize("function", (*FUNCTIONS, *POINTWISE))
def test_optimized_refuses_cpu_tensors(function):
    with pytest.raises(ValueError) as caught:
        getattr(optimized, function)(**good_call(function))
    message = str(caught.value)
    assert message.startswith(f"{function}: ") and "cpu" in message and "CUDA" in message


@pytest.mark.parametrize("package", (reference, pytest.param(optimized, marks=pytest.mark.gpu)))
@pytest.mark.parametrize("function", (*FUNCTIONS, *POINTWISE))
def test_the_good_call_is_good(package, function):
    output = getattr(package, function)(**good_call(function, "cpu" if package is reference else "cuda"))
    assert all(each.isfinite().all() for each in (output if isinstance(output, tuple) else (output,)))
