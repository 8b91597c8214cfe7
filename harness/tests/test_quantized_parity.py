"""Parity of quantized outputs: what is right passes, every cheat fails for its own reason, and figures are counted."""

import json
from dataclasses import replace

import pytest
import torch

import optimized
import reference
from harness import confirm, parity
from harness.cases import PIPELINES, Case, family_of, quantization
from harness.guards import poison
from harness.quantization_sweeps import quantize
from harness.rotation import duplicate
from harness.sweeps import edge, llm, smoke
from harness.tests import cheats, quantized_cheats
from harness.tests.quantized_cheats import CHEATS, case, honest, honest_back
from optimized.launch import allocator
from optimized.plan import H200
from optimized.quantization import plan_of
from reference import formats

QUANTIZED = [each for each in (*smoke(), *edge()) if each.recipe != "none" and each.function not in PIPELINES]
RECIPES = ("fp8_delayed", "fp8_current", "mxfp8", "nvfp4")


def call_of(asked, seed=0, values="normal"):
    return family_of(asked.function).make(asked, "cpu", seed, values)


def results(asked, call):
    return getattr(reference, asked.function)(*call.args)


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_honest_implementation_passes_with_every_flag(recipe):
    asked = case(recipe, orientation="both")
    verdict = parity.check(asked, honest, "cpu", allocator=cheats.allocator)
    assert verdict.ok, verdict.reason
    assert verdict.guards_ok and verdict.fully_written and verdict.inputs_unchanged and verdict.bitwise_repeatable
    trials = 3 + len(family_of("quantize").adversarial(asked))
    counts = verdict.counts["output"]
    rows = 33 if recipe.startswith("fp8") else 32
    assert counts.pop("codes") == 2 * 160 * (3 * 96 + (trials - 3) * rows)
    assert counts.pop("scales") > 0 and set(counts.values()) == {0}
    assert ("amax" in verdict.counts) == (recipe == "fp8_delayed")
    assert verdict.errors.keys() == {"output"} and verdict.errors["output"]["max"] > 0
    assert json.loads(json.dumps(verdict.to_dict()))["counts"]["output"]["code_mismatches"] == 0


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_honest_way_back_passes(recipe):
    verdict = parity.check(case(recipe, function="dequantize"), honest_back, "cpu", allocator=cheats.allocator)
    assert verdict.ok, verdict.reason
    assert verdict.counts["output"]["value_mismatches"] == 0 < verdict.counts["output"]["values"]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.__name__)
def test_a_cheat_fails_for_its_own_reason(cheat, device):
    asked, *words = CHEATS[cheat]
    verdict = parity.check(asked, cheat, device, allocator=cheats.allocator)
    assert not verdict.ok
    assert all(each in verdict.reason for each in words), verdict.reason


@pytest.mark.gpu
@pytest.mark.parametrize("asked", QUANTIZED, ids=lambda asked: asked.name)
def test_the_kernels_give_every_byte_of_the_reference(asked):
    function = getattr(optimized, asked.function)
    verdict = parity.check(asked, lambda call: function(*call.args, **call.kwargs), "cuda", allocator=allocator)
    assert verdict.ok, verdict.reason
    assert verdict.fully_written or not verdict.counts["output"].get("codes", verdict.counts["output"].get("values"))
    assert verdict.guards_ok and verdict.inputs_unchanged and verdict.bitwise_repeatable


def test_adversarial_values_take_the_kernel_that_is_timed():
    def kernel(asked):
        return plan_of("quantize", *family_of("quantize").make(asked, "meta", 0).args, chip=H200).kernel

    sweep = [asked for asked in (*QUANTIZED, *llm(), *quantize()) if asked.function == "quantize" and asked.rows]
    assert [asked.name for asked in sweep if kernel(asked) != kernel(parity.few_rows(asked))] == []


def test_counts_are_kept_of_what_fails():
    verdict = parity.check(case("mxfp8"), quantized_cheats.floors_e8m0, "cpu", allocator=cheats.allocator)
    assert verdict.counts["output"]["scale_mismatches"] > 0 and verdict.counts["output"]["apart"] > 0


@pytest.mark.parametrize("recipe, snr_db", [("fp8_delayed", 23), ("fp8_current", 31), ("mxfp8", 31), ("nvfp4", 20)])
def test_what_quantization_loses_is_measured(recipe, snr_db):
    verdict = parity.check(case(recipe, (64, 2048), orientation="both"), honest, "cpu", adversarial=False)
    for side in verdict.quantization["output"].values():
        assert side["snr_db"] == pytest.approx(snr_db, abs=1.5) and side["snr_db"] == side["reference_snr_db"]
        assert 0 < side["rms"] < side["max"] <= 1 and 0 <= side["flushed"] < 0.01


def test_a_wrong_reference_is_named(monkeypatch):
    right = reference.quantize

    def off(x, quantizer):
        tensor = right(x, quantizer)
        return replace(tensor, rowwise_data=(tensor.rowwise_data.view(torch.uint8) ^ 1).view(tensor.rowwise_data.dtype))

    monkeypatch.setattr(reference, "quantize", off)
    verdict = parity.check(case("mxfp8"), lambda call: reference.quantize(*call.args), "cpu")
    assert "output rowwise: the reference itself is off in" in verdict.reason


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_replayed_result_is_judged_like_any_other(recipe):
    asked = case(recipe, orientation="both")
    call = call_of(asked)
    made = results(asked, call)
    assert parity.after(asked, call, made) == ""
    poison(made)
    assert parity.after(asked, call, made).startswith("output rowwise")


