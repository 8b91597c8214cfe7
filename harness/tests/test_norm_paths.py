"""Which path a norm with a quantizer takes, and the plans of the fused ones: pure, legal for every shape and chip."""

import threading
from dataclasses import replace

import pytest
import torch

from harness.tests.quantize_cases import E5M2, recipes
from harness.tests.test_plan import CHIPS, H200, SM_80, SM_120, check, chips, forward_problems, margins, quick
from optimized import norm_quantize_plan as plans
from optimized.norm_forward import path_of
from optimized.norm_quantize_plan import Path, choose, in_two_passes, of_norm, refusal, rows_of, slabs
from optimized.normalization import forced_path, plan_of
from optimized.plan import SIZES
from optimized.quantize_plan import THREADS, Work
from reference.quantizers import Float8CurrentScalingQuantizer, Float8Quantizer, MXFP8Quantizer, NVFP4Quantizer

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")
given, st = hypothesis.given, hypothesis.strategies

DELAYED, CURRENT = Float8Quantizer(torch.ones(1), torch.zeros(1)), Float8CurrentScalingQuantizer()
MX, NV, ROTATED = MXFP8Quantizer(), NVFP4Quantizer(), NVFP4Quantizer(with_rht=True, columnwise=True)
ROWWISE = NVFP4Quantizer(with_rht=True)  # which no transform touches
CHOSEN = {
    None: Path.FULLY_FUSED, DELAYED: Path.FULLY_FUSED, MX: Path.FULLY_FUSED, CURRENT: Path.FUSED_NORM_AMAX_FP8,
    NV: Path.FUSED_NORM_AMAX_NVFP4, ROWWISE: Path.FUSED_NORM_AMAX_NVFP4, ROTATED: Path.UNFUSED,
}
SCHEMES = (("Fp8", "E4M3", "Delayed"), ("Fp8", "E5M2", "Current"), ("Mxfp8", "E4M3"), ("Nvfp4", "Nearest", "Lines"),
           ("Nvfp4", "Nearest", "Squares"), ("Nvfp4", "Stochastic", "Lines"))


def planned(quantizer, shape=(256, 512), dtype=torch.bfloat16, chip=H200, function="rmsnorm_fwd", **options):
    x, weight = (torch.empty(size, dtype=dtype, device="meta") for size in (shape, shape[-1:]))
    bias = (None,) if function == "layernorm_fwd" else ()
    return plan_of(function, x, weight, *bias, 1e-5, quantizer, chip=chip, **options)


def test_the_recipe_chooses():
    assert {quantizer: choose(quantizer) for quantizer in CHOSEN} == CHOSEN


def test_amax_and_cast_can_be_two_launches():
    """Of the same grid, since the second reads what each CTA of the first has seen."""
    with forced_path(None, in_two=True):
        assert planned(CURRENT).kernel.startswith("quantize_normed<Fp8<Later<NormedRowTile<")
        assert planned(NV).kernel.startswith("quantize_normed<Nvfp4<Later<") and not planned(NV).cooperative
        assert planned(MX).source == "norm_forward.cu"
    assert planned(CURRENT).kernel.startswith("norm_current<")
    assert planned(Float8CurrentScalingQuantizer(columnwise=True)).kernel.startswith("norm_quantize<")


def test_what_can_be_forced():
    """The chosen path, and UNFUSED where there is a quantizer; nothing else."""
    for quantizer, chosen in CHOSEN.items():
        possible = {chosen} | ({Path.UNFUSED} if quantizer is not None else set())
        assert {path for path in Path if not refusal(path, quantizer)} == possible


