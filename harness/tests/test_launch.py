"""How kernels are launched: typed scalars, the allocation hook, streams, graphs, threads, devices."""

import functools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy
import pytest
import torch

import optimized
import reference
from harness.guards import Guarded, poison
from harness.implementations import IMPLEMENTATIONS
from harness.tests.gpu import DEVICE, FUNCTIONS, assert_right, case_of, made, run, same
from optimized import jit, launch
from optimized.launch import Launch, allocate, allocator
from optimized.plan import H200, Plan

EPS = 1e-5
SLEEP_CYCLES = 50_000_000  # about 30 ms: what runs on another stream in this time finds the old values
CPU = torch.device("cpu")
UNSIZED = (1e-5, 3, True, None, "1", numpy.float64(1), numpy.int16(1), torch.tensor(1.0))
gpu = pytest.mark.gpu


@pytest.mark.parametrize("scalar", UNSIZED, ids=lambda scalar: type(scalar).__name__)
def test_scalar_without_a_size_is_refused(scalar, monkeypatch):
    """A Python float would reach the device as a double, and the kernel would read half of it."""
    monkeypatch.setattr(launch, "chip", lambda device: H200)
    monkeypatch.setattr(launch.jit, "kernel", lambda *_: None)
    with pytest.raises(TypeError) as caught:
        Launch(Plan("a.cu", "a", "a", 1, 32), torch.device("cuda", 0), 1, (numpy.int64(1), scalar))
    words = (type(scalar).__name__, "numpy.int64", "numpy.int32", "numpy.float32", "launch")
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.float32, torch.uint8))
@pytest.mark.parametrize("shape", ((), (0,), (7,), (3, 0, 5), (2, 3, 4)))
def test_allocated_memory_is_contiguous(shape, dtype):
    tensor = allocate(shape, dtype, CPU)
    assert tensor.shape == shape and tensor.dtype == dtype and tensor.device == CPU
    assert tensor.is_contiguous() and tensor.data_ptr() % 16 == 0


def test_hook_replaces_allocation_only_within():
    asked, given = [], torch.zeros(3)

    def instead(*request):
        asked.append(request)
        return given

    with allocator(instead) as nothing:
        assert nothing is None and allocate((3,), torch.float32, CPU) is given
    assert asked == [((3,), torch.float32, CPU)]
    assert allocate((3,), torch.float32, CPU) is not given and len(asked) == 1


def test_a_gpu_too_old_for_the_kernels_is_refused(monkeypatch):
    """By name, before the compiler finds an instruction that it does not have."""
    monkeypatch.setattr(launch, "make_current", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(
        major=7, minor=5, multi_processor_count=40, shared_memory_per_block_optin=65_536))
    with pytest.raises(RuntimeError, match=r"cuda:0 has compute capability 7\.5, but optimized needs 8\.0"):
        launch.chip.__wrapped__(torch.device("cuda", 0))


def test_hook_is_given_back_after_an_exception():
    before = launch._allocate
    with pytest.raises(KeyError), allocator(lambda *_: {}["missing"]):
        allocate((1,), torch.float32, CPU)
    assert launch._allocate is before


def test_nested_hooks():
    outer, inner = torch.zeros(1), torch.zeros(2)
    with allocator(lambda *_: outer):
        with pytest.raises(RuntimeError), allocator(lambda *_: inner):
            assert allocate((1,), torch.float32, CPU) is inner
            raise RuntimeError
        assert allocate((1,), torch.float32, CPU) is outer
        with allocator(launch._allocate):
            assert allocate((1,), torch.float32, CPU) is outer
    assert allocate((1,), torch.float32, CPU).shape == (1,)


@gpu
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_byte_written_comes_from_the_hook(function):
    """Also on the prepared path: the second call."""
    case = case_of(function, (65, 1024))
    call = made(case)
    for _ in range(2):
        guard = Guarded(0xFF)
        with allocator(guard.allocate):
            results = run(case, call)
        assert all(each is None or guard.owns(each) for each in results) and guard.intact()
        assert_right(case, call, results)


