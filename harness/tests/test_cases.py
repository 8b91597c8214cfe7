"""Cases are values with names; inputs come from seeds; the work of a case is what its tensors hold."""

import math

import pytest
import torch

import reference
from harness.cases import DTYPES, NORMS, RECIPES, Case, accepted, family_of, with_rows
from harness.cases.recipes import STATES
from harness.cases.values import LAYOUTS
from harness.quantized import NAN_SCALES, sides, spacing
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


@pytest.mark.parametrize("function", NORMS)
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


@pytest.mark.parametrize("function", NORMS)
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


@pytest.mark.parametrize("function", NORMS)
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
@pytest.mark.parametrize("function", NORMS)
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


QUANTIZED = [case for case in everything() if case.recipe != "none" and case.rows * case.hidden <= 1 << 13]


@pytest.mark.parametrize("case", [
    Case("quantize", (64, 96), "fp32", recipe, (("orientation", "both"),)) for recipe in RECIPES[1:]
], ids=lambda case: case.name)
def test_values_of_quantization_are_what_their_names_say(case):
    def x(kind):
        return make(case, values=kind).args[0]

    assert not x("zeros").any() and not x("zeros").signbit().any() and x("negative_zeros").signbit().all()
    tiles = x("zero_blocks").unflatten(0, (2, 32)).unflatten(2, (3, 32)).transpose(1, 2).flatten(2)
    empty = ~tiles.any(-1)
    assert 0 < empty.sum() < 6 and tiles[empty].signbit().any() and not tiles[empty].signbit().all()
    assert 0 < x("subnormals").abs().max() < torch.finfo(torch.float32).tiny
    assert len(x("constant").unique()) == 1 and x("outlier").abs().max() == 1e15
    assert x("largest").abs().unique().tolist() == [torch.finfo(torch.float32).max]
    assert x("nan").isnan().sum() == x("inf").isinf().sum() == 2
    assert x("inf").isposinf().any() and x("inf").isneginf().any() and x("nan")[x("nan").isnan()].signbit().any()
    assert (x("nan").isnan().nonzero() % 16).all(), "a NaN that begins a block shows where an amax begins"
    power, below, above = (x(kind).abs().max() for kind in ("power", "power_below", "power_above"))
    assert power == 32 and below == power.nextafter(torch.zeros(())) and above == power.nextafter(2 * power)


def test_powers_cover_exponents_and_their_neighbours():
    wide = Case("quantize", (64, 1 << 16), "bf16", "mxfp8")
    magnitudes = make(wide, values="powers").args[0].float().abs()
    assert magnitudes.min() > 0 and magnitudes.isfinite().all()
    mantissas, exponents = torch.frexp(magnitudes)
    assert set(mantissas.unique().tolist()) == {0.5, 0.5 + 2**-8, 1 - 2**-8}
    assert len(exponents.unique()) > 200


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("recipe, format_", [
    ("fp8_delayed", "e4m3"), ("fp8_current", "e5m2"), ("fp8_current", "e4m3"), ("mxfp8", "e4m3"), ("nvfp4", "e2m1")])
def test_ties_lie_half_way_between_codes(recipe, format_, dtype):
    options = () if recipe == "nvfp4" else (("format", format_),)
    x, quantizer = make(Case("quantize", (64, 96), dtype, recipe, options), values="ties").args
    side = sides(reference.quantize(x, quantizer))["rowwise"]
    distance = (x.double() / side.units() - side.code_values()).abs() / spacing(side.code_values(), format_)
    assert ((distance == 0.5) | (distance == 0.25)).float().mean() > 0.85  # 0.25: to the next code below a power of two


@pytest.mark.parametrize("case", QUANTIZED, ids=lambda case: case.name)
def test_inputs_of_quantization_are_the_same_for_a_seed_alone(case):
    one, again, other = (make(case, seed) for seed in (3, 3, 4))
    assert all(map(same, one.tensors(), again.tensors()))
    assert not math.prod(case.shape) or not same(one.tensors()[0], other.tensors()[0])
    assert one.tensors()[0].dtype == (DTYPES[case.dtype] if case.function == "quantize" else one.tensors()[0].dtype)


def test_state_of_delayed_scaling_lies_among_nan():
    quantizer = make(Case("quantize", (64, 96), recipe="fp8_delayed")).args[1]
    assert quantizer.amax.item() == 0.5 and 3 < quantizer.scale.item() < 12
    assert quantizer.scale.untyped_storage().data_ptr() == quantizer.amax.untyped_storage().data_ptr()
    assert make(Case("quantize", (64, 96), recipe="fp8_delayed"), 1).args[1].amax.item() == 1000
    state = {kind: make(Case("quantize", (64, 96), recipe="fp8_delayed"), values=kind).args[1]
             for kind in STATES["fp8_delayed"]}
    assert state["nan_amax"].amax.isnan() and state["largest_scale"].scale == torch.finfo(torch.float32).max
    assert 0 < state["subnormal_scale"].scale < torch.finfo(torch.float32).tiny


