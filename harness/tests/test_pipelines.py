"""Cases of whole pipelines: what computes them, that it can be repeated, what rows and report say."""

import pytest
import torch

import reference
from harness import parity, pipeline_sweeps, pipelines, plots_pipelines
from harness.case_run import CaseRun
from harness.cases import Case, family_of
from harness.guards import same_bits
from harness.implementations import IMPLEMENTATIONS, suited
from harness.pipelines import ResidualBlock, function_of
from harness.tests import synthetic

RECIPES = tuple(pipelines.RECIPES)


def made(recipe="none", shape=(96, 64), seed=0):
    case = Case("residual_block", shape, "bf16", recipe)
    return case, family_of("residual_block").make(case, "cpu", seed)


def run(function, call):
    """Results of a call, the residual as it was afterwards."""
    held = call.args[1].clone()
    y, *gradients = function(*call.args, **call.kwargs)
    assert y is call.args[1] and not any(each.requires_grad for each in (y, *gradients))
    y = y.clone()
    call.args[1].copy_(held)
    return y, *gradients


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_call_can_be_repeated_and_given_other_tensors(recipe):
    """The state that a recipe keeps is settled at the first call; parameters are those of the call."""
    function, (_, one), (_, other) = ResidualBlock(reference), made(recipe), made(recipe, seed=5)
    first = run(function, one)
    between = run(function, other)
    assert all(map(same_bits, first, run(function, one))) and not same_bits(first[0], between[0])
    assert not function.pipeline.training and pipelines.lists(reference)["forward"][1] == (
        "ForwardLinearScaleAdd", ["BasicLinear", "ConstantScale", "AddExtraInput"])
    assert "BackwardLinearScale" in [name for name, _ in pipelines.lists(reference)["backward"]]
    if recipe == "fp8_delayed":
        scales = function.pipeline[1]._state.scale
        assert (scales != 1).all() and function.pipeline[1]._state.step == pipelines.SETTLING - 1


@pytest.mark.parametrize("recipe", RECIPES)
def test_values_of_an_earlier_call_leave_no_trace(recipe):
    case, function = Case("residual_block", (512, 256), "bf16", recipe), ResidualBlock(reference)
    verdict = parity.check(case, lambda call: function(*call.args, **call.kwargs), "cpu")
    assert verdict.ok, verdict.reason


def test_unfused_and_pytorch_give_the_same():
    case, call = made()
    fused = run(ResidualBlock(reference), call)
    for rival in (ResidualBlock(reference, fuse=False), function_of("eager")):
        for one, other in zip(fused, run(rival, call), strict=True):
            torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
    assert parity.check(case, lambda call: function_of("eager")(*call.args, **call.kwargs), "cpu", twin=False).ok


@pytest.mark.parametrize("harm", ["scale", "residual", "dgamma", "stale"])
def test_a_wrong_block_is_found_out(harm):
    case, block = made()[0], ResidualBlock(reference)
    last = []

    def wrong(call):
        x, residual, gamma, weight, dy, scale = call.args
        results = list(block(x, residual, gamma, weight, dy, scale * (1.05 if harm == "scale" else 1)))
        if harm == "residual":
            results[0].copy_(results[0] - 0.1 * dy)
        if harm == "dgamma":
            results[2] = results[2] * 1.1
        if harm == "stale":
            last.append([each.clone() for each in results[1:]])
            results[1:] = last[0]
        return tuple(results)

    if harm == "scale":
        block = lambda *args: ResidualBlock(reference)(*args)  # noqa: E731 - the factor belongs to the operations
    assert not parity.check(case, wrong, "cpu").ok