def step(x, dz, gamma, beta):
    """Forward and backward of both norms."""
    y, mu, rsigma = optimized.layernorm_fwd(x, gamma, beta, EPS)
    layernorm = optimized.layernorm_bwd(dz, x, mu, rsigma, gamma)
    z, _, scale = optimized.rmsnorm_fwd(y, gamma, EPS)
    return y, mu, rsigma, *layernorm, z, scale, *optimized.rmsnorm_bwd_add(dz, y, x, scale, gamma)


def operands(rows, hidden, seed=0, device=DEVICE):
    source = torch.Generator(device).manual_seed(seed)
    drawn = [torch.randn(rows, hidden, device=device, generator=source).bfloat16() for _ in range(2)]
    return *drawn, *[torch.randn(hidden, device=device, generator=source) for _ in range(2)]


def late(tensors, fresh):
    """Put the values of `fresh` into `tensors`, on the current stream, but not soon."""
    torch.cuda._sleep(SLEEP_CYCLES)
    for tensor, values in zip(tensors, fresh):
        tensor.copy_(values)


@gpu
@pytest.mark.parametrize("hidden", (64, 1000, 4096, 32768))
def test_work_goes_to_the_current_stream(hidden):
    inputs, fresh = operands(300, hidden), operands(300, hidden, seed=1)
    step(*inputs)
    expected = step(*fresh)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late(inputs, fresh)
        results = step(*inputs)
    stream.synchronize()
    assert same(results, expected)
    assert same(step(*inputs), expected), "and to the default stream afterwards"


