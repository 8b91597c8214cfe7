"""What a pipeline costs the host, as far as that can be counted: frames and calls."""

import sys

import pytest
import torch

import optimized
import reference
from harness.environment import ROOT
from harness.tests import gpu
from harness.tests.emulated import SM_80
from optimized import norm_forward, normalization, products
from optimized.operands import Prepared
from reference import ops

SIZE = 32


def draw(*shape):
    return torch.randn(shape, requires_grad=True)


class Frames:
    """A table whose functions say how many of the project's own frames they were called through."""

    def __init__(self):
        self.seen = {}

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self._called(name, args, kwargs)

    def _called(self, name, args, kwargs):
        frame, own = sys._getframe(2), 0
        while frame:
            path = frame.f_code.co_filename
            own += path.startswith((f"{ROOT}/reference/", f"{ROOT}/optimized/"))
            frame = frame.f_back
        self.seen[name] = own
        return getattr(reference, name)(*args, **kwargs)


def test_frames_between_a_pipeline_and_its_functions():
    """Of a function that needs two or three more to the driver, all in all five or six."""
    frames = Frames()
    made = ops.Sequential(ops.RMSNorm(SIZE), ops.BasicLinear(SIZE, SIZE), ops.ConstantScale(0.5),
                          ops.AddExtraInput(in_place=True), ops.BasicLinear(SIZE, SIZE), kernels=frames)
    made(draw(8, SIZE), torch.randn(8, SIZE)).sum().backward()
    assert frames.seen == {"rmsnorm_fwd": 3, "linear_scale_add_fwd": 3, "linear_fwd": 3,
                           "linear_bwd": 3, "linear_scale_bwd": 3, "rmsnorm_bwd": 2}
    frames.seen.clear()
    made[1:4](draw(8, SIZE), torch.randn(8, SIZE)).sum().backward()
    assert frames.seen == {"linear_scale_add_fwd": 2, "linear_scale_bwd": 1}


class Depths:
    """In the place of each Launch: how many of the project's own frames a launch has above it, its own among them."""

    def __init__(self, seen):
        self._seen = seen

    def __call__(self, *pointers):
        frame, own = sys._getframe(1), 1
        while frame:
            own += frame.f_code.co_filename.startswith((f"{ROOT}/reference/", f"{ROOT}/optimized/"))
            frame = frame.f_back
        self._seen.append(own)


@pytest.fixture
def as_if_on_a_gpu(monkeypatch):
    """Optimized functions take tensors on the CPU and prepare launches for them."""
    for module in (normalization, norm_forward, products):
        monkeypatch.setattr(module, "_prepared", Prepared())
        monkeypatch.setattr(module, "chip", lambda _: SM_80)
        for check in {"takes", "on_gpu"} & vars(module).keys():
            monkeypatch.setattr(module, check, lambda *_, **__: None)


def block(kernels):
    return ops.Sequential(ops.RMSNorm(SIZE), ops.BasicLinear(SIZE, SIZE), ops.ConstantScale(0.5),
                          ops.AddExtraInput(in_place=True), kernels=kernels)


def test_frames_to_a_launch(as_if_on_a_gpu, monkeypatch):
    """Direct two or three, through Sequential five or six, as if there were a GPU."""
    seen = []
    for module in (normalization, norm_forward, products):
        monkeypatch.setattr(module, "Launch", lambda *_: Depths(seen))
    x, residual = draw(8, SIZE), torch.randn(8, SIZE)
    for call in (lambda: optimized.rmsnorm_fwd(x, x[0], 1e-5), lambda: optimized.layernorm_fwd(x, x[0], None, 1e-5),
                 lambda: optimized.rmsnorm_bwd(x, x, torch.ones(8), x[0]), lambda: optimized.linear_fwd(x, x),
                 lambda: optimized.linear_scale_bwd(x @ x.t(), x, x, 0.5)):
        seen.clear()
        call()
        assert seen in ([2], [3])
    made = block(optimized)
    seen.clear()
    made(x, residual).backward(torch.ones(8, SIZE))
    assert len(seen) == 4 and max(seen) <= 6, seen


def test_what_tests_compile_ahead_is_what_a_pipeline_launches(as_if_on_a_gpu):
    """And nothing is kept of launches that came to nothing."""
    made = block(optimized)
    with gpu.not_launched() as requests:
        made(draw(8, SIZE), torch.randn(8, SIZE)).backward(torch.ones(8, SIZE))
    assert [source for source, _ in requests] == ["norm_forward.cu", "gemm_general.cu", "gemm_general.cu",
                                                  "norm_backward.cu"]
    assert not any(module._prepared for module in (normalization, norm_forward, products))
    with pytest.raises(Exception, match="cuda device"):
        made(draw(8, SIZE), torch.randn(8, SIZE))


@pytest.mark.parametrize("before, most", [((), (6, 1)), ((ops.Identity,), (11, 9))], ids=["alone", "behind another"])
def test_calls_that_a_call_costs(before, most):
    """The host's share, in calls of the project's Python functions: time is noise where others compute."""
    table = {"linear_scale_add_fwd": lambda x, weight, residual, scale: residual.add_(1),
             "linear_scale_bwd": lambda dy, x, weight, scale, **options: (dy, weight)}
    made = ops.Sequential(*[each() for each in before], ops.BasicLinear(SIZE, SIZE), ops.ConstantScale(0.5),
                          ops.AddExtraInput(in_place=True),
                          kernels=type("Table", (), {name: staticmethod(each) for name, each in table.items()}))
    x, residual = draw(8, SIZE), torch.randn(2, 8, SIZE)
    made(x, residual[0].clone()).sum().backward()
    counts = []

    def count(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(f"{ROOT}/reference/"):
            counts[-1] += 1

    def counted(call):
        counts.append(0)
        sys.setprofile(count)
        try:
            return call()
        finally:
            sys.setprofile(None)

    with torch.autograd.set_multithreading_enabled(False):
        y = counted(lambda given=residual[1].clone(): made(x, given))
        loss = y.sum()
        counted(loss.backward)
    assert 0 < counts[0] <= most[0] and 0 < counts[1] <= most[1], counts