@pytest.mark.parametrize("shape, dtype, recipe, options, words", [
    ((96,), "bf16", "none", (), "shape of two"), ((0, 64), "bf16", "none", (), "shape of two"),
    ((96, 33), "bf16", "mxfp8", (), "multiples of 32"), ((33, 64), "bf16", "nvfp4", (), "multiples of 32"),
    ((96, 64), "fp16", "nvfp4", (), "must be bf16"), ((96, 64), "bf16", "none", (("eps", 1.0),), "no option eps"),
])
def test_cases_that_there_are_not(shape, dtype, recipe, options, words):
    with pytest.raises(ValueError, match=words):
        family_of("residual_block").check(Case("residual_block", shape, dtype, recipe, options))


def test_the_sweep_is_that_of_the_targets():
    shapes = {case.shape for case in pipeline_sweeps.pipelines() if case.recipe == "none" and case.dtype == "bf16"}
    assert shapes == {(tokens, hidden) for tokens in (2048, 4096, 8192, 16384) for hidden in (2048, 4096, 8192)}
    assert {case.recipe for case in pipeline_sweeps.pipelines()} == set(RECIPES)
    case, names = pipeline_sweeps.pipelines()[0], list(IMPLEMENTATIONS)
    assert suited(case, names, asked=True) == [name for name in names if name != "cublas"]
    assert suited(case, names, asked=False) == ["compiled", "optimized", "unfused", "eager"]


def test_rows_say_how_quantized_operands_are_multiplied():
    from harness.backend_cpu import Cpu

    for recipe, kernel in (("none", None), ("mxfp8", {"products": pipelines.NOTE})):
        case, _ = made(recipe)
        (row,) = CaseRun(case, Cpu(), {"seed": 0}).run(["reference"], timed=False)
        assert row["status"] == "OK", row["reason"]
        assert row["kernel"] == kernel


def test_the_report_draws_what_is_fused_and_compares(tmp_path):
    cases = {}
    for case in pipeline_sweeps.pipelines()[:2] + pipeline_sweeps.pipelines()[-3:-2]:
        row = synthetic.gpu_row(case, "optimized")
        times = {"optimized": 70.0, "unfused": 90.0, "compiled": 80.0, "eager": 100.0}
        cases[case.name] = {name: row | {"implementation": name, "graph_us": {"median": took}}
                            for name, took in times.items()}
    text = "\n".join(plots_pipelines.section(cases | {"other": {"optimized": {"function": "add"}}}, tmp_path, "here"))
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.{kind}" for name in plots_pipelines.TITLES
                                                         for kind in ("png", "svg")}
    assert "| 70.0 | 90.0 | 80.0 | 100.0 | 0.78 | 0.88 | 0.70 | OK |" in text and "| other |" not in text
    assert pipelines.NOTE in text and plots_pipelines.section({}, tmp_path, "here") == []


def test_a_pipeline_of_which_only_the_reference_was_timed_has_its_time():
    row = synthetic.gpu_row(pipeline_sweeps.pipelines()[0], "optimized", implementation="reference", device="cpu",
                            graph_us=None, warm_us={"median": 70.0})
    heading, _, line = plots_pipelines.table({"a": {"reference": row}})
    assert "| reference µs |" in heading and line == "| a |  |  |  |  | 70.0 |  |  |  | OK (reference) |"


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*(Case("residual_block", (512, 1024), "bf16", recipe) for recipe in RECIPES),
                                  *pipeline_sweeps.edge()], ids=lambda case: case.name)
def test_parity_on_a_gpu(case):
    from harness.tests.gpu import compile_ahead_of
    from optimized.launch import allocator

    compile_ahead_of(*(lambda name=name: IMPLEMENTATIONS[name].prepare(case, None)(
        family_of("residual_block").make(case, "cuda", 0)) for name in ("optimized", "unfused")))
    for name in ("optimized", "unfused", "eager", "compiled"):
        if case.recipe == "none" or name in ("optimized", "unfused"):
            function = IMPLEMENTATIONS[name].prepare(case, None)
            hook = allocator if name in ("optimized", "unfused") else None
            verdict = parity.check(case, function, "cuda", twin=name == "optimized", allocator=hook)
            assert verdict.ok, (name, verdict.reason)
