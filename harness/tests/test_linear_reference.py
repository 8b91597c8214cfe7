"""The reference of linear layers, their fusions and the pointwise operations, against float64."""

import pytest
import torch

import reference
from harness.tests.linear_calls import BACKWARD, DTYPES, FUNCTIONS, SCALE, assert_near, exact, lay, operands, results
from reference.quantizers import Float8CurrentScalingQuantizer, MXFP8Quantizer, NVFP4Quantizer

SHAPES = ((5, 7, 9), (64, 48, 200), (1, 16, 8), (3, 1, 1), (0, 4, 8), (4, 0, 8), (4, 8, 0))
ROUNDINGS = {"linear_fwd": 1, "linear_scale_add_fwd": 4, "linear_bwd": 1, "linear_scale_bwd": 3}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ("contiguous", "pitched", "transposed"))
def test_products(function, dtype, layout):
    for m, n, k in SHAPES:
        call = operands(function, m, n, k, dtype, layout=layout)
        expected = exact(function, call)
        for one, other in zip(results(reference, function, call), expected, strict=True):
            assert one.dtype == dtype and not one.requires_grad
            assert_near(one, other, roundings=ROUNDINGS[function])


@pytest.mark.parametrize("function", BACKWARD)
def test_it_is_the_gradient_that_autograd_has(function):
    call = operands(function, 5, 7, 9)
    x, w = call["input"].clone().requires_grad_(), call["weight"].clone().requires_grad_()
    y = torch.nn.functional.linear(x, w) * call.get("scale", 1.0)
    expected = torch.autograd.grad(y, (x, w), call["grad_output"])
    for one, other in zip(results(reference, function, call), expected):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("in_place", (True, False))
def test_fused_forward_is_the_composition(dtype, in_place):
    call = operands("linear_scale_add_fwd", 33, 20, 70, dtype)
    x, w, residual, scale = call.values()
    expected = reference.add(reference.constant_scale(reference.linear_fwd(x, w), scale), residual)
    before = residual.clone()
    output = reference.linear_scale_add_fwd(x, w, residual, scale, in_place=in_place)
    assert torch.equal(output, expected) and (output is residual) == in_place
    assert in_place or torch.equal(residual, before)


def test_fused_backward_is_the_composition():
    call = operands("linear_scale_bwd", 33, 20, 70, torch.bfloat16)
    scaled = reference.constant_scale(call["grad_output"], SCALE)
    expected = reference.linear_bwd(scaled, call["input"], call["weight"])
    assert all(map(torch.equal, results(reference, "linear_scale_bwd", call), expected))


@pytest.mark.parametrize("function", BACKWARD)
@pytest.mark.parametrize("kind", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("accumulates", (True, False))
def test_given_grad_weight(function, kind, accumulates):
    call = operands(function, 9, 6, 10, torch.bfloat16)
    buffer = lay((torch.randn(6, 10) if accumulates else torch.full((6, 10), float("nan"))).to(kind), "pitched")
    expected, version = exact(function, call, buffer.clone() if accumulates else None), buffer._version
    _, dw = results(reference, function, call, grad_weight=buffer, accumulate_into_grad_weight=accumulates)
    assert dw is buffer and buffer._version > version
    assert_near(dw, expected[1], torch.bfloat16, roundings=3)


@pytest.mark.parametrize("function", BACKWARD)
def test_gradients_that_are_not_required(function):
    call, buffer = operands(function, 9, 6, 10), torch.full((6, 10), float("nan"))
    dx, dw = results(reference, function, call)
    found, none = results(reference, function, call | {"input": None}, weight_requires_grad=False, grad_weight=buffer)
    assert none is None and torch.equal(found, dx) and buffer.isnan().all()
    none, found = results(reference, function, call | {"weight": None}, input_requires_grad=False)
    assert none is None and torch.equal(found, dw)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("quantizer", (Float8CurrentScalingQuantizer(), MXFP8Quantizer(), NVFP4Quantizer()),
                         ids=("fp8", "mxfp8", "nvfp4"))
def test_quantized_operands_are_those_that_they_stand_for(function, quantizer):
    call = operands(function, 32, 64, 96, torch.bfloat16)
    names = [name for name in ("grad_output", "input", "weight") if name in call]
    tensors = {name: reference.quantize(call[name], quantizer) for name in names}
    twice = [call | tensors, call | {name: tensor.dequantize() for name, tensor in tensors.items()}]
    if "residual" in call:
        twice = [each | {"residual": call["residual"].clone()} for each in twice]
    assert all(map(torch.equal, *(results(reference, function, each) for each in twice)))


@pytest.mark.parametrize("scale", (0.0, -1.0))
def test_no_short_cut_hides_a_nan(scale):
    for value in (float("inf"), float("nan")):
        call = operands("linear_scale_add_fwd", 4, 6, 8) | {"scale": scale}
        call["input"][1, 2] = value
        hidden = reference.linear_scale_add_fwd(**call)[1].isfinite()
        assert not hidden.any() and (scale or call["residual"][1].isnan().all())


def test_scale_is_rounded_to_float32_first():
    x = torch.tensor([3.0])
    assert reference.constant_scale(x, 0.1).item() == (x * torch.tensor(0.1)).item()
    assert reference.constant_scale(x, 1e-46).item() == 0.0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pointwise(dtype):
    x, y = torch.randn(3, 4, 5).to(dtype), torch.randn(3, 4, 5).to(dtype)
    assert torch.equal(reference.constant_scale(x, SCALE), (x.float() * torch.tensor(SCALE)).to(dtype))
    assert torch.equal(reference.add(x, y), x + y)
    expected = x + y
    for out in (torch.empty_like(x), x.clone().mT.contiguous().mT, x):
        version = out._version
        assert reference.add(x, y, out=out) is out and torch.equal(out, expected) and out._version > version


@pytest.mark.parametrize("shape", ((), (0,), (3, 0, 2)))
def test_pointwise_of_few_elements(shape):
    x = torch.ones(shape)
    assert torch.equal(reference.constant_scale(x, 2.0), x + 1) and torch.equal(reference.add(x, x), x + 1)