@gpu
@pytest.mark.parametrize("shape", ((512, 1024), (300, 1000), (2000, 64), (64, 32768), (3, 300_000), (0, 512)))
def test_captured_forward_and_backward_equal_eager(shape):
    inputs = operands(*shape)
    step(*inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(*inputs)
    for seed in (1, 2):
        for tensor, values in zip(inputs, operands(*shape, seed=seed)):
            tensor.copy_(values)
        poison(captured)
        graph.replay()
        assert same(captured, step(*inputs))


def in_fresh_thread(function):
    """Its result, from a thread that has not used CUDA before."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@gpu
@pytest.mark.parametrize("prepared", (True, False))
def test_fresh_thread(prepared):
    inputs = operands(130, 1536 if prepared else 1544)
    if prepared:
        step(*inputs)
    torch.cuda.synchronize()
    results = in_fresh_thread(lambda: step(*inputs))
    torch.cuda.synchronize()
    assert same(results, step(*inputs))


@gpu
def test_thread_of_autograd():
    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, gamma):
            y, _, rsigma = optimized.rmsnorm_fwd(x, gamma, EPS)
            ctx.save_for_backward(x, rsigma, gamma)
            return y

        @staticmethod
        def backward(ctx, dz):
            return optimized.rmsnorm_bwd(dz, *ctx.saved_tensors)

    x, dz, gamma, _ = operands(130, 2048)
    _, _, rsigma = optimized.rmsnorm_fwd(x, gamma, EPS)
    expected = optimized.rmsnorm_bwd(dz, x, rsigma, gamma)
    leaves = [x.requires_grad_(), gamma.requires_grad_()]
    assert same(torch.autograd.grad(Norm.apply(*leaves), leaves, dz), expected)


@gpu
def test_several_threads_on_their_own_streams():
    inputs = [operands(300, 2048, seed=seed) for seed in range(6)]
    expected = [step(*each) for each in inputs]
    torch.cuda.synchronize()
    together = threading.Barrier(len(inputs))

    def work(number):
        stream = torch.cuda.Stream()
        together.wait(60)
        with torch.cuda.stream(stream):
            results = [step(*inputs[number]) for _ in range(20)]
        stream.synchronize()
        return all(same(each, expected[number]) for each in results)

    with ThreadPoolExecutor(len(inputs)) as pool:
        assert all(pool.map(work, range(len(inputs))))


@gpu
@pytest.mark.parametrize("backend", ("eager", "inductor"))
def test_torch_compile(backend):
    if backend == "inductor" and (missing := IMPLEMENTATIONS["compiled"].available()):
        pytest.skip(missing)

    def block(x, gamma, beta):
        y, _, rsigma = optimized.layernorm_fwd(x * 2, gamma, beta, EPS)
        return y.relu() + 1, rsigma

    torch.compiler.reset()
    compiled = torch.compile(block, backend=backend)
    for shape in ((64, 512), (96, 512), (33, 1000), (64, 512)):
        x, _, gamma, beta = operands(*shape, seed=shape[0])
        assert same(compiled(x, gamma, beta), block(x, gamma, beta))


@gpu
@pytest.mark.parametrize("function", FUNCTIONS)
def test_tensors_of_another_device_than_the_current(function):
    """The kernel must run there, behind what that device's stream holds already."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    case = case_of(function, (300, 1024))
    call, fresh = (made(case, seed, device="cuda:1") for seed in (0, 1))
    with torch.cuda.device(0):
        run(case, call)
        with torch.cuda.device(1):
            late(call.tensors(), fresh.tensors())
        results = run(case, call)
        assert torch.cuda.current_device() == 0
    assert all(each is None or each.device == torch.device("cuda", 1) for each in results)
    assert_right(case, fresh, results)
    here = run(case, made(case, 1, device="cuda:0"))
    assert all(each is None or each.device == torch.device("cuda", 0) for each in here)


@gpu
def test_more_than_two_to_the_31_elements():
    """Offsets have 64 bits: the last rows are those of a small call, dgamma is that of stretches."""
    rows, hidden = 70_000, 32_768
    if torch.cuda.mem_get_info()[0] < 32 << 30:
        pytest.skip("needs 32 GiB of free GPU memory")
    x, dz = (torch.empty(rows, hidden, dtype=torch.bfloat16, device=DEVICE).normal_() for _ in range(2))
    gamma = torch.randn(hidden, device=DEVICE)
    picked = torch.tensor([0, 1, 65_535, 65_536, rows - 2, rows - 1], device=DEVICE)
    y, _, rsigma = optimized.rmsnorm_fwd(x, gamma, EPS)
    few = optimized.rmsnorm_fwd(x[picked], gamma, EPS)
    assert same((y[picked], None, rsigma[picked]), few)
    torch.testing.assert_close(few[0], reference.rmsnorm_fwd(x[picked], gamma, EPS)[0])
    del y
    dx, dgamma = optimized.rmsnorm_bwd(dz, x, rsigma, gamma)
    assert same((dx[picked],), optimized.rmsnorm_bwd(dz[picked], x[picked], rsigma[picked], gamma)[:1])
    expected = torch.zeros_like(dgamma)
    for part in torch.arange(rows).split(4096):
        where = slice(int(part[0]), int(part[-1]) + 1)
        expected += reference.rmsnorm_bwd(dz[where], x[where], rsigma[where], gamma)[1]
    torch.testing.assert_close(dgamma, expected, rtol=1e-3, atol=0.1)
    del x, dz, dx
    torch.cuda.empty_cache()


def test_threads_that_need_a_kernel_at_once_share_its_module(monkeypatch):
    """A module is unloaded when nobody holds it, and a launch holds no more than the number of its kernel."""
    class Module:
        @classmethod
        def from_cubin(cls, image):
            time.sleep(0.05)
            return cls()

        def get_kernel(self, symbol):
            return self, symbol

    found = SimpleNamespace(image=b"", symbol="scale")
    monkeypatch.setattr(jit, "ObjectCode", Module)
    monkeypatch.setattr(jit, "build", lambda requests, arch: dict.fromkeys(requests, found))
    monkeypatch.setattr(jit, "_module", functools.cache(jit._module.__wrapped__))
    kernel = functools.cache(jit.kernel.__wrapped__)
    with ThreadPoolExecutor(4) as pool:
        modules = {id(module) for module, _ in list(pool.map(lambda _: kernel("a.cu", "scale", "sm_90a"), range(4)))}
    assert len(modules) == 1
