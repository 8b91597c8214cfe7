"""From tensors to launches, on the CPU: every layout, and what must be refused although a call like it was prepared."""

import pytest
import torch

import optimized
import reference
from harness.tests.emulated import launched  # noqa: F401 - a fixture
from harness.tests.linear_calls import (
    BACKWARD, DTYPES, FORWARD, FUNCTIONS, LAYOUTS, POINTWISE, assert_fills, assert_near, exact, lay, operands, results
)
from optimized.launch import allocator
from reference.quantizers import Float8CurrentScalingQuantizer, MXFP8Quantizer

SHAPES = ((5, 7, 9), (64, 64, 64), (1, 16, 8), (3, 1, 1), (0, 4, 8), (4, 0, 8), (4, 8, 0), (33, 130, 70))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same(function, dtype, layout, launched):
    for m, n, k in SHAPES:
        call = operands(function, m, n, k, dtype, layout=layout)
        expected = exact(function, call)
        for _ in range(2):
            again = call | ({"residual": lay(call["residual"].clone(), layout)} if "residual" in call else {})
            for one, other in zip(results(optimized, function, again), expected, strict=True):
                assert one.dtype == dtype
                assert_near(one, other)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("leading", ((), (6,), (2, 3), (2, 1, 3), (2, 0, 3)))
def test_ranks(function, leading, launched):
    call = operands(function, 0, 8, 16, leading=leading)
    expected = exact(function, call)
    for one, other in zip(results(optimized, function, call), expected, strict=True):
        assert_near(one, other)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_one_launch(function, launched):
    for times in (1, 2, 3):
        results(optimized, function, operands(function, 5, 7, 9))
        assert len(launched) == times


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_output_comes_from_the_hook(function, launched):
    given = []

    def allocate(shape, dtype, device):
        given.append(torch.full(shape, float("nan"), dtype=dtype))
        return given[-1]

    options = {"in_place": False} if function == "linear_scale_add_fwd" else {}
    with allocator(allocate):
        found = results(optimized, function, operands(function, 5, 7, 9), **options)
    assert [id(each) for each in found] == [id(each) for each in given]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("leading", ((4,), (2, 2)))
def test_residual_is_overwritten_and_returned(layout, leading, launched):
    call = operands("linear_scale_add_fwd", 4, 6, 8, torch.bfloat16, leading=leading, layout=layout)
    (expected,), residual = exact("linear_scale_add_fwd", call), call["residual"]
    before, version = residual.clone(), residual._version
    (apart,) = results(optimized, "linear_scale_add_fwd", call, in_place=False)
    assert torch.equal(residual, before) and residual._version == version
    (output,) = results(optimized, "linear_scale_add_fwd", call)
    assert output is residual and residual._version > version
    assert_near(residual, expected)
    assert torch.equal(apart, residual)


def test_in_place_residual_that_requires_a_gradient(launched):
    """As under no_grad: nothing is recorded, the version says what happened; also by way of a copy."""
    for layout in ("contiguous", "transposed"):
        call = operands("linear_scale_add_fwd", 4, 6, 8, layout=layout)
        call["residual"].requires_grad_()
        (output,) = results(optimized, "linear_scale_add_fwd", call)
        assert output is call["residual"] and output.is_leaf and output._version > 0


def test_a_use_that_backward_needs_is_found_out(launched):
    call = operands("linear_scale_add_fwd", 4, 6, 8)
    a = torch.ones(4, 6, requires_grad=True)
    needed = a * call["residual"]
    results(optimized, "linear_scale_add_fwd", call)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        needed.sum().backward()


@pytest.mark.parametrize("function", BACKWARD)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("accumulates", (True, False))
def test_given_grad_weight(function, layout, kind, accumulates, launched):
    call = operands(function, 9, 6, 10, torch.bfloat16)
    start = torch.randn(6, 10) if accumulates else torch.full((6, 10), float("nan"))
    buffer = lay(start.to(kind), layout)
    assert_fills(optimized, function, call, buffer, accumulates)


