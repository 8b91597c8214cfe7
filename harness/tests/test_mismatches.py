"""Codes, scales and amax counted against the reference's: what a fused cast is allowed, and no more; and distortion."""

from dataclasses import replace

import pytest
import torch

import reference
from harness.cases import EXACT, FUSED, Expected
from harness.distortion import Distortions
from harness.mismatches import COUNTED, Comparison
from harness.quantized import flattened, largest, sides, spacing, table
from reference import formats
from reference.quantizers import (
    Float8CurrentScalingQuantizer, Float8Quantizer, MXFP8Quantizer, NVFP4Quantizer
)

SHAPE = (128, 512)
QUANTIZERS = {
    "fp8": Float8CurrentScalingQuantizer(columnwise=True), "mxfp8": MXFP8Quantizer(columnwise=True),
    "nvfp4": NVFP4Quantizer(columnwise=True),
}


def values(seed=0):
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)).bfloat16()


def tensor(kind, x=None):
    return reference.quantize(values() if x is None else x, QUANTIZERS[kind])


def compared(found, wanted, allowance=FUSED):
    return Comparison("y", allowance).tensors(found, wanted)


def changed(of, field, change):
    """The tensor with bytes of a field changed in place by `change`, in a copy."""
    copy = getattr(of, field).clone()
    change(copy if copy.element_size() > 1 else copy.view(torch.uint8))
    return replace(of, **{field: copy})


def step(kind, count, steps=1):
    """The first `count` codes whose magnitude is neither zero nor near the largest, `steps` up: 1 in E2M1's low nibble,
    anything in FP8."""
    def change(data):
        view = data.view(-1)
        suitable = view & 0x0F == 1 if kind == "nvfp4" else ((view & 0x7F) > 0) & ((view & 0x7F) < 0x70)
        view[suitable.nonzero().flatten()[:count]] += steps
    return change


