"""Linear layers, their fusions and the pointwise operations on a GPU: right for every shape, dtype, layout and option
on every path, and the same in every run."""

from dataclasses import replace

import pytest
import torch

import optimized
import reference
from harness import linear_sweeps, parity
from harness.cases import PRODUCTS, Case
from harness.tests.emulated import SM_80
from harness.tests.gpu import compile_ahead, made
from harness.tests.linear_calls import (
    BACKWARD, DTYPES, FUNCTIONS, LAYOUTS, assert_fills, assert_near, exact, lay, operands, results
)
from optimized import products
from optimized.launch import allocator
from optimized.operands import Prepared
from reference.quantizers import Float8CurrentScalingQuantizer, MXFP8Quantizer

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
SIZES = ((1, 1, 1), (1, 4096, 512), (16, 512, 4096), (100, 3000, 72), (127, 129, 33), (128, 128, 64), (129, 257, 65),
         (300, 64, 1000), (257, 512, 4104), (64, 2048, 24), (1000, 1000, 1000), (3000, 40, 136))
SHARED = ((16, 4096, 512), (100, 520, 1000), (130, 2056, 2048))  # whose tiles, in exact float32, are a cluster's
MANY = list(dict.fromkeys([
    *linear_sweeps.edge(),
    *(Case(function, shape, list(DTYPE_NAMES)[(i + j) % 3]) for DTYPE_NAMES in [("bf16", "fp16", "fp32")]
      for i, shape in enumerate(SIZES) for j, function in enumerate(FUNCTIONS)),
    *(Case("linear_scale_bwd", shape, "bf16", options=(("main_grad", "fp32"),)) for shape in SIZES),
    *(Case(function, shape, "fp32") for shape in SHARED for function in FUNCTIONS),
]))


@pytest.fixture(scope="module", autouse=True)
def compiled_ahead():
    if torch.cuda.is_available():
        compile_ahead([case for case in MANY if case.function in PRODUCTS])


@pytest.fixture(params=("chosen", "general"))
def path(request, monkeypatch):
    """The path that the plan chooses, and the general one wherever it could choose another."""
    if request.param == "general":
        monkeypatch.setattr(products, "_prepared", Prepared())
        for other in (products.few_plan, products.gemm_plan, products.skinny_plan):
            monkeypatch.setattr(other, "takes", lambda *_: False)
    return request.param


def run(case, call):
    found = getattr(optimized, case.function)(*call.args, **call.kwargs)
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("number", range(len(MANY)), ids=lambda number: MANY[number].name)
def test_parity(number, path):
    """With poisoned outputs, guard bands and two runs; every fifth case with adversarial values too."""
    case = MANY[number]
    verdict = parity.check(case, lambda call: run(case, call), DEVICE, seeds=(number,), adversarial=number % 5 == 0,
                           allocator=allocator)
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same(function, dtype, layout, path):
    for m, n, k in ((70, 136, 264), (33, 47, 61), (256, 128, 512), (0, 8, 16), (8, 0, 16), (8, 16, 0)):
        call = operands(function, m, n, k, dtype, layout=layout, device=DEVICE)
        expected = exact(function, call)
        for one, other in zip(results(optimized, function, call), expected, strict=True):
            assert one.dtype == dtype
            assert_near(one, other)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", ((512, 512, 4104), (1000, 1032, 2048), (33, 47, 4001)))
def test_the_same_bits_in_every_run(function, dtype, size, path):
    call = operands(function, *size, dtype, device=DEVICE)
    options = {"in_place": False} if function == "linear_scale_add_fwd" else {}
    first = results(optimized, function, call, **options)
    for _ in range(20):
        assert all(map(torch.equal, results(optimized, function, call, **options), first))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_does_not_depend_on_the_tile(dtype, path, monkeypatch):
    """On the general path, whose tiles grow with the number of rows, where none is shared."""
    if path != "general":
        pytest.skip("the chosen path may split sums")
    tilings = products.plans.tilings
    monkeypatch.setattr(products.plans, "tilings", lambda each, chip: tilings(each, replace(chip, clusters=())))
    call = operands("linear_fwd", 5000, 520, 1000, dtype, device=DEVICE)
    whole = optimized.linear_fwd(**call)
    for rows in (slice(0, 1), slice(4000, 4100)):
        assert torch.equal(optimized.linear_fwd(call["input"][rows], call["weight"]), whole[rows])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", ((128, 256, 64), (33, 47, 61)))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_residual_is_overwritten_and_returned(layout, shape, dtype, path):
    call = operands("linear_scale_add_fwd", *shape, dtype, layout=layout, device=DEVICE)
    (expected,), residual = exact("linear_scale_add_fwd", call), call["residual"]
    before, version = residual.clone(), residual._version
    (apart,) = results(optimized, "linear_scale_add_fwd", call, in_place=False)
    assert torch.equal(residual, before) and residual._version == version
    (output,) = results(optimized, "linear_scale_add_fwd", call)
    assert output is residual and residual._version > version
    assert_near(residual, expected)
    assert torch.equal(apart, residual)


@pytest.mark.parametrize("function", BACKWARD)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("accumulates", (True, False))
def test_given_grad_weight(function, layout, kind, accumulates, path):
    for size in ((300, 128, 256), (65, 47, 61)):
        call = operands(function, *size, torch.bfloat16, device=DEVICE)
        start = torch.randn(size[1:], device=DEVICE)
        start = start if accumulates else start.fill_(float("nan"))
        buffer = lay(start.to(kind), layout)
        assert_fills(optimized, function, call, buffer, accumulates)


