"""The parity engine lets what is right pass, and fails each cheat for its own reason."""

import inspect
import json
from contextlib import contextmanager

import pytest
import torch

import reference
from harness import parity
from harness.cases import Call, Case, Expected, family_of
from harness.accuracy import Measure
from harness.guards import BAND_BYTES, Guarded, Inputs, poison, refill, unwritten_bytes
from harness.pipelines import named
from harness.sweeps import edge, smoke
from harness.tests import cheats

CASE = Case("rmsnorm_fwd", (32, 101))
ON_BOTH = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
SMALL_CASES = [case for case in (*smoke(), *edge()) if case.rows * case.hidden <= 1 << 14]


def run_reference(case):
    function = named(reference, case.function)
    return lambda call: function(*call.args, **call.kwargs)


@pytest.mark.parametrize("case", SMALL_CASES, ids=lambda case: case.name)
def test_every_reference_agrees_with_the_oracle(case):
    verdict = parity.check(case, run_reference(case), "cpu")
    assert verdict.ok, verdict.reason
    assert set(verdict.errors) == {name for name in family_of(case.function).outputs if name}


@ON_BOTH
def test_an_honest_implementation_passes_with_every_flag(device):
    verdict = parity.check(CASE, cheats.honest, device, allocator=cheats.allocator)
    assert verdict.ok, verdict.reason
    assert verdict.guards_ok and verdict.fully_written
    assert verdict.inputs_unchanged and verdict.bitwise_repeatable
    assert verdict.seeds == len(parity.SEEDS)
    assert verdict.errors["y"]["max"] == verdict.errors["y"]["reference_max"] > 0
    assert json.loads(json.dumps(verdict.to_dict()))["ok"] is True


@ON_BOTH
@pytest.mark.parametrize("cheat", cheats.CHEATS, ids=lambda cheat: cheat.__name__)
def test_a_cheat_fails_for_its_own_reason(cheat, device):
    run = cheat() if inspect.isclass(cheat) else cheat
    verdict = parity.check(CASE, run, device, allocator=cheats.allocator)
    assert not verdict.ok
    assert cheats.CHEATS[cheat] in verdict.reason


@ON_BOTH
@pytest.mark.parametrize("cheat", [cheats.CachesByPointer, cheats.ReturnsThePreviousResult])
def test_a_stale_result_fails_without_a_hook_too(cheat, device):
    verdict = parity.check(CASE, cheat(), device)
    assert not verdict.ok and verdict.guards_ok is None and verdict.fully_written is None


def test_a_failure_says_in_which_trial_it_happened():
    assert parity.check(CASE, cheats.leaves_nan, "cpu").reason.endswith("(seed 0)")
    assert parity.check(CASE, cheats.hides_nan, "cpu").reason.endswith("(nan)")
    assert parity.check(CASE, cheats.hides_nan, "cpu", adversarial=False).ok


def test_zero_centering_left_out_fails():
    case = Case("rmsnorm_fwd", (8, 64), options=(("zero_centered_gamma", True),))
    assert not parity.check(case, lambda call: reference.rmsnorm_fwd(*call.args), "cpu").ok


def test_eps_left_out_fails():
    case = next(case for case in edge() if case.function == CASE.function and case.option("eps"))
    verdict = parity.check(case, cheats.knows_the_usual_eps, "cpu", allocator=cheats.allocator)
    assert "error max" in verdict.reason


@pytest.mark.parametrize("function", ["layernorm_fwd", "rmsnorm_fwd"])
def test_edge_has_an_eps_that_shows(function):
    assert any(case.option("eps", 1e-5) >= 0.1 for case in edge() if case.function == function)


def test_strides_ignored_fails():
    case = Case("rmsnorm_bwd", (8, 64), options=(("layout", "strided"),))

    def run(call):
        packed = [torch.as_strided(each, each.shape, torch.empty(each.shape).stride()) for each in call.args]
        return reference.rmsnorm_bwd(*packed, **call.kwargs)

    assert not parity.check(case, run, "cpu").ok


def test_a_wrong_reference_is_named(monkeypatch):
    def off(*args, **kwargs):
        y, none, rsigma = right(*args, **kwargs)
        return y * 1.05, none, rsigma

    right = reference.rmsnorm_fwd
    monkeypatch.setattr(reference, "rmsnorm_fwd", off)
    verdict = parity.check(CASE, run_reference(CASE), "cpu")
    assert "y: the reference itself is off" in verdict.reason