def test_amax_is_judged_after_a_replay():
    asked = case("fp8_delayed")
    call, fresh = call_of(asked), call_of(asked)
    before = family_of("quantize").in_place(fresh)
    assert before["amax"].tolist() == [0.5]
    made = results(asked, call)
    assert parity.after(asked, call, made, before) == ""
    call.args[1].amax.fill_(0.5)
    assert "amax is [0.5]" in parity.after(asked, call, made, before)
    call.args[1].amax.fill_(2000.0)
    assert "amax is [2000.0]" in parity.after(asked, call, made, before)


def test_state_and_data_are_duplicated():
    asked = case("fp8_delayed")
    call = call_of(asked)
    copy = duplicate(call)
    assert call.args[1].amax.data_ptr() != copy.args[1].amax.data_ptr()
    assert copy.args[1].scale.data_ptr() + 8 == copy.args[1].amax.data_ptr(), "shared storage stays shared"
    results(asked, copy)
    assert call.args[1].amax.item() == 0.5 < copy.args[1].amax.item()
    back = case("mxfp8", function="dequantize")
    one, other = call_of(back), duplicate(call_of(back))
    assert len(one.tensors()) == 2
    assert torch.equal(results(back, one), results(back, other))


def test_state_between_trials_is_that_of_the_seed():
    seen = []

    def run(call):
        seen.append(call.args[1].amax.item())
        return reference.quantize(*call.args)

    assert parity.check(case("fp8_delayed"), run, "cpu", adversarial=False).ok
    assert seen == [0.5, 0.5, 1000.0, 1000.0, 0.5, 0.5]


def test_unknown_values_are_refused():
    with pytest.raises(ValueError, match="unknown kind of values 'dz_nan'"):
        call_of(case("mxfp8"), values="dz_nan")
    with pytest.raises(ValueError, match="quantize needs a recipe"):
        call_of(Case("quantize", (32, 32)))


def test_what_is_no_twin_has_the_allowance_of_what_is_fused():
    asked = case("mxfp8", (64, 96))

    def off_by_a_step(call):
        made = reference.quantize(*call.args)
        data = made.rowwise_data.clone().view(torch.uint8)
        data.view(-1)[(data.view(-1) & 0x7F == 0x38).nonzero()[0]] += 1
        return replace(made, rowwise_data=data.view(made.rowwise_data.dtype))

    assert "1 of 6144 codes differ" in parity.check(asked, off_by_a_step, "cpu", adversarial=False).reason
    verdict = parity.check(asked, off_by_a_step, "cpu", adversarial=False, twin=False)
    assert verdict.ok and verdict.counts["output"]["code_mismatches"] == 3


def test_another_scale_is_no_leave_for_other_rounding():
    """Values of which all are within a step, but half are not the nearest to what was quantized."""
    def truncates_under_another_scale(call):
        x, quantizer = call.args
        made = reference.quantize(x, quantizer)
        scale_inv = made.scale_inv * (1 + 2**-9)
        values = x.float() / scale_inv
        nearest = formats.encode_fp8(values, quantizer.dtype)
        data = nearest.view(torch.uint8) - (nearest.float().abs() > values.abs()).to(torch.uint8)
        return replace(made, scale_inv=scale_inv, rowwise_data=data.view(quantizer.dtype))

    asked = case("fp8_current", dtype="bf16")
    verdict = parity.check(asked, truncates_under_another_scale, "cpu", adversarial=False, twin=False)
    assert "of 15360 codes are not the nearest ones" in verdict.reason


@pytest.mark.parametrize("asked", [
    case("fp8_current", (70, 50), orientation="both"), case("mxfp8", orientation="both"),
    case("nvfp4", dtype="bf16", orientation="both", with_rht=True),
    case("nvfp4", function="dequantize", orientation="columnwise"),
    case("mxfp8", function="dequantize", orientation="columnwise"),
    case("fp8_delayed", (70, 50), function="dequantize"),
], ids=lambda asked: asked.name)
def test_stretches_of_rows_make_no_difference(asked, monkeypatch):
    def verdict():
        return parity.check(asked, lambda call: results(asked, call), "cpu", adversarial=False)

    whole = verdict()
    monkeypatch.setattr(quantization, "CHUNK", 500)
    call = call_of(asked)
    assert len(list(family_of(asked.function).expected(call))) == 3
    parts = verdict()
    assert whole.ok and parts.ok
    assert parts.errors["output"] == pytest.approx(whole.errors["output"])
    for name, side in whole.quantization.get("output", {}).items():
        assert parts.quantization["output"][name] == pytest.approx(side, rel=1e-4)


def test_stretches_hold_whole_blocks_and_about_a_chunk():
    assert [each.stop - each.start for each in quantization.stretches(1000, 1 << 18)] == [32] * 31 + [8]
    assert list(quantization.stretches(0, 64)) == [slice(0, 0)]


class Still:
    """A device on which everything has happened when it was issued."""

    def __getattr__(self, name):
        return lambda *args: None


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_graph_that_was_timed_is_confirmed_with_its_state(recipe):
    asked = case(recipe, orientation="both")
    call = call_of(asked)
    made = results(asked, call)

    def replay():
        for name, tensor in results(asked, call).tensors().items():
            made.tensors()[name].copy_(tensor)

    assert confirm.replayed(asked, call, Still(), replay, made) == ""
    assert confirm.called(asked, call, Still(), lambda call: results(asked, call)) == ""
    assert confirm.replayed(asked, call, Still(), lambda: None, made).startswith("output rowwise")


def test_a_timed_call_that_forgets_amax_is_seen():
    asked = case("fp8_delayed")
    call = call_of(asked)
    reason = confirm.called(asked, call, Still(), quantized_cheats.leaves_amax_as_it_was)
    assert "amax is [0.5], the reference's" in reason