@pytest.mark.parametrize("function", BACKWARD)
def test_gradients_that_are_not_required(function, path):
    call = operands(function, 300, 128, 256, torch.bfloat16, device=DEVICE)
    dx, dw = results(optimized, function, call)
    for dropped in ({}, {"input": None}):
        found, none = results(optimized, function, call | dropped, weight_requires_grad=False)
        assert none is None
        assert_near(found, dx.double())
    for dropped in ({}, {"weight": None}):
        none, found = results(optimized, function, call | dropped, input_requires_grad=False)
        assert none is None
        assert_near(found, dw.double())


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("quantizer", (Float8CurrentScalingQuantizer(), MXFP8Quantizer()), ids=("fp8", "mxfp8"))
def test_quantized_operands(function, quantizer, path):
    call = operands(function, 64, 128, 96, torch.bfloat16, device=DEVICE)
    names = [name for name in ("grad_output", "input", "weight") if name in call]
    quantized = call | {name: optimized.quantize(call[name], quantizer) for name in names}
    expected = exact(function, quantized)
    for one, other in zip(results(optimized, function, quantized), expected, strict=True):
        assert_near(one, other)


@pytest.mark.parametrize("out_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_out_dtype(dtype, out_dtype, path):
    for size in ((300, 128, 256), (65, 47, 61)):
        call = operands("linear_fwd", *size, dtype, device=DEVICE)
        output = optimized.linear_fwd(**call, out_dtype=out_dtype)
        assert output.dtype == out_dtype
        assert_near(output, exact("linear_fwd", call)[0])


def test_exact_float32_and_tf32():
    call = operands("linear_fwd", 500, 300, 2000, device=DEVICE)
    (expected,), matmul = exact("linear_fwd", call), torch.backends.cuda.matmul
    before = matmul.fp32_precision

    def error():
        return ((optimized.linear_fwd(**call).double() - expected).abs().max() / expected.abs().max()).item()

    exactly = error()
    try:
        matmul.fp32_precision = "tf32"
        rounded = error()
    finally:
        matmul.fp32_precision = before
    assert exactly < 2e-6 < 2e-5 < rounded < 2e-3 and error() == exactly


@pytest.mark.parametrize("scale", (0.0, -1.0))
@pytest.mark.parametrize("size", ((128, 256, 64), (33, 47, 61)))
def test_no_short_cut_hides_a_nan(scale, size, path):
    for value in (float("inf"), float("nan")):
        call = operands("linear_scale_add_fwd", *size, torch.bfloat16, device=DEVICE) | {"scale": scale}
        call["input"][1, 2] = value
        output = optimized.linear_scale_add_fwd(**call)
        assert not output[1].isfinite().any() and output[[0, *range(2, size[0])]].isfinite().all()
        assert scale or output[1].isnan().all()


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("size", ((256, 512, 128), (65, 47, 61)))
def test_in_a_graph_and_on_another_stream(function, size, path):
    """Values change between replays; what was in the residual does, too."""
    call = operands(function, *size, torch.bfloat16, device=DEVICE)
    results(optimized, function, call)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=stream):
        captured = results(optimized, function, call)
    for seed in (1, 2):
        fresh = operands(function, *size, torch.bfloat16, seed=seed, device=DEVICE)
        for name, value in fresh.items():
            if isinstance(value, torch.Tensor):
                call[name].copy_(value)
        expected = exact(function, fresh)
        graph.replay()
        for one, other in zip(captured, expected, strict=True):
            assert_near(one, other)


def test_a_second_product_waits_for_the_first(path):
    """Kernels come before those in front have ended: what they read must have been written."""
    call = operands("linear_scale_add_fwd", 512, 1024, 1024, torch.bfloat16, device=DEVICE)
    x, w, residual, scale = call.values()
    start = residual.clone()
    for _ in range(50):
        residual.copy_(start)
        y = optimized.linear_scale_add_fwd(x, w, residual, scale)
        z = optimized.linear_fwd(optimized.constant_scale(y, 0.5), w)
        expected = reference.linear_fwd(reference.constant_scale(y, 0.5), w)
        assert_near(z, expected.double(), roundings=2)


def test_more_than_two_to_the_31_elements(path):
    """Offsets have 64 bits."""
    if torch.cuda.mem_get_info()[0] < 40e9:
        pytest.skip("needs 40 GB")
    m, n, k = 70_000, 40, 32_000
    x, w = (torch.randn(rows, k, device=DEVICE, dtype=torch.bfloat16) for rows in (m, n))
    output = optimized.linear_fwd(x, w)
    for rows in (slice(0, 100), slice(m - 100, m)):
        assert_near(output[rows], x[rows].double() @ w.double().t())


def test_the_reference_is_near_on_a_gpu():
    for function in FUNCTIONS:
        call = operands(function, 300, 200, 400, torch.bfloat16, device=DEVICE)
        expected = exact(function, call)
        for one, other in zip(results(reference, function, call), expected):
            assert_near(one, other, roundings=4)


def test_a_chip_without_hopper_would_take_the_general_path():
    call = made(Case("linear_fwd", (4096, 4096, 4096)))
    assert optimized.linear.plan_of("linear_fwd", *call.args, chip=SM_80).variant.startswith("general")