@pytest.mark.parametrize("allowance", [EXACT, FUSED])
@pytest.mark.parametrize("kind", QUANTIZERS)
def test_equal_tensors_count_no_mismatch(kind, allowance):
    comparison = compared(tensor(kind), tensor(kind), allowance)
    blocks = {"fp8": 1, "mxfp8": SHAPE[0] * SHAPE[1] // 32, "nvfp4": SHAPE[0] * SHAPE[1] // 16}[kind]
    assert comparison.reason == "" and comparison.counts == dict.fromkeys(COUNTED, 0) | {
        "codes": 2 * SHAPE[0] * SHAPE[1], "scales": 2 * blocks}


@pytest.mark.parametrize("kind", QUANTIZERS)
def test_one_code_in_a_thousand_may_be_a_step_off(kind):
    wanted = tensor(kind)
    most = SHAPE[0] * SHAPE[1] // 1000
    allowed = changed(wanted, "rowwise_data", step(kind, most))
    comparison = compared(allowed, wanted)
    assert comparison.reason == "" and comparison.counts["code_mismatches"] == most
    assert f"y rowwise: {most} of " in compared(allowed, wanted, EXACT).reason
    above = compared(changed(wanted, "rowwise_data", step(kind, most + 1)), wanted)
    assert f"{most + 1} of 65536 codes differ" in above.reason and "one step in 0.1% of codes" in above.reason


@pytest.mark.parametrize("kind", QUANTIZERS)
def test_a_code_two_steps_off_is_too_far(kind):
    wanted = tensor(kind)
    found = changed(wanted, "columnwise_data", step(kind, 1, 2))
    assert "by up to 2 steps" in compared(found, wanted).reason


def test_the_largest_code_is_no_neighbour_of_nan():
    wanted = tensor("fp8")

    def change(data):
        data.view(-1)[(data.view(-1) == 0x7E).nonzero()[0]] = 0x7F
    assert (wanted.rowwise_data.view(torch.uint8) == 0x7E).any()
    assert "NaN lost or made" in compared(changed(wanted, "rowwise_data", change), wanted).reason


def test_zeros_of_both_signs_are_no_step_apart_but_other_bytes():
    wanted = tensor("mxfp8", torch.zeros(SHAPE))
    found = changed(wanted, "rowwise_data", lambda data: data.view(-1)[:5].fill_(0x80))
    assert compared(found, wanted).counts["code_mismatches"] == 5 and compared(found, wanted).reason == ""
    assert "by up to 0 steps" in compared(found, wanted, EXACT).reason


def rescaled(kind, blocks, steps):
    """Two tensors of one input, one of which has the scales of its first blocks `steps` larger."""
    x, wanted = values(), tensor(kind)
    scales = wanted.rowwise_scale_inv.clone()
    flat = scales.view(torch.uint8)[: SHAPE[0], : SHAPE[1] // wanted._block]
    picked = torch.zeros_like(flat, dtype=torch.bool)
    picked.view(-1)[:blocks] = True
    flat[picked] += steps
    found = replace(wanted, rowwise_scale_inv=scales)
    side = sides(found)["rowwise"]
    exact = x.double() / side.units()
    if kind == "nvfp4":
        return replace(found, rowwise_data=formats.pack_e2m1(formats.encode_e2m1(exact.float()))), wanted
    return replace(found, rowwise_data=formats.encode_fp8(exact.float(), formats.E4M3)), wanted


@pytest.mark.parametrize("kind", ["mxfp8", "nvfp4"])
def test_one_scale_in_a_thousand_may_be_a_step_off_with_its_codes(kind):
    block = 32 if kind == "mxfp8" else 16
    most = SHAPE[0] * SHAPE[1] // block // 1000
    comparison = compared(*rescaled(kind, most, 1))
    assert comparison.reason == "" and comparison.counts["scale_mismatches"] == most
    assert comparison.counts["apart"] == most * block and comparison.counts["code_mismatches"] == 0
    assert f"{most + 1} of" in compared(*rescaled(kind, most + 1, 1)).reason
    assert "by up to 2 steps" in compared(*rescaled(kind, 1, 2)).reason
    assert "scales differ" in compared(*rescaled(kind, 1, 1), EXACT).reason


def test_codes_under_another_scale_must_stand_for_the_same_values():
    found, wanted = rescaled("mxfp8", 1, 1)
    wrong = replace(found, rowwise_data=wanted.rowwise_data)
    assert "values under other scales are more than a step off" in compared(wrong, wanted).reason


def test_a_scale_is_no_neighbour_of_nan():
    wanted = tensor("mxfp8")
    last = changed(wanted, "rowwise_scale_inv", lambda data: data[0, :1].fill_(254))
    nan = changed(wanted, "rowwise_scale_inv", lambda data: data[0, :1].fill_(255))
    assert "NaN lost or made" in compared(nan, last).reason


@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
def test_the_amax_of_a_tensor_may_be_one_ulp_of_the_activations_off(kind):
    x = values()
    where = x.abs().argmax()
    for steps, fine in ((1, True), (3, False)):
        other = x.clone()
        other.view(-1)[where].view(torch.int16).add_(steps)
        comparison = compared(tensor(kind, other), tensor(kind, x))
        assert (comparison.reason == "") == fine, comparison.reason
        if fine:
            assert comparison.counts["apart"] == comparison.counts["codes"]
            assert comparison.counts["scale_mismatches" if kind == "fp8" else "amax_mismatches"] >= 2
        assert compared(tensor(kind, other), tensor(kind, x), EXACT).reason


@pytest.mark.parametrize("allowance, fine", [(FUSED, True), (EXACT, False)])
def test_an_accumulated_amax_counts_as_one(allowance, fine):
    one, near = torch.tensor([1.0]), torch.tensor([1 + 2.0**-8])
    comparison = Comparison("amax", allowance).amax(near, one, torch.bfloat16)
    assert (comparison.reason == "") == fine and comparison.counts == {"amax_mismatches": 1}
    assert Comparison("amax", allowance).amax(torch.tensor([1.1]), one, torch.bfloat16).reason
    nan = torch.tensor([0x7FFFFFFF], dtype=torch.int32).view(torch.float32)
    assert Comparison("amax", allowance).amax(nan, torch.tensor([float("nan")]), torch.bfloat16).reason == ""
    assert Comparison("amax", allowance).amax(nan, one, torch.bfloat16).reason


def test_padding_that_is_not_zero_is_never_allowed():
    x = values()[:100]
    wanted = tensor("mxfp8", x[:96])
    found = changed(wanted, "rowwise_scale_inv", lambda data: data[96:, 3].fill_(1))
    assert compared(found, wanted).counts["padding"] == 32
    assert "32 bytes of the scales' padding are not 0" in compared(found, wanted).reason


def test_values_compare_as_bits_with_nan_for_nan():
    nan = torch.tensor([0x7FFF], dtype=torch.int16).view(torch.bfloat16)
    ours, theirs = torch.cat((nan, torch.ones(1).bfloat16())), torch.tensor([float("nan"), 1.0]).bfloat16()
    assert Comparison("y", EXACT).values(ours, theirs).reason == ""
    zero = Comparison("y", EXACT).values(torch.tensor([-0.0]), torch.tensor([0.0]))
    assert zero.reason.startswith("y: 1 of 1 values differ") and zero.counts == {"values": 1, "value_mismatches": 1}


@pytest.mark.parametrize("name, dtype", [("e4m3", "float8_e4m3fn"), ("e5m2", "float8_e5m2"), ("e2m1", "float4_e2m1fn")])
def test_tables_are_those_of_an_independent_library(name, dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    numpy = pytest.importorskip("numpy")
    found = table(name, torch.device("cpu"))
    wanted = numpy.arange(len(found), dtype=numpy.uint8).view(getattr(ml_dtypes, dtype)).astype(numpy.float64)
    assert numpy.array_equal(found.numpy(), wanted, equal_nan=True)
    assert largest(name) == float(ml_dtypes.finfo(getattr(ml_dtypes, dtype)).max)
    finite = found[found.isfinite() & ~found.signbit()]
    steps = spacing(finite[:-1], name)
    assert torch.equal(finite[1:] - finite[:-1], steps)


@pytest.mark.parametrize("name", QUANTIZERS)
def test_sides_decode_what_dequantize_does(name):
    made = tensor(name)
    for orientation, side in sides(made).items():
        other = "columnwise" if orientation == "rowwise" else "rowwise"
        alone = replace(made, **{field: None for field in made.tensors() if field.startswith(other)})
        rows = side.values() if orientation == "rowwise" else side.values().t()
        torch.testing.assert_close(rows.float(), alone.dequantize(torch.float32), rtol=1e-6, atol=0)
        where = slice(32, 96)
        part = side.part(where, orientation).values()
        assert torch.equal(part if orientation == "rowwise" else part.t(), rows[where])
    assert set(flattened("y", made)) == {f"y.{field}" for field in made.tensors()}


def distortion(made, x, quantizer):
    found = Distortions(made, quantizer)
    for start in range(0, len(x), 64):
        rows = x[start:start + 64].double()
        found.add(Expected("y", slice(start, start + 64), rows, rows.abs().amax(-1, keepdim=True)))
    return found.result()


def test_distortion_is_what_its_words_say():
    x, quantizer = values().float(), Float8Quantizer(torch.ones(1), torch.zeros(1))
    x[0, :32] = 1e-9
    x[64:96] = 0.0
    made = reference.quantize(x, quantizer)
    error = made.dequantize(torch.float32).double() - x.double()
    unit = x.double().abs().amax(-1, keepdim=True).clamp(min=1e-38)
    found = distortion(made, x, quantizer)["rowwise"]
    assert found["max"] == pytest.approx((error.abs() / unit).max().item())
    assert found["rms"] == pytest.approx((error / unit).square().mean().sqrt().item())
    assert found["snr_db"] == pytest.approx(10 * (x.double().square().sum() / error.square().sum()).log10().item())
    assert found["flushed"] == 1 / (SHAPE[0] * SHAPE[1] // 32) and found["unexplained"] == 0


@pytest.mark.parametrize("kind", QUANTIZERS)
def test_stretches_give_the_same_distortion_as_the_whole(kind):
    x, made = values(), tensor(kind)
    whole = Distortions(made, QUANTIZERS[kind])
    whole.add(Expected("y", slice(0, len(x)), x.double(), x.double().abs().amax(-1, keepdim=True)))
    for side, figures in distortion(made, x, QUANTIZERS[kind]).items():
        assert figures == pytest.approx(whole.result()[side])


@pytest.mark.parametrize("kind", QUANTIZERS)
def test_a_code_that_is_not_nearest_is_unexplained(kind):
    wanted = tensor(kind)
    made = changed(wanted, "columnwise_data", step(kind, 3))
    found = distortion(made, values(), QUANTIZERS[kind])
    assert found["rowwise"]["unexplained"] == 0 < found["columnwise"]["unexplained"] <= 3


def test_a_lost_nan_is_unexplained():
    x = values()
    x[3, 5] = float("nan")
    made = reference.quantize(values(), Float8Quantizer(torch.ones(1), torch.zeros(1)))
    assert distortion(made, x, None)["rowwise"]["unexplained"] == 1


@pytest.mark.parametrize("options", [{"with_rht": True}, {"stochastic_rounding": True},
                                     {"with_rht": True, "stochastic_rounding": True}, {"with_2d_quantization": True}])
def test_options_of_nvfp4_are_explained_only_when_they_are_known(options):
    quantizer = NVFP4Quantizer(columnwise=True, **options)
    made = reference.quantize(values(), quantizer)
    assert all(side["unexplained"] == 0 for side in distortion(made, values(), quantizer).values())
    blind = distortion(made, values(), QUANTIZERS["nvfp4"])["columnwise"]
    assert (blind["unexplained"] == 0) == ("with_2d_quantization" in options)
