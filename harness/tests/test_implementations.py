"""Each implementation says whether it is there, and runs the case's function on the case's call."""

import shutil

import pytest
import torch

import reference
from harness import implementations, parity
from harness.cases import NORMS, Case, family_of
from harness.implementations import IMPLEMENTATIONS
from harness.options import parse_case

CASE = Case("rmsnorm_fwd", (32, 100))
GPU = torch.cuda.is_available()


def call_of(case):
    return family_of(case.function).make(case, "cpu", 0)


def test_names_and_which_are_checked():
    assert list(IMPLEMENTATIONS) == ["reference", "compiled", "optimized", "cublas", "unfused", "eager", "copy"]
    assert [name for name, each in IMPLEMENTATIONS.items() if not each.checked] == ["copy"]
    assert IMPLEMENTATIONS["reference"].available() is None and IMPLEMENTATIONS["copy"].available() is None


@pytest.mark.parametrize("function", NORMS)
def test_reference_is_the_function_of_the_case(function):
    case = Case(function, (4, 16), options=(("zero_centered_gamma", True),))
    call = call_of(case)
    found = IMPLEMENTATIONS["reference"].prepare(case, call)(call)
    wanted = getattr(reference, function)(*call.args, **call.kwargs)
    for one, other in zip(found, wanted, strict=True):
        assert one is other is None or torch.equal(one, other)


@pytest.mark.skipif(GPU, reason="a GPU was found")
def test_optimized_says_what_it_lacks():
    assert IMPLEMENTATIONS["optimized"].available() == "no CUDA GPU was found"


@pytest.mark.skipif(GPU, reason="on a GPU it is Triton that counts")
def test_compiled_says_that_a_compiler_is_missing(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "needs a compiler; not found: " in IMPLEMENTATIONS["compiled"].available()


def test_compiled_gives_the_results_of_the_reference():
    reason = IMPLEMENTATIONS["compiled"].available()
    if reason:
        pytest.skip(reason)
    call = call_of(CASE)
    found = IMPLEMENTATIONS["compiled"].prepare(CASE, call)(call)
    for one, other in zip(found, reference.rmsnorm_fwd(*call.args), strict=True):
        assert one is other is None or torch.allclose(one.float(), other.float(), rtol=1e-2)


def test_compiled_rounds_where_the_reference_does():
    reason = IMPLEMENTATIONS["compiled"].available()
    if reason:
        pytest.skip(reason)
    case = parse_case("quantize 256x1024 bf16 nvfp4 orientation=columnwise with_rht=True")
    run = IMPLEMENTATIONS["compiled"].prepare(case, call_of(case))
    found = parity.check(case, run, "cpu", adversarial=False, twin=False)
    assert found.ok, found.reason


@pytest.mark.parametrize("function", NORMS)
def test_copy_moves_the_bytes_of_the_case(function, monkeypatch):
    copied = []
    monkeypatch.setattr(implementations, "_torch_copy", lambda *pair: copied.append(pair) or pair[1].copy_(pair[0]))
    case = Case(function, (33, 100))
    target, = IMPLEMENTATIONS["copy"].prepare(case, call_of(case))(call_of(case))
    assert 0 <= 2 * target.nbytes - family_of(function).work(case).bytes < 2 * implementations.ALIGNMENT
    assert copied[0][1].data_ptr() == target.data_ptr() and torch.equal(copied[0][0], target)


def test_copies_rotate_through_more_than_a_cache(monkeypatch):
    monkeypatch.setattr(implementations, "_pairs", lambda size, device: 3)
    run = IMPLEMENTATIONS["copy"].prepare(CASE, call_of(CASE))
    addresses = [run(call_of(CASE))[0].data_ptr() for _ in range(6)]
    assert len(set(addresses[:3])) == 3 and addresses[:3] == addresses[3:]
