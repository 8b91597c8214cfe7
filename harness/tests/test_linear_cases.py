"""Cases of linear layers, their fusions and the pointwise operations: what the harness proves of them, and finds."""

from collections import Counter

import pytest
import torch

import optimized
import reference
from harness import audit, confirm, linear_sweeps, parity, schedule
from harness.cases import FAMILIES, Case, accepted, family_of, for_a_cpu, with_rows
from harness.cases.linear import SCALE, product
from harness.implementations import IMPLEMENTATIONS, suited
from harness.options import Options
from harness.rivals import CUBLAS, UNFUSED
from harness.tests.emulated import launched  # noqa: F401 - a fixture
from optimized.launch import allocator

EDGE = linear_sweeps.edge()
SMALL = [for_a_cpu(case, 1 << 16) for case in linear_sweeps.smoke()]


def call_of(case, seed=0):
    return family_of(case.function).make(case, "cpu", seed)


def results(case, call, package=reference):
    found = getattr(package, case.function)(*call.args, **call.kwargs)
    return found if isinstance(found, tuple) else (found,)


def case_of(function, shape=(33, 20, 24), dtype="bf16", **options):
    return accepted(Case(function, shape, dtype, options=tuple(options.items())))


@pytest.mark.parametrize("number", range(len(EDGE)), ids=lambda number: EDGE[number].name)
def test_edge_cases_are_sound(number):
    """The reference passes, adversarial values of every third case too; the audit agrees with the model of work."""
    case = EDGE[number]
    verdict = parity.check(case, lambda call: results(case, call), "cpu", seeds=(number,), adversarial=number % 3 == 0)
    assert verdict.ok, verdict.reason
    call = call_of(case)
    assert audit.audit(case, call, results(case, call))[1] == ""


@pytest.mark.parametrize("number", range(len(EDGE)), ids=lambda number: EDGE[number].name)
def test_launchers_pass(number, launched):
    """With poisoned outputs, guard bands and two runs."""
    case = EDGE[number]
    verdict = parity.check(case, lambda call: results(case, call, optimized), "cpu", seeds=(number,),
                           adversarial=number % 5 == 0, allocator=allocator)
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
@pytest.mark.parametrize("name", ("cublas", "unfused"))
def test_rivals_compute_the_same(case, name):
    one = IMPLEMENTATIONS[name]
    if case.function not in one.functions:
        assert name not in suited(case, list(IMPLEMENTATIONS), True)
        return
    call = call_of(case)
    verdict = parity.check(case, one.prepare(case, call), "cpu", twin=one.twin, adversarial=False)
    assert verdict.ok, verdict.reason


def test_beside_cublas_neither_reference_nor_copy_is_timed_unless_asked_for():
    names = ["reference", "compiled", "optimized", "cublas", "unfused", "copy"]
    fused, norm, pointwise = case_of("linear_scale_bwd"), Case("rmsnorm_fwd", (4, 8)), Case("add", (4, 8))
    assert suited(fused, names, False) == ["optimized", "cublas", "unfused"]
    assert suited(fused, names, True) == names
    assert suited(fused, ["reference", "optimized"], False) == ["reference", "optimized"]
    assert suited(norm, names, False) == ["reference", "compiled", "optimized", "copy"]
    assert suited(pointwise, names, False) == ["reference", "compiled", "optimized", "unfused", "copy"]
    assert set(CUBLAS) <= set(FAMILIES) and set(UNFUSED) <= set(FAMILIES)


def accumulating():
    yield case_of("linear_scale_add_fwd")
    yield case_of("linear_bwd", main_grad="fp32")
    yield case_of("linear_scale_bwd", main_grad="bf16", gradients="weight")
    yield case_of("add", (33, 20), in_place=True)


class Still:
    """A device on which everything has happened when it was issued."""

    def __getattr__(self, name):
        return lambda *args: None


