"""The optimized norms on a GPU: right for every shape, dtype, layout and option, and the same in every run."""

import pytest
import torch

import optimized
import reference
from harness import parity
from harness.cases import DTYPES, NORMS, Call
from harness.sweeps import sweep
from harness.tests.gpu import DEVICE, FUNCTIONS, assert_right, case_of, compile_ahead, made, run, same
from optimized.launch import allocator

pytestmark = pytest.mark.gpu

HIDDEN = (8, 16, 24, 32, 48, 64, 80, 96, 104, 128, 136, 200, 256, 264, 408, 512, 640, 1024, 1032, 1288, 1536, 3000,
          4096, 5120, 7168, 8192, 12288, 16384, 16392, 28672, 32768, 40000, 65536, 131_072, 131_080, 300_000)
ROWS = (1, 7, 300)
MOST_ELEMENTS = 1 << 24
ALONE_HIDDEN = (5, 8, 31, 64, 80, 104, 128, 129, 160, 200, 256, 320, 1000, 1023, 1024, 4096, 8192, 16384, 20480, 65536,
                131_072, 200_000)


def edge():
    """The norms of the sweep."""
    return [case for case in sweep("edge") if case.function in NORMS]


def shapes():
    """Every width with every function; rows and dtypes take turns, within the memory allowed."""
    for i, hidden in enumerate(HIDDEN):
        rows = [count for count in ROWS if count * hidden <= MOST_ELEMENTS]
        for j, function in enumerate(FUNCTIONS):
            yield case_of(function, (rows[(i + j) % len(rows)], hidden), list(DTYPES)[(i + j) % 3])


def mixes():
    """Every mix of dtypes of x, gamma and dz, at a width that vectors divide and at one that they do not."""
    for i, (x, gamma, dz) in enumerate((x, gamma, dz) for x in DTYPES for gamma in DTYPES for dz in DTYPES):
        for function in FUNCTIONS:
            options = {"gamma_dtype": gamma} if dz == x else {}
            options |= {} if function.endswith("_fwd") else {"gamma_dtype": gamma, "dz_dtype": dz}
            if options:
                centered = {"zero_centered_gamma": True} if i % 2 else {}
                yield case_of(function, (70, (264, 333)[i % 2]), x, **options, **centered)