@pytest.mark.parametrize("path, quantizer, words", [
    (Path.FULLY_FUSED, CURRENT, ("FULLY_FUSED", "no amax of the whole tensor", "Float8CurrentScalingQuantizer")),
    (Path.FUSED_NORM_AMAX_FP8, MX, ("FUSED_NORM_AMAX_FP8", "FP8 with current scaling", "MXFP8Quantizer")),
    (Path.FUSED_NORM_AMAX_NVFP4, ROTATED, ("FUSED_NORM_AMAX_NVFP4", "Hadamard")),
    (Path.UNFUSED, None, ("UNFUSED", "no quantizer")),
])
def test_forcing_an_impossible_path_says_why(path, quantizer, words):
    with forced_path(path), pytest.raises(ValueError) as caught:
        planned(quantizer)
    assert [word for word in ("rmsnorm_fwd: ", *words) if word not in str(caught.value)] == []


def test_a_forced_path_holds_inside_alone_and_in_its_own_thread():
    seen = []
    with forced_path(Path.UNFUSED):
        with forced_path(None):
            assert path_of("f", MX) is Path.FULLY_FUSED
        assert path_of("f", MX) is Path.UNFUSED
        thread = threading.Thread(target=lambda: seen.append(path_of("f", MX)))
        thread.start()
        thread.join()
    assert path_of("f", MX) is Path.FULLY_FUSED and seen == [Path.FULLY_FUSED]
    with pytest.raises(ValueError), forced_path(Path.FUSED_NORM_AMAX_FP8):
        path_of("f", MX)
    assert path_of("f", MX) is Path.FULLY_FUSED
    with pytest.raises(TypeError, match="str"), forced_path("unfused"):
        pass


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.arch)
def test_one_launch_on_every_shape_that_blocks_allow(chip):
    """Of every recipe; rowwise data of delayed scaling and MXFP8 straight from the chip that holds the row."""
    for recipe in recipes():
        quantizer = recipe.make("meta")
        for shape in ((32, 32), (96, 4096), (32, 5120), (64, 32768), (32, 300_000)):
            if choose(quantizer) is Path.UNFUSED or not recipe.takes(shape, torch.bfloat16):
                continue
            plan = planned(quantizer, shape, chip=chip)
            held = isinstance(quantizer, Float8Quantizer | MXFP8Quantizer) and not recipe.columnwise and (
                shape[1] <= (5120 if chip.sms < 132 else 32768))
            assert not held or plan.source in ("norm_forward.cu", "norm_shared.cu")
            assert plan.cooperative == (plan.source in ("norm_quantize.cu", "norm_current.cu"))


def test_unfused_is_the_plan_of_the_norm():
    """Delayed scaling casts the float32 y, which then is what lies between the launches."""
    delayed = Float8Quantizer(torch.ones(1, device="meta"), torch.zeros(1, device="meta"))
    with forced_path(Path.UNFUSED):
        assert planned(MX) == planned(CURRENT) == planned(NV)
        assert "Store<bf16>" in planned(MX).kernel and "Store<f32>" in planned(delayed).kernel
    assert planned(ROTATED).kernel == planned(None).kernel and planned(ROWWISE) == planned(NV)


@quick
@given(forward_problems(), chips)
def test_rows_fit_into_their_threads(problem, chip):
    rows = rows_of(problem)
    assert rows == rows_of(problem) and THREADS % rows.threads == 0
    if rows.policy.startswith("Walked"):
        assert rows.threads == THREADS
        return
    vector, vectors = map(int, rows.policy.split(", ")[3:5])
    assert vector == problem.vector and rows.threads * vector * vectors >= problem.cols
    assert vector * vectors * SIZES[problem.x] <= plans.MOST_BYTES_HELD
    assert ("Whole" in rows.policy) <= (rows.threads * vector * vectors == problem.cols)


