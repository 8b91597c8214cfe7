"""What a call makes of its operands before it is launched: on the CPU, where nothing is."""

import numpy
import pytest
import torch

import optimized
from harness.tests.gpu import FUNCTIONS, case_of, made
from optimized import norm_forward, normalization
from optimized.operands import Prepared
from optimized.plan import H200

EPS = 1e-5


@pytest.fixture
def launched(monkeypatch):
    """(scalars, pointers) of each launch of a norm, none of which runs: of tensors on the CPU."""
    found = []
    for module in (norm_forward, normalization):
        monkeypatch.setattr(module, "_prepared", Prepared())
        monkeypatch.setattr(module, "takes", lambda *_: None)
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
