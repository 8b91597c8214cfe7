"""A wrong argument gives one exception that says what is wrong, before anything is written."""

import pytest
import torch

import optimized
import reference
from harness.tests.bad_calls import BAD_CALLS, FUNCTIONS, good_call


def check_refused(package, bad, device):
    arguments = bad.arguments(device)
    before = {name: value.clone() for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    with pytest.raises(bad.exception) as caught:
        getattr(package, bad.function)(**arguments)
    assert type(caught.value) is bad.exception
    message = str(caught.value)
    assert [word for word in bad.words if word not in message] == [], message
    assert "\n" not in message
    for name, value in before.items():
        assert value.is_meta or torch.equal(value.to_dense(), arguments[name].to_dense()), f"{name} was written"


@pytest.mark.parametrize("bad", BAD_CALLS, ids=lambda bad: bad.name)
def test_reference_refuses(bad):
    check_refused(reference, bad, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("bad", BAD_CALLS, ids=lambda bad: bad.name)
def test_optimized_refuses(bad):
    def allocates(shape, dtype, device):
        raise AssertionError("memory was allocated before the arguments were refused")

    with optimized.launch.allocator(allocates):
        check_refused(optimized, bad, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("bad", BAD_CALLS, ids=lambda bad: bad.name)
def test_optimized_refuses_after_a_good_call(bad):
    """What a good call has prepared must not let a bad one through."""
    getattr(optimized, bad.function)(**good_call(bad.function, "cuda"))
    check_refused(optimized, bad, "cuda")


@pytest.mark.parametrize("package", (reference, pytest.param(optimized, marks=pytest.mark.gpu)))
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_good_call_is_good(package, function):
    device = "cpu" if package is reference else "cuda"
    output, *_ = getattr(package, function)(**good_call(function, device))
    assert output.isfinite().all()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_optimized_refuses_cpu_tensors(function):
    with pytest.raises(ValueError) as caught:
        getattr(optimized, function)(**good_call(function))
    message = str(caught.value)
    assert message.startswith(f"{function}: ")
    assert "cpu" in message and "CUDA" in message