@pytest.mark.parametrize("case", list(accumulating()), ids=lambda case: case.name)
def test_a_graph_that_updates_its_inputs_several_times_is_confirmed(case):
    call = call_of(case)
    made = results(case, call)

    def replay(times):
        for _ in range(times):
            fresh = results(case, call)
        for kept, new in zip(made, fresh):
            if kept is not None and kept.data_ptr() != new.data_ptr():
                kept.copy_(new)

    for times in (1, 3):
        assert confirm.replayed(case, call, Still(), lambda: replay(times), made, times=times) == ""
        assert confirm.replayed(case, call, Still(), lambda: replay(times + 1), made, times=times) != ""
    assert confirm.called(case, call, Still(), lambda call: results(case, call)) == ""


@pytest.mark.parametrize("times", (2, 21, 64))
@pytest.mark.parametrize("dtype", ("bf16", "fp16"))
def test_a_kernel_that_rounds_once_a_call_is_right_after_many(dtype, times):
    case = case_of("linear_scale_add_fwd", (64, 96, 128), dtype)
    call = call_of(case)
    x, w, residual, scale = call.args
    before = {"output": residual.clone()}
    for _ in range(times):
        residual.copy_(residual.float() + scale * (x.float() @ w.float().t()))
    assert parity.after(case, call, (residual,), before, times=times) == ""


def spoilt(case, call, change):
    made = results(case, call)
    change(made[-1])
    return made


@pytest.mark.parametrize("case", [
    case_of("linear_fwd"), case_of("linear_scale_add_fwd"), case_of("linear_scale_add_fwd", in_place=False),
    case_of("linear_bwd", main_grad="fp32"), case_of("linear_scale_bwd", dtype="fp32"), case_of("add", (33, 20)),
], ids=lambda case: case.name)
@pytest.mark.parametrize("change", [
    lambda output: output[-1].zero_(), lambda output: output[:, -1].mul_(1.02), lambda output: output.mul_(1.02),
    lambda output: output.copy_(output.to(torch.float8_e4m3fn)), lambda output: output[0, 0].fill_(float("nan")),
], ids=("a row missing", "the last column off", "all off", "too few bits", "a NaN"))
def test_what_is_wrong_is_found(case, change):
    verdict = parity.check(case, lambda call: spoilt(case, call, change), "cpu", adversarial=False)
    assert not verdict.ok and verdict.reason


def test_a_residual_that_is_not_written_is_found():
    case = case_of("linear_scale_add_fwd")

    def elsewhere(call):
        x, w, residual, scale = call.args
        return reference.linear_scale_add_fwd(x, w, residual, scale, in_place=False)

    assert not parity.check(case, elsewhere, "cpu", adversarial=False).ok


def test_an_accumulation_that_overwrites_is_found():
    case = case_of("linear_bwd", main_grad="fp32")

    def overwrites(call):
        options = call.kwargs | {"accumulate_into_grad_weight": False}
        return reference.linear_bwd(*call.args, **options)

    assert not parity.check(case, overwrites, "cpu", adversarial=False).ok


def test_a_fused_forward_that_rounds_more_often_than_the_composition_is_found():
    case = case_of("linear_scale_add_fwd", (128, 64, 64))

    def rounds_again(call):
        x, w, residual, scale = call.args
        product = reference.linear_fwd(x, w).mul_(scale)
        halves = product.clone().mul_(0.3), product.clone().mul_(0.7)
        residual.add_(halves[0]).add_(halves[1])
        return (residual,)

    verdict = parity.check(case, rounds_again, "cpu", adversarial=False)
    assert not verdict.ok and "the composition, which rounds more often" in verdict.reason
    assert parity.check(case, rounds_again, "cpu", adversarial=False, twin=False).ok, "what is no twin may"


