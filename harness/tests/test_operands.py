"""What a call makes of its operands before it is launched: on the CPU, where nothing is."""

import inspect
from dataclasses import replace

import numpy
import pytest
import torch

import optimized
import reference
from harness.tests.gpu import FUNCTIONS, case_of, made
from harness.tests.test_linear_launch import Wrapped
from optimized import norm_forward, norm_operands, normalization, pointwise, products, quantization
from optimized.norm_quantize_plan import Path
from optimized.normalization import forced_path, plan_of
from optimized.operands import Prepared, regular
from optimized.plan import H200
from reference.quantizers import MXFP8Quantizer

EPS = 1e-5


@pytest.fixture
def launched(monkeypatch):
    """(scalars, pointers) of each launch of a norm, none of which runs: of tensors on the CPU."""
    found = []
    monkeypatch.setattr(norm_operands, "on_gpu", lambda *_: None)
    for module in (norm_forward, normalization):
        monkeypatch.setattr(module, "_prepared", Prepared())
        monkeypatch.setattr(module, "chip", lambda _: H200)
        monkeypatch.setattr(module, "Launch", lambda plan, device, count, scalars: (
            lambda *pointers: found.append((scalars, pointers))))
    return found


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("layout", ("contiguous", "strided", "offset", "expanded", "transposed"))
def test_only_what_rows_of_one_pitch_cannot_describe_is_copied_first(function, layout, launched):
    call = made(case_of(function, (6, 40), layout=layout), device="cpu")
    x = call.args[0 if function.endswith("_fwd") else 1]
    for times in (1, 2):
        getattr(optimized, function)(*call.args, **call.kwargs)
        assert len(launched) == times
        scalars, (given, *_) = launched[-1]
        assert (given == x.data_ptr()) == (layout != "transposed")
        assert scalars[1] == {"strided": x.stride(0), "expanded": 0}.get(layout, 40)
    assert len(norm_forward._prepared) + len(normalization._prepared) == 1


@pytest.mark.parametrize("path", (None, Path.UNFUSED))
@pytest.mark.parametrize("quantizer", (None, MXFP8Quantizer()))
def test_the_plan_is_that_of_the_call(quantizer, path, launched, monkeypatch):
    """Also where a weight is moved to 16 bytes, as each is that a quantizer follows."""
    plans, x, weight = [], torch.zeros(2, 4096), torch.zeros(4097)[1:]
    monkeypatch.setattr(norm_forward, "quantize", lambda *_: None)
    monkeypatch.setattr(norm_forward, "Launch", lambda plan, *_: plans.append(plan) or (lambda *_: None))
    with forced_path(path if quantizer else None):
        optimized.rmsnorm_fwd(x, weight, EPS, quantizer)
        assert plans == [plan_of("rmsnorm_fwd", x, weight, EPS, quantizer, chip=H200)]


def imaginary(values, negates):
    """The same values as an imaginary part, or as that of a conjugate: a view that negates what is in memory."""
    whole = torch.complex(torch.zeros_like(values), -values if negates else values)
    view = (whole.conj() if negates else whole).imag
    assert view.is_neg() == negates and torch.equal(view, values)
    return view


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_view_that_negates_is_copied_first(function, launched):
    """Also where a call was prepared that is like it but for that."""
    call = made(case_of(function, (6, 1), "fp32"), device="cpu")
    for i, value in enumerate(call.args):
        if isinstance(value, torch.Tensor):
            for negates in (False, True):
                view = imaginary(value, negates)
                getattr(optimized, function)(*call.args[:i], view, *call.args[i + 1:], **call.kwargs)
            assert view.data_ptr() not in launched[-1][1]
            assert torch.equal(regular(view), value) and not regular(view).is_neg()


@pytest.mark.parametrize("function, operands", [
    ("linear_fwd", ((6, 1), (4, 1))), ("linear_bwd", ((6, 1), (6, 1), (1, 1))), ("add", ((6, 1), (6, 1))),
    ("add", ((), ())), ("constant_scale", ((6, 1),)),
])
def test_products_and_pointwise_functions_copy_it_too(function, operands, monkeypatch):
    found, given = [], [torch.rand(shape) for shape in operands]
    for module in (products, pointwise):
        monkeypatch.setattr(module, "_prepared", Prepared())
        monkeypatch.setattr(module, "chip", lambda _: H200)
        monkeypatch.setattr(module, "on_gpu", lambda *_: None)
        monkeypatch.setattr(module, "Launch", lambda *_: lambda *pointers: found.append(pointers))
    for i, value in enumerate(given):
        for negates in (False, True):
            view = imaginary(value, negates)
            getattr(optimized, function)(*given[:i], view, *given[i + 1:], *([2.0] * (function == "constant_scale")))
            assert (view.data_ptr() in found[-1]) != negates


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_tensor_without_memory_is_refused_by_name(function, launched):
    """Also where a call like it was prepared; its address, 0, is a multiple of everything."""
    call = made(case_of(function, (6, 40)), device="cpu")
    names = list(inspect.signature(getattr(optimized, function)).parameters)
    getattr(optimized, function)(*call.args, **call.kwargs)
    for i, value in enumerate(call.args):
        if isinstance(value, torch.Tensor):
            with pytest.raises(TypeError, match=f"{function}: {names[i]} is a Wrapped without memory"):
                getattr(optimized, function)(*call.args[:i], Wrapped(value), *call.args[i + 1:], **call.kwargs)
    assert len(launched) == 1


def test_quantization_refuses_it_too(monkeypatch):
    monkeypatch.setattr(quantization, "on_gpu", lambda *_: None)
    x = torch.ones(32, 64)
    with pytest.raises(TypeError, match="quantize: input is a Wrapped without memory"):
        optimized.quantize(Wrapped(x), MXFP8Quantizer())
    given = reference.quantize(x, MXFP8Quantizer())
    without = replace(given, rowwise_scale_inv=Wrapped(given.rowwise_scale_inv))
    with pytest.raises(TypeError, match="dequantize: rowwise_scale_inv is a Wrapped without memory"):
        optimized.dequantize(without, torch.float32)


@pytest.mark.filterwarnings("error")
def test_torch_compile_does_not_trace_into_a_call(launched):
    """Traced, numpy's scalars would become arrays, and a prepared launch many small graphs."""
    def block(x, gamma):
        y, _, rsigma = optimized.rmsnorm_fwd(x * 2, gamma, EPS)
        dx, _ = optimized.rmsnorm_bwd(y, x, rsigma, gamma)
        return dx.relu() + 1

    torch.compiler.reset()
    compiled = torch.compile(block, backend="eager")
    for shape in ((64, 512), (96, 512), (64, 512)):
        assert compiled(torch.ones(shape), torch.ones(512)).shape == shape
    kinds = {numpy.int64, numpy.int32, numpy.float32}
    assert len(launched) == 6 and all(kinds >= set(map(type, scalars)) for scalars, _ in launched)


def test_what_is_prepared_starts_anew_when_there_is_much(monkeypatch):
    monkeypatch.setattr("optimized.operands.MAX_PREPARED", 3)
    kept = Prepared()
    assert [kept.keep(number, str(number)) for number in range(4)] == ["0", "1", "2", "3"]
    assert kept == {3: "3"}
