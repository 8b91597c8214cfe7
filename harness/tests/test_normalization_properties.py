"""Properties that the norms of `reference` keep for every shape, dtype, layout and option."""

import pytest
import torch

from harness.tests.norms import BACKWARD, DTYPES, FORWARD, assert_agrees, call, sums_of, tensors

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")
given, st = hypothesis.given, hypothesis.strategies

quick = hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
functions = st.sampled_from((*FORWARD, *BACKWARD))
shapes = st.tuples(*[st.integers(0, 4)] * 2, st.integers(1, 300)).flatmap(
    lambda shape: st.sampled_from((shape, shape[1:], shape[2:])))
dtypes = st.sampled_from(DTYPES)
layouts = st.sampled_from(("transposed", "skipping", "expanded"))
STATISTICS = ("mu", "rsigma")


def same(actual, expected):
    """Equal bit for bit, with None only where None is expected."""
    return all(
        (a is None and e is None) or (a.dtype == e.dtype and a.shape == e.shape and torch.equal(a, e))
        for a, e in zip(actual, expected, strict=True)
    )


@quick
@given(functions, shapes, st.booleans(), st.integers(0, 99), st.sampled_from((1e-6, 1e-5, 0.1)))
def test_float64(function, shape, zero_centered_gamma, seed, eps):
    values = tensors(function, shape, seed=seed, eps=eps)
    options = {"eps": eps, "zero_centered_gamma": zero_centered_gamma}
    before = {name: value.clone() for name, value in values.items()}
    assert_agrees(function, values, **options)
    assert all(torch.equal(value, before[name]) for name, value in values.items())


@quick
@given(functions, shapes, st.fixed_dictionaries(dict.fromkeys(("x", "weight", "dz"), dtypes)), st.booleans())
def test_one_rounding(function, shape, mixed, zero_centered_gamma):
    """Narrow inputs give what their values give as float32, with sums of the same kind, rounded once; nothing is read
    as another type."""
    kinds = {"input": "x", "add": "x", "gamma": "weight", "bias": "weight"}
    values = {
        name: value if name in STATISTICS else value.to(mixed[kinds.get(name, name)])
        for name, value in tensors(function, shape).items()
    }
    with sums_of(mixed["x"]):
        wide = call(function, {name: value.float() for name, value in values.items()},
                    zero_centered_gamma=zero_centered_gamma)
    kept = torch.float32
    rounded = [mixed["x"], *([mixed["weight"]] * 2 if function in BACKWARD else [kept, kept])]
    expected = [None if value is None else value.to(dtype) for value, dtype in zip(wide, rounded)]
    assert same(call(function, values, zero_centered_gamma=zero_centered_gamma), expected)


@quick
@given(functions, st.integers(1, 5), st.integers(1, 200), layouts)
def test_layout(function, rows, hidden, layout):
    def laid_out(value):
        if layout == "transposed":
            return value.t().contiguous().t()
        if layout == "skipping":
            return value.repeat_interleave(2, -1)[..., ::2]
        return value[..., :1].expand(value.shape)

    strided = {name: value if name in STATISTICS else laid_out(value)
               for name, value in tensors(function, (rows, hidden)).items()}
    packed = {name: value.contiguous() for name, value in strided.items()}
    assert same(call(function, strided), call(function, packed))


@quick
@given(functions, st.integers(2, 6), st.integers(1, 300), dtypes)
def test_a_row_does_not_depend_on_the_others(function, rows, hidden, dtype):
    values = tensors(function, (rows, hidden), x=torch.randn(rows, hidden).to(dtype))
    values = {name: value.to(dtype) if name == "add" else value for name, value in values.items()}
    vectors = ("weight", "gamma", "bias")
    last = {name: value if name in vectors else value[-1:] for name, value in values.items()}
    assert torch.equal(call(function, last)[0], call(function, values)[0][-1:])


@quick
@given(functions, st.lists(st.integers(0, 3), max_size=3), st.integers(1, 40))
def test_any_rank(function, leading, hidden):
    shape = (*leading, hidden)
    values = tensors(function, shape)
    flat = {name: value.flatten(0, -2) if value.dim() == len(shape) > 2 else value
            for name, value in values.items()}
    nested, plain = call(function, values), call(function, flat)
    assert nested[0].shape == shape
    assert torch.equal(nested[0].flatten(), plain[0].flatten())
    assert same(nested[1:], plain[1:])