@pytest.mark.parametrize("function", BACKWARD)
def test_gradients_that_are_not_required(function, launched):
    call = operands(function, 9, 6, 10)
    dx, dw = exact(function, call)
    buffer = torch.full((6, 10), float("nan"))
    for dropped in ({}, {"input": None}):
        found, none = results(optimized, function, call | dropped, weight_requires_grad=False, grad_weight=buffer)
        assert none is None and buffer.isnan().all() and buffer._version == 0
        assert_near(found, dx)
    for dropped in ({}, {"weight": None}):
        none, found = results(optimized, function, call | dropped, input_requires_grad=False)
        assert none is None
        assert_near(found, dw)
    assert not any("pair" in plan.kernel for plan, _ in launched)
    assert results(optimized, function, call, input_requires_grad=False, weight_requires_grad=False) == (None, None)


@pytest.mark.parametrize("function", BACKWARD)
def test_no_rows(function, launched):
    call = operands(function, 0, 6, 10)
    dx, dw = results(optimized, function, call)
    assert dx.shape == (0, 10) and torch.equal(dw, torch.zeros(6, 10))
    kept = torch.tensor([-0.0, float("nan")] * 30).view(6, 10)
    _, dw = results(optimized, function, call, grad_weight=kept.clone(), accumulate_into_grad_weight=True)
    assert torch.equal(dw.view(torch.int32), kept.view(torch.int32)), "unchanged, to the bit"


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("quantizer", (Float8CurrentScalingQuantizer(), MXFP8Quantizer()), ids=("fp8", "mxfp8"))
def test_quantized_operands(function, quantizer, launched):
    call = operands(function, 32, 64, 96, torch.bfloat16)
    names = [name for name in ("grad_output", "input", "weight") if name in call]
    quantized = call | {name: reference.quantize(call[name], quantizer) for name in names}
    expected = exact(function, quantized)
    for one, other in zip(results(optimized, function, quantized), expected, strict=True):
        assert one.dtype == torch.bfloat16
        assert_near(one, other)
    if function in BACKWARD:
        assert results(optimized, function, quantized, weight_requires_grad=False)[1] is None