def alone():
    """Many rows of each width."""
    for i, hidden in enumerate(ALONE_HIDDEN):
        for function in FUNCTIONS:
            yield case_of(function, (min(2000, MOST_ELEMENTS // hidden), hidden), ("bf16", "fp32")[i % 2])


RIGHT = list(dict.fromkeys([*edge(), *shapes(), *mixes()]))
ALONE = list(alone())
MARGIN = [case_of(function, (900, hidden)) for function in FUNCTIONS for hidden in (64, 1000, 4096, 32768)]


@pytest.fixture(scope="module", autouse=True)
def compiled_ahead():
    if torch.cuda.is_available():
        compile_ahead([*RIGHT, *ALONE, *MARGIN])


@pytest.mark.parametrize("number", range(len(RIGHT)), ids=lambda number: RIGHT[number].name)
def test_parity(number):
    """With poisoned outputs, guard bands and two runs; every fifth case with adversarial values too."""
    case = RIGHT[number]
    verdict = parity.check(case, lambda call: run(case, call), DEVICE, seeds=(number,),
                           adversarial=number % 5 == 0, allocator=allocator)
    assert verdict.ok, verdict.reason


def per_row(case, results):
    """Those of the results that have an entry for each row."""
    return results if case.function.endswith("_fwd") else results[:1]


def with_tensors(call, change):
    """The call's arguments, `change` applied to the tensors."""
    return tuple(change(each) if isinstance(each, torch.Tensor) else each for each in call.args)


@pytest.mark.parametrize("case", ALONE, ids=lambda case: case.name)
def test_a_row_does_not_depend_on_the_others(case):
    call = made(case)
    full = per_row(case, run(case, call))
    middle = case.rows // 2
    for rows in (slice(0, 1), slice(3, 5), slice(middle, middle + 7), slice(case.rows - 1, None)):
        args = with_tensors(call, lambda each: each[rows].clone() if len(each) == case.rows else each)
        few = per_row(case, run(case, Call(args, {})))
        assert same(few, [each if each is None else each[rows] for each in full])


@pytest.mark.parametrize("case", MARGIN, ids=lambda case: case.name)
def test_margin_changes_no_row(case):
    call = made(case)
    free = per_row(case, run(case, call))
    for sm_margin in (1, 16, 131, 132, 10_000):
        results = run(case, call, sm_margin=sm_margin)
        assert same(per_row(case, results), free)
        assert same(run(case, call, sm_margin=sm_margin), results)
        assert_right(case, call, results)


@pytest.mark.parametrize("function", FUNCTIONS[2:])
@pytest.mark.parametrize("hidden", (31, 1024, 5000, 16384, 32768, 200_000))
def test_sums_have_the_same_bits_in_every_run(function, hidden):
    case = case_of(function, (4000 if hidden < 20_000 else 200, hidden))
    call = made(case)
    first = run(case, call)
    assert all(same(run(case, call), first) for _ in range(20))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("skipped", (1, 2, 4))
def test_pointers_between_vectors(function, skipped):
    """Rows that begin 2, 4 or 8 bytes into a vector, by their pointer and by their pitch."""
    case = case_of(function, (37, 1024))
    call = made(case)

    def moved(each):
        if each.shape[-1] != 1024:
            return each
        wide = each.new_full((*each.shape[:-1], 1024 + skipped), float("nan"))
        return wide[..., skipped:].copy_(each)

    assert_right(case, call, run(case, Call(with_tensors(call, moved), {})))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("hidden", (24, 80, 104, 160, 200, 320, 480))
@pytest.mark.parametrize("rows", (1, 37, 20_011))
def test_narrow_rows_at_a_distance(function, hidden, rows):
    """Rows that share a warp, the last of them fewer than it takes: back to back, and with something in between."""
    case = case_of(function, (rows, hidden))
    call = made(case)

    def apart(each):
        if each.shape[-1] != hidden or each.dim() < 2:
            return each
        return each.new_full((rows, hidden + 8), float("nan"))[:, :hidden].copy_(each)

    together, spread = run(case, call), run(case, Call(with_tensors(call, apart), {}))
    assert_right(case, call, together)
    assert same(together, spread)


@pytest.mark.parametrize("weight", DTYPES)
@pytest.mark.parametrize("bias", DTYPES)
@pytest.mark.parametrize("hidden", (333, 4096))
def test_weight_and_bias_of_different_dtypes(weight, bias, hidden):
    case = case_of("layernorm_fwd", (33, hidden), gamma_dtype=weight)
    x, gamma, beta, eps = made(case).args
    call = Call((x, gamma, beta.to(DTYPES[bias]), eps), {})
    assert_right(case, call, run(case, call))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gamma_of_two_dimensions(function):
    case = case_of(function, (5, 3, 32))
    call = made(case)
    args = with_tensors(call, lambda each: each.view(4, 8) if each.shape == (32,) else each)
    results, expected = (getattr(package, function)(*args) for package in (optimized, reference))
    assert [None if each is None else each.shape for each in results] == [
        None if each is None else each.shape for each in expected]
    assert_right(case, call, results)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("values", ("constant_row", "zero_row", "normal"))
@pytest.mark.parametrize("hidden", (7, 1000, 4096, 300_000))
def test_eps_of_zero(function, values, hidden):
    """A constant row has no deviation: rsigma is infinite, and NaN stands where the reference has it."""
    case = case_of(function, (7, hidden), eps=0.0)
    call = made(case, values=values)
    results, expected = run(case, call), getattr(reference, function)(*call.args)
    for one, other in zip(results, expected, strict=True):
        if one is not None:
            torch.testing.assert_close(one, other, rtol=0.02, atol=0.02, equal_nan=True)


@pytest.mark.parametrize("hidden", (1, 2, 7, 31, 100, 1000, 4097, 16385, 70_000, 300_000))
def test_constant_row_gives_the_bias_exactly(hidden):
    x = torch.full((3, hidden), 3.3, device=DEVICE)
    weight, bias = (torch.randn(hidden, device=DEVICE) for _ in range(2))
    y, mu, rsigma = optimized.layernorm_fwd(x, weight, bias, 1e-5)
    assert torch.equal(y, bias.expand_as(y)) and (mu == x[0, 0]).all()
    assert torch.equal(rsigma, 1 / torch.full_like(rsigma, 1e-5).sqrt())


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("shape", ((0, 1), (0, 4096), (3, 0, 1000), (0, 300_000)))
def test_no_rows(function, shape):
    case = case_of(function, shape, gamma_dtype="fp32")
    first, *rest = run(case, made(case))
    assert first.shape == shape
    if function.endswith("_fwd"):
        assert all(each is None or each.shape == (0,) for each in rest)
    else:
        assert all(each.dtype == torch.float32 and each.shape == shape[-1:] for each in rest)
        assert not any(each.any() for each in rest)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_results_carry_no_graph(function):
    case = case_of(function, (7, 256), "fp32")
    call = made(case)
    for each in call.tensors():
        each.requires_grad_()
    assert not any(each.requires_grad for each in run(case, call) if each is not None)
