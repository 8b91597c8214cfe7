"""Cases are values with names; inputs come from seeds; the work of a case is what its tensors hold."""

import pytest
import torch

import reference
from harness.cases import DTYPES, FAMILIES, Case, family_of, with_rows
from harness.cases.values import LAYOUTS
from harness.sweeps import everything

BACKWARD = ("layernorm_bwd", "rmsnorm_bwd", "rmsnorm_bwd_add")


def make(case, seed=0, values="normal", device="cpu"):
    return family_of(case.function).make(case, device, seed, values)


def results(case, call):
    return getattr(reference, case.function)(*call.args, **call.kwargs)


def same(one, other):
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def test_a_name_says_everything_that_differs():
    case = Case("rmsnorm_fwd", (4096, 8192), "bf16", options=(("gamma_dtype", "fp32"),))
    assert case.name == "rmsnorm_fwd 4096x8192 bf16 gamma_dtype=fp32"
    assert (case.rows, case.hidden, case.shape_text) == (4096, 8192, "4096x8192")
    assert case.option("gamma_dtype") == "fp32" and case.option("layout", "contiguous") == "contiguous"
    assert Case("rmsnorm_fwd", (2, 3, 8)).rows == 6 and Case("rmsnorm_fwd", (8,)).rows == 1
    assert len({case.name for case in everything()}) == len(everything())


def test_options_are_sorted_so_that_equal_cases_are_equal():
    one = Case("rmsnorm_fwd", (4, 8), options=(("layout", "offset"), ("gamma_dtype", "fp32")))
    other = Case("rmsnorm_fwd", [4, 8], options=(("gamma_dtype", "fp32"), ("layout", "offset")))
    assert one == other and hash(one) == hash(other)


@pytest.mark.parametrize("build, words", [
    (lambda: Case("rmsnorm_fwd", (4, 8), "int8"), "unknown dtype 'int8'; known: bf16, fp16, fp32"),
    (lambda: Case("rmsnorm_bwd", (4, 8), options=(("dz_dtype", "half"),)), "dtype of dz_dtype 'half'"),
    (lambda: family_of("softmax"), "unknown function 'softmax'; known: layernorm_fwd"),
    (lambda: make(Case("rmsnorm_fwd", (4, 8)), values="dz_nan"), "unknown kind of values 'dz_nan'"),
    (lambda: make(Case("rmsnorm_fwd", (4, 8), options=(("layout", "tiled"),))), "unknown layout 'tiled'"),
])
def test_unknown_names_are_told_with_those_known(build, words):
    with pytest.raises(ValueError, match=words):
        build()


def test_work_counts_each_tensor_once():
    case = Case("layernorm_bwd", (4096, 1024), options=(("gamma_dtype", "fp32"),))
    work = family_of("layernorm_bwd").work(case)
    assert work.read_bytes == 2 * 4096 * 1024 * 2 + 2 * 4096 * 4 + 1024 * 4
    assert work.written_bytes == 4096 * 1024 * 2 + 2 * 1024 * 4
    assert work.bytes == work.read_bytes + work.written_bytes and work.flops == 13 * 4096 * 1024


@pytest.mark.parametrize("function", FAMILIES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_changes_strides_and_no_values(function, layout):
    case = Case(function, (6, 40), options=(("layout", layout),))
    call, plain = make(case), make(Case(function, (6, 40)))
    x = call.args[0]
    assert x.shape == (6, 40)
    assert x.is_contiguous() == (layout in ("contiguous", "offset"))
    assert (x.data_ptr() % 4 == 2) == (layout == "offset")
    assert (x.stride(0) == 0) == (layout == "expanded")
    if layout != "expanded":
        assert all(map(same, call.tensors(), plain.tensors()))


@pytest.mark.parametrize("function", FAMILIES)
def test_a_seed_gives_the_same_values_and_another_seed_others(function):
    case = Case(function, (6, 40), "fp32")
    assert all(map(same, make(case, 3).tensors(), make(case, 3).tensors()))
    assert not any(map(same, make(case, 3).tensors(), make(case, 4).tensors()))


def test_values_are_normal_with_a_few_large_channels():
    x = make(Case("rmsnorm_fwd", (512, 4096), "fp32")).args[0]
    spread = x.std(0)
    assert 1 <= (spread > 8).sum() <= 5 and spread.max() < 40
    assert spread.median() == pytest.approx(1, abs=0.05)
    assert (x == x.round()).sum() < 10


@pytest.mark.parametrize("function", FAMILIES)
def test_dtypes_are_those_asked_for(function):
    mixed = {"gamma_dtype": "fp32"} | ({"dz_dtype": "fp16"} if function in BACKWARD else {})
    call = make(Case(function, (4, 8), "bf16", options=tuple(mixed.items())))
    dtypes = [tensor.dtype for tensor in call.tensors()]
    if function in BACKWARD:
        assert dtypes[:2] == [torch.float16, torch.bfloat16] and dtypes[-1] == torch.float32
        assert set(dtypes[2:]) <= {torch.bfloat16, torch.float32}
    else:
        assert dtypes[0] == torch.bfloat16 and set(dtypes[1:]) == {torch.float32}


def test_saved_statistics_are_those_of_the_forward_pass():
    case = Case("layernorm_bwd", (33, 100))
    _, x, mu, rsigma, gamma = make(case).args
    _, wanted_mu, wanted_rsigma = reference.layernorm_fwd(x, gamma, None, 1e-5)
    torch.testing.assert_close(mu, wanted_mu, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(rsigma, wanted_rsigma, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", FAMILIES)
@pytest.mark.parametrize("hidden", [1, 2, 3, 100, 4099])
def test_float32_and_float64_agree_about_what_is_finite(function, hidden, dtype):
    """Adversarial values stay where float32 arithmetic neither overflows nor underflows to another kind of
    result."""
    case, family = Case(function, (7, hidden), dtype), family_of(function)
    for kind in family.adversarial(case):
        call = make(case, values=kind)
        oracle = family.oracle(call)
        for name, found in zip(family.outputs, results(case, call)):
            if name:
                wanted = oracle[name].to(found.dtype).view(found.shape)
                assert torch.equal(found.isnan(), wanted.isnan()), (kind, name)
                assert torch.equal(found.isinf(), wanted.isinf()), (kind, name)


def test_adversarial_rows_are_what_their_names_say():
    def x(kind, dtype="bf16"):
        return make(Case("rmsnorm_fwd", (7, 100), dtype), values=kind).args[0]

    assert not x("zero_row")[[0, 3, 6]].any() and x("zero_row")[1].any()
    assert len(x("constant_row")[3].unique()) == 1
    assert x("nan").isnan().sum() == 3
    infinite = x("inf")[x("inf").isinf()].tolist()
    assert infinite == [float("inf"), float("-inf"), float("inf")]
    for dtype in DTYPES:
        tiny = x("subnormals", dtype)[0].abs()
        assert 0 < tiny.min() and tiny.max() < torch.finfo(tiny.dtype).tiny
    assert x("largest", "fp16").abs().max() == 65504
    assert family_of("rmsnorm_fwd").adversarial(Case("rmsnorm_fwd", (0, 8))) == ()


def test_fewer_rows_keep_the_rest_of_a_case():
    case = Case("rmsnorm_fwd", (4, 16, 8), "fp16", options=(("layout", "offset"),))
    assert with_rows(case, 33) == Case("rmsnorm_fwd", (33, 8), "fp16", options=(("layout", "offset"),))
    assert with_rows(case, 64) is case