@pytest.mark.parametrize("out_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_out_dtype(dtype, out_dtype, launched):
    call = operands("linear_fwd", 5, 7, 9, dtype)
    (output,) = results(optimized, "linear_fwd", call, out_dtype=out_dtype)
    assert output.dtype == out_dtype
    assert_near(output, exact("linear_fwd", call)[0])


def test_overlap_is_found_though_a_call_like_it_was_prepared(launched):
    call = operands("linear_scale_add_fwd", 8, 8, 8)
    memory = torch.randn(4, 8, 8)
    results(optimized, "linear_scale_add_fwd", call | {"residual": memory[0]})
    for name in ("input", "weight"):
        with pytest.raises(ValueError, match=f"residual.*overlaps {name}"):
            results(optimized, "linear_scale_add_fwd", call | {"residual": memory[0], name: memory[0]})
    columns = torch.randn(8, 16)
    for _ in range(2):
        results(optimized, "linear_scale_add_fwd", call | {"residual": columns[:, :8], "input": columns[:, 8:]})
    with pytest.raises(ValueError, match="overlaps grad_output"):
        gradient = operands("linear_bwd", 8, 8, 8)
        results(optimized, "linear_bwd", gradient, grad_weight=memory[1])
        results(optimized, "linear_bwd", gradient | {"grad_output": memory[1]}, grad_weight=memory[1])


@pytest.mark.parametrize("function", ("linear_scale_add_fwd", "linear_scale_bwd"))
@pytest.mark.parametrize("scale", (2, 0.0, -3.5, 1e-42, torch.finfo(torch.float32).max))
def test_scales_share_what_is_prepared(function, scale, launched):
    for each in (scale, 1.0):
        call = operands(function, 5, 7, 9) | {"scale": each}
        expected = exact(function, call)
        for one, other in zip(results(optimized, function, call), expected):
            torch.testing.assert_close(one.double(), other.float().double(), rtol=1e-3, atol=1e-3)
    assert len({id(plan) for plan, _ in launched}) == 1


@pytest.mark.parametrize("scale", (float("nan"), float("inf"), 1e39, 10**400, True, "1", None))
def test_bad_scale_is_refused_though_a_call_like_it_was_prepared(scale, launched):
    for function in ("linear_scale_add_fwd", "linear_scale_bwd"):
        call = operands(function, 5, 7, 9)
        results(optimized, function, call)
        before = call.get("residual", torch.zeros(1)).clone()
        with pytest.raises((TypeError, ValueError), match=f"{function}: scale"):
            results(optimized, function, call | {"scale": scale})
        assert torch.equal(call.get("residual", torch.zeros(1)), before)


@pytest.mark.parametrize("function", FORWARD)
def test_flags_and_dtypes_are_not_taken_for_their_equals(function, launched):
    call = operands(function, 5, 7, 9)
    results(optimized, function, call)
    wrong = {"out_dtype": "float32"} if function == "linear_fwd" else {"in_place": 1}
    with pytest.raises(TypeError, match=f"{function}: {next(iter(wrong))}"):
        results(optimized, function, call, **wrong)
    with pytest.raises(TypeError, match="residual is a NoneType"):
        results(optimized, "linear_scale_add_fwd", operands("linear_scale_add_fwd", 5, 7, 9) | {"residual": None})


@pytest.fixture
def tf32():
    """Lets float32 be multiplied as TF32, once called, until the test has ended."""
    precision = torch.backends.cuda.matmul.fp32_precision
    yield lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32")
    torch.backends.cuda.matmul.fp32_precision = precision


def test_tf32_only_where_it_is_asked_for(launched, tf32):
    call = operands("linear_fwd", 300, 300, 300)
    results(optimized, "linear_fwd", call)
    tf32()
    results(optimized, "linear_fwd", call)
    kernels = [plan.kernel for plan, _ in launched]
    assert "Simt" in kernels[0] and "TensorCore<f32" in kernels[1]


@pytest.mark.filterwarnings("error")
def test_torch_compile_does_not_trace_into_a_call(launched):
    def block(x, w, r):
        y = optimized.linear_scale_add_fwd(x * 2, w, r + 1, 0.5)
        return optimized.linear_bwd(y, x, w)[0].relu() + optimized.linear_fwd(x, w).sum()

    torch.compiler.reset()
    compiled = torch.compile(block, backend="eager")
    x, w, r = torch.randn(4, 8), torch.randn(6, 8), torch.randn(4, 6)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, w, r), block(x, w, r))


class Wrapped(torch.Tensor):
    """A tensor that holds another one and has no memory of its own, as a DTensor."""

    @staticmethod
    def __new__(cls, t):
        return torch.Tensor._make_wrapper_subclass(cls, t.shape, strides=t.stride(), dtype=t.dtype, device=t.device)

    def __init__(self, t):
        self.t = t

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return function(*[each.t if isinstance(each, Wrapped) else each for each in args], **(kwargs or {}))


@pytest.mark.parametrize("function", FUNCTIONS + POINTWISE)
def test_a_tensor_without_memory_is_refused_by_name(function, launched):
    """Also where a call like it was prepared; its address, 0, is a multiple of everything."""
    call = operands(function, 8, 16, 32) if function in FUNCTIONS else {"input": torch.ones(8, 16)}
    call |= {"constant_scale": {"scale": 0.5}, "add": {"other": torch.ones(8, 16)}}.get(function, {})
    for name in [name for name, value in call.items() if isinstance(value, torch.Tensor)]:
        results(optimized, function, call)
        times = len(launched)
        with pytest.raises(TypeError, match=f"{function}: {name} is a Wrapped without memory"):
            results(optimized, function, call | {name: Wrapped(call[name])})
        assert len(launched) == times
    first, value = next(iter(call.items()))
    options = {"in_place": False} if function == "linear_scale_add_fwd" else {}
    with pytest.raises(TypeError, match=f"{function}: {first} is .* without memory"):
        torch.func.vmap(lambda t: results(optimized, function, call | {first: t}, **options))(
            torch.stack([value, value]))