@quick
@given(forward_problems(), chips, margins)
def test_by_rows(problem, chip, sm_margin):
    plan = plans.by_rows(problem, "E4M3", chip, sm_margin)
    if plan is None:
        return
    limit, threads = map(int, plan.kernel.split(", ")[-3:-1])
    assert plan.cooperative and plan.cluster == 1 and plan.row_threads <= limit and plan.block % 32 == 0
    assert 1 <= plan.grid <= max(1, chip.sms - sm_margin) and plan.block <= threads <= 1024, "all must run at once"
    assert plan.workspace_bytes == 4 * plan.grid and plan.shared_bytes == plan.stages * plan.stage_bytes
    assert plan.shared_bytes <= 0.6 * chip.shared_bytes
    slots = plan.block // plan.row_threads
    assert plan.row_threads <= 32 or slots <= 15, "there are named barriers for 15"
    assert plan.stages <= max(1, -(-problem.rows // (plan.grid * slots))) and plan.stage_bytes % 16 == 0
    assert plans.by_rows(replace(problem, rows=5), "E4M3", chip).kernel == plan.kernel


@st.composite
def works(draw):
    problem, scheme = draw(forward_problems()), draw(st.sampled_from(SCHEMES))
    columns = draw(st.booleans()) or scheme[-1] == "Squares"
    work = Work(scheme, problem.x, problem.rows, problem.cols, tiles=columns or draw(st.booleans()), columns=columns)
    return problem, of_norm(work, draw(st.booleans()))


@quick
@given(works(), chips, margins)
def test_two_passes(pair, chip, sm_margin):
    problem, work = pair
    plan = in_two_passes(problem, work, chip, sm_margin)
    assert plan == in_two_passes(problem, work, chip, sm_margin)
    assert plan.cooperative and plan.block == THREADS and plan.cluster == 1
    ctas = int(plan.kernel.removesuffix(">").rsplit(", ", 1)[1])
    assert 1 <= plan.grid <= ctas * max(1, chip.sms - sm_margin), "all must run at once"
    assert plan.workspace_bytes == (4 * plan.grid if work.twice else 0)
    assert ("f32, Whole" in plan.kernel or "f32, Ragged" in plan.kernel) >= (work.scheme[-1] == "Delayed")
    assert not work.flat and (work.columns <= work.tiles)


def mostly(usual, other):
    return st.sampled_from((usual,) * 9 + (other,))


@st.composite
def slab_works(draw):
    """Mostly what slabs are for, on chips that have them; also what they just are not for, and any work."""
    problem, work = draw(works())
    if not draw(mostly(True, False)):
        return problem, work, draw(chips)
    cols = draw(mostly(64, 32)) * draw(st.integers(1, {2: 900, 4: 450}[SIZES[problem.x]]))
    work = replace(work, scheme=draw(st.sampled_from((SCHEMES[0], SCHEMES[2]))), cols=cols, tiles=True, columns=True)
    work, chip = of_norm(work, draw(mostly(True, False))), draw(st.sampled_from((H200, SM_120) * 4 + CHIPS))
    return replace(problem, cols=cols), work, chip


@quick
@given(slab_works(), margins)
def test_slabs(asked, sm_margin):
    problem, work, chip = asked
    plan = slabs(problem, work, chip, sm_margin)
    takes = (chip.is_hopper_or_later and work.columns and work.whole and not work.twice and problem.cols % 64 == 0)
    size, params = SIZES[problem.x], SIZES[problem.gamma] * (1 + (problem.norm == "LayerNorm"))
    family, most = work.scheme[0], max((1, *dict(chip.clusters)))
    column = 32 * size + params + (family == "Mxfp8")
    room = chip.shared_bytes - plans.SLAB_STATIC_BYTES[size]
    assert (plan is not None) == (takes and column * (128 * -(-problem.cols // (128 * most))) <= room)
    if plan is None:
        return
    row = plan.stage_bytes // (32 * size)
    assert row % 128 == 0 and row * plan.cluster >= problem.cols, "whole words of scales, and every column"
    assert plan.shared_bytes == row * column and not plan.cooperative
    ctas = int(plan.kernel.removesuffix(">").rsplit(", ", 1)[1])
    held = min(ctas, chip.shared_bytes // (plan.shared_bytes + plans.SLAB_STATIC_BYTES[size]))
    assert held >= 1 and (plan.block, ctas > 1) == ((256, True) if held > 1 else (512, False)), "an SM has 512 threads"
    for fewer in (each for each in (1, *dict(chip.clusters)) if each < plan.cluster):
        assert chip.shared_bytes // (column * (128 * -(-problem.cols // (128 * fewer))) + plans.SLAB_STATIC_BYTES[size]
                                     ) < min(held, 2), "as few CTAs as hold it"
    clusters = plan.grid // plan.cluster
    assert plan.grid == clusters * plan.cluster and 1 <= clusters <= max(1, -(-problem.rows // 32))
    assert not sm_margin or plan.grid <= held * max(plan.cluster, chip.sms - sm_margin), "the margin stays free"
    assert slabs(replace(problem, rows=5), work, chip).kernel == plan.kernel, "a row does not depend on the others"


@pytest.mark.parametrize("cols, dtype, variant", [
    (64, torch.bfloat16, "x1"), (1152, torch.float16, "x1"), (1536, torch.bfloat16, "x1"), (1728, torch.bfloat16, "x2"),
    (4096, torch.bfloat16, "x4"), (8192, torch.bfloat16, "x8"), (12288, torch.bfloat16, "x8"),
    (16384, torch.bfloat16, "x16"), (51200, torch.float16, "x16"), (4096, torch.float32, "x8"),
    (8192, torch.float32, "x16"), (55296, torch.bfloat16, None), (992, torch.bfloat16, None),
])
def test_slabs_are_taken_where_they_fit(cols, dtype, variant):
    """Columnwise alone and both ways; nowhere else, and not before Hopper."""
    state = [torch.ones(1, device="meta")] * 2
    for make, family in ((MXFP8Quantizer, "Mxfp8"), (lambda **sides: Float8Quantizer(*state, **sides), "Fp8")):
        for rowwise in (False, True):
            quantizer = make(rowwise=rowwise, columnwise=True)
            plan = planned(quantizer, (64, cols), dtype)
            assert (plan.source, plan.variant) == (("norm_slab.cu", f"Slab {family} {variant}") if variant else (
                "norm_quantize.cu", f"NormedTile {family}"))
            assert planned(quantizer, (64, cols), dtype, chip=SM_80).source == "norm_quantize.cu"
        assert planned(make(rowwise=True), (64, cols), dtype).source != "norm_slab.cu"


@quick
@given(forward_problems(), chips, margins, st.sampled_from(("ToFp8<E4M3>", "ToMxfp8<E5M2, {}>")))
def test_from_registers(problem, chip, sm_margin, output):
    problem = replace(problem, output=output.format(problem.x))
    plan = plans.from_registers(problem, chip, sm_margin)
    if plan is None:
        return
    assert plan.kernel.endswith(f", {problem.output}>")
    check(replace(plan, kernel=plan.kernel.replace(problem.output, "Output")), problem, chip)
    if "Mxfp8" in output and problem.cols % 32 == 0:
        slab = problem.cols // plan.cluster
        assert slab % 32 == 0 and min(plan.row_threads, 32) * problem.vector % 32 == 0, "blocks lie in one warp"


def test_a_margin_leaves_sms():
    free, held = planned(NV, (8192, 4096)), planned(NV, (8192, 4096), sm_margin=32)
    assert free.grid == 2 * 132 and held.grid == 2 * 100
    assert planned(NV, (8192, 4096), sm_margin=10_000).grid == 2
    assert planned(CURRENT, (8192, 4096)).grid == 132
    assert planned(CURRENT, (8192, 4096), sm_margin=32).grid == 100
    assert planned(MX, (64, 96), chip=SM_80).programmatic is False


def test_format_is_in_the_kernel():
    assert "E5M2" in planned(MXFP8Quantizer(dtype=E5M2)).kernel
    assert "ZeroCentered" in planned(CURRENT, zero_centered_gamma=True).kernel