@pytest.mark.parametrize("seed", (38, 111, 134))
def test_a_composition_that_rounds_an_operand_is_credible(seed, monkeypatch):
    """With values whose roundings add up as much as they do in one case of a hundred; but not with fewer bits."""
    case = case_of("linear_scale_bwd", (33, 3000, 72), gradients="weight", main_grad="fp32")
    right = reference.linear_scale_bwd

    def few_bits(dy, *args, **options):
        return right(dy.to(torch.float8_e4m3fn).to(dy.dtype), *args, **options)

    for function, credible in ((right, True), (few_bits, False)):
        monkeypatch.setattr(reference, "linear_scale_bwd", function)
        verdict = parity.check(case, lambda call: results(case, call), "cpu", seeds=(seed,), adversarial=False)
        assert verdict.ok == credible and ("the reference itself is off" in verdict.reason) != credible


def test_the_oracle_in_stretches_is_the_oracle(monkeypatch):
    backward = case_of("linear_scale_bwd", main_grad="fp32")
    for case in (case_of("linear_scale_add_fwd"), backward, case_of("add", (33, 20))):
        call = call_of(case)
        whole = family_of(case.function).oracle(call)
        monkeypatch.setattr("harness.cases.linear.CHUNK", 100)
        parts = family_of(case.function).oracle(call)
        monkeypatch.undo()
        assert len(list(family_of(case.function).expected(call))) < 5
        for name, value in whole.items():
            torch.testing.assert_close(parts[name], value, rtol=1e-12, atol=1e-12)


def test_the_oracle_is_the_function():
    x, w = torch.randn(3, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    found = product("output", slice(None), x, w.t(), SCALE, torch.ones(3, 4))
    torch.testing.assert_close(found.value, SCALE * torch.nn.functional.linear(x, w) + 1)
    assert found.unit.shape == (3, 1) and (found.unit >= found.value.abs().amax(1, keepdim=True)).all()


@pytest.mark.parametrize("case, words", [
    (Case("linear_fwd", (4, 8)), "a shape of three"), (Case("linear_fwd", (4, 8, 8), recipe="mxfp8"), "no recipe"),
    (Case("linear_fwd", (4, 8, 8), options=(("main_grad", "fp32"),)), "no option main_grad"),
    (Case("linear_bwd", (4, 8, 8), options=(("gradients", "input"), ("main_grad", "fp32"))), "adds nothing"),
    (Case("linear_bwd", (4, 8, 8), options=(("layout", "expanded"),)), "no layout expanded"),
    (Case("add", (4, 0)), "at least 1 element"),
    (Case("constant_scale", (4, 8), options=(("in_place", True),)), "no option"),
    (Case("add", (4, 8), options=(("layout", "expanded"), ("in_place", True))), "no expanded"),
], ids=lambda value: getattr(value, "name", value))
def test_cases_that_make_no_sense_are_refused(case, words):
    with pytest.raises(ValueError, match=words):
        accepted(case)


def test_a_product_keeps_its_other_sizes_when_rows_are_cut():
    assert with_rows(case_of("linear_fwd", (512, 96, 64)), 33).shape == (33, 96, 64)
    assert for_a_cpu(case_of("linear_fwd", (9000, 96, 8000)), 1 << 16).shape == (128, 96, 128)


def test_kinds_of_products_take_their_flops_and_their_rate():
    family = family_of("linear_bwd")
    assert family.work(case_of("linear_bwd", (3, 5, 7))).flops == 4 * 3 * 5 * 7
    assert family.work(case_of("linear_bwd", (3, 5, 7), gradients="input")).flops == 2 * 3 * 5 * 7
    assert family.work(case_of("linear_bwd", (3, 5, 7), "fp32")).operands == "fp32"
    slow, fast = (schedule.limit_us(case_of("linear_fwd", (4096, 4096, 4096), dtype)) for dtype in ("fp32", "bf16"))
    assert slow == pytest.approx(14 * fast)


def test_the_ci_profile_keeps_to_ten_minutes_by_what_is_reckoned():
    _, tasks = schedule.tasks(Options(profile="ci"))
    assert sum(task.about_s for task in tasks) <= 600
    assert Counter(task.case.function for task in tasks)["linear_fwd"] == 12