def test_padding_of_what_is_dequantized_is_nan():
    for recipe in ("mxfp8", "nvfp4"):
        for orientation in ("rowwise", "columnwise"):
            tensor = make(Case("dequantize", (96, 160), recipe=recipe, options=(("orientation", orientation),))).args[0]
            padding = sides(tensor)[orientation].padding()
            assert padding.numel() and set(padding.tolist()) == {NAN_SCALES[recipe]}
            assert not tensor.dequantize().isnan().any()


def test_work_of_quantization_counts_padding_and_state():
    both = (("orientation", "both"),)
    work = family_of("quantize").work(Case("quantize", (33, 96), "bf16", "mxfp8"))
    assert (work.read_bytes, work.written_bytes) == (33 * 96 * 2, 33 * 96 + 128 * 4)
    work = family_of("quantize").work(Case("quantize", (32, 48), "fp32", "nvfp4", both))
    assert work.written_bytes == 2 * (32 * 48 // 2 + 4 + 128 * 4)
    work = family_of("quantize").work(Case("quantize", (33, 100), "bf16", "fp8_delayed", both))
    assert (work.read_bytes, work.written_bytes) == (33 * 100 * 2 + 8, 2 * 33 * 100 + 4 + 4)


def test_a_second_pass_counts_where_the_input_outgrows_the_cache():
    family, l2 = family_of("quantize"), 60 << 20
    for recipe, twice in (("fp8_delayed", 0), ("fp8_current", 1), ("mxfp8", 0), ("nvfp4", 1)):
        for shape, outgrows in (((8192, 4096), 1), ((1024, 2048), 0)):
            case = Case("quantize", shape, recipe=recipe)
            assert family.passes(case, l2) - family.work(case).bytes == twice * outgrows * 2 * math.prod(shape)
    assert family_of("dequantize").passes(case, l2) == family_of("dequantize").work(case).bytes


@pytest.mark.parametrize("case, words", [
    (Case("quantize", (32, 33), recipe="mxfp8"), "33 cols are no multiple of the block, 32"),
    (Case("quantize", (33, 32), recipe="nvfp4", options=(("orientation", "columnwise"),)), "33 rows are no multiple"),
    (Case("quantize", (33, 32), recipe="nvfp4", options=(("with_2d_quantization", True),)), "33 rows are no multiple"),
    (Case("quantize", (32,), recipe="fp8_current", options=(("orientation", "both"),)), "a vector has no columnwise"),
    (Case("quantize", (32, 32)), "quantize needs a recipe, one of fp8_delayed, fp8_current, mxfp8, nvfp4"),
    (Case("quantize", (32, 32), recipe="nvfp4", options=(("format", "e5m2"),)), "recipe nvfp4 has no option format"),
    (Case("quantize", (32, 32), "fp32", "nvfp4", (("with_rht", True),)), "with_rht needs bf16"),
    (Case("quantize", (32, 32), recipe="nvfp4", options=(("with_rht", True), ("with_2d_quantization", True))),
     "with_2d_quantization excludes"),
    (Case("dequantize", (32, 32), recipe="mxfp8", options=(("orientation", "both"),)), "no option orientation=both"),
    (Case("dequantize", (32, 32), recipe="mxfp8", options=(("layout", "offset"),)), "no option layout"),
    (Case("rmsnorm_bwd", (32, 32), recipe="mxfp8"), "rmsnorm_bwd takes no recipe but none"),
    (Case("rmsnorm_fwd", (32, 33), recipe="mxfp8"), "33 cols are no multiple of the block, 32"),
    (Case("rmsnorm_fwd", (32, 32), options=(("path", "fully_fused"),)), "without a recipe there is no path"),
    (Case("rmsnorm_fwd", (32, 32), "bf16", "fp8_current", (("path", "fully_fused"),)), "cannot take the path fully_"),
    (Case("rmsnorm_fwd", (32, 32), "bf16", "mxfp8", (("path", "fused_norm_amax_fp8"),)), "cannot take the path"),
    (Case("layernorm_fwd", (32, 32), "fp16", "nvfp4", (("with_rht", True),)), "with_rht needs bf16"),
    (Case("layernorm_bwd", (32, 32), options=(("path", "unfused"),)), "no option path"),
    (Case("rmsnorm_fwd", (32, 32), options=(("with_rht", True),)), "recipe none has no option with_rht"),
])
def test_what_a_function_does_not_take_is_told(case, words):
    with pytest.raises(ValueError, match=words):
        accepted(case)


def test_fewer_rows_keep_whole_blocks():
    both = (("orientation", "both"),)
    assert with_rows(Case("quantize", (96, 64), recipe="mxfp8", options=both), 33).shape == (32, 64)
    assert with_rows(Case("quantize", (96, 64), recipe="nvfp4", options=both), 1).shape == (16, 64)
    assert with_rows(Case("quantize", (96, 64), recipe="fp8_current", options=both), 33).shape == (33, 64)