def test_a_replayed_result_is_judged_like_any_other():
    call = family_of(CASE.function).make(CASE, "cpu", 0)
    results = reference.rmsnorm_fwd(*call.args)
    assert parity.after(CASE, call, results) == ""
    poison(results)
    assert "NaN" in parity.after(CASE, call, results)
    other = family_of(CASE.function).make(CASE, "cpu", 1)
    assert "error" in parity.after(CASE, call, reference.rmsnorm_fwd(*other.args))


def test_an_exception_of_the_function_is_not_swallowed():
    def run(call):
        raise RuntimeError("sticky")

    with pytest.raises(RuntimeError, match="sticky"):
        parity.check(CASE, run, "cpu")


@pytest.mark.parametrize("shape", [(3, 5), (1,), (0, 7), (1000,)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8])
def test_guarded_memory_is_aligned_poisoned_and_watched(shape, dtype):
    guard = Guarded(0xFF)
    tensor = guard.allocate(shape, dtype, "cpu")
    assert tensor.shape == shape and tensor.dtype == dtype and tensor.is_contiguous()
    assert tensor.data_ptr() % BAND_BYTES == 0
    assert (tensor.flatten().view(torch.uint8) == 0xFF).all()
    assert guard.owns(tensor) and not guard.owns(torch.empty(4)) and guard.intact()
    tensor.as_strided((1,), (1,), tensor.storage_offset() + tensor.numel()).fill_(0)
    assert not guard.intact()


def test_bytes_that_kept_both_poisons_are_counted():
    ones = torch.tensor([-1, 5, -1], dtype=torch.int32)
    zeros = torch.tensor([0, 5, 255], dtype=torch.int32)
    assert unwritten_bytes(ones, zeros) == 4 + 3


def test_a_change_between_strided_elements_is_seen():
    wide = torch.randn(4, 16)
    call = Call((wide[:, 2:8],), {})
    inputs = Inputs(call)
    assert inputs.unchanged()
    wide[0, 0] = 1
    assert not inputs.unchanged()


@pytest.mark.parametrize("layout", ["contiguous", "strided", "offset", "expanded", "transposed"])
def test_refilled_inputs_keep_their_addresses(layout):
    case = Case("rmsnorm_bwd_add", (6, 40), options=(("layout", layout),))
    first, second = (family_of(case.function).make(case, "cpu", seed) for seed in (0, 1))
    addresses = [tensor.data_ptr() for tensor in first.tensors()]
    refill(first, second)
    assert [tensor.data_ptr() for tensor in first.tensors()] == addresses
    assert all(torch.equal(one, other) for one, other in zip(first.tensors(), second.tensors()))


def measured(found, oracle, dtype, unit=1.0):
    measure = Measure(dtype)
    oracle = torch.tensor(oracle, dtype=torch.float64)
    unit = torch.full_like(oracle, unit)
    measure.add(torch.tensor(found, dtype=dtype), Expected("y", slice(None), oracle, unit))
    return measure.result()


def test_errors_are_in_units_with_one_ulp_allowed():
    accuracy = measured([1.0, 2.5], [1.0, 2.0], torch.float32, unit=2.0)
    assert accuracy.max == 0.25 and accuracy.rms == pytest.approx(0.25 / 2**0.5)
    assert accuracy.excess == 0.25 - 2**-23 and accuracy.ulp == 2**-23
    assert accuracy.within(0.25, 0.25) and not accuracy.within(0.2, 0.25) and not accuracy.within(0.25, 0.1)


def test_an_overflow_may_round_either_way_only_near_the_largest_value():
    inf = float("inf")
    assert measured([inf], [65519.0], torch.float16, unit=65504.0).excess <= 0
    far = measured([inf], [100.0], torch.float16, unit=100.0)
    assert far.stray == 1 and far.max > 600
    assert measured([-inf], [inf], torch.float16).misplaced == 1
    assert measured([inf], [inf], torch.float16).misplaced == 0


def test_an_exact_zero_has_the_smallest_number_as_its_unit():
    assert measured([0.0], [0.0], torch.bfloat16, unit=0.0).max == 0
    assert measured([1e-30], [0.0], torch.bfloat16, unit=0.0).excess > 0


def test_the_hook_is_given_back_after_a_failure():
    @contextmanager
    def allocator(function):
        with cheats.allocator(function):
            yield

    parity.check(CASE, cheats.does_nothing, "cpu", allocator=allocator)
    assert cheats._allocate is None
