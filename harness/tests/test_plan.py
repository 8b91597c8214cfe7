"""Plans are legal for every shape, dtype, alignment, margin and chip, and need no GPU."""

from dataclasses import replace

import pytest

from optimized import plan as plans
from optimized.norm_operands import MAX_COLS
from optimized.plan import H200, SIZES, STATIC_SHARED_BYTES, Chip, Problem

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")
given, st = hypothesis.given, hypothesis.strategies

SM_80 = Chip("sm_80", 108, 166_912)
SM_89 = Chip("sm_89", 142, 101_376)
SM_120 = Chip("sm_120a", 170, 101_376, ((2, 80), (4, 38), (8, 17)))
CHIPS = (H200, SM_80, SM_89, SM_120)
NORMS = ("LayerNorm", "RmsNorm", "RmsNormAdd")
WIDEST = 300_000

quick = hypothesis.settings(max_examples=400, deadline=None, derandomize=True)
types = st.sampled_from(sorted(SIZES))
widths = st.one_of(
    st.integers(1, 300), st.integers(1, 20_000), st.integers(1, WIDEST),
    st.integers(1, WIDEST // 8).map(lambda n: 8 * n), st.integers(5, 18).map(lambda n: 1 << n),
)
row_counts = st.one_of(st.integers(0, 300), st.integers(0, 1 << 33))
chips = st.sampled_from(CHIPS)
margins = st.one_of(st.just(0), st.integers(0, 1000))


def vectors(cols, x, dz):
    """Widths of a vector that rows of `cols` columns allow, the widest first."""
    widest = 16 // max(SIZES[x], SIZES[dz or x])
    return [width for width in (8, 4, 2, 1) if width <= widest and cols % width == 0]


@st.composite
def forward_problems(draw):
    norm, cols, x = draw(st.sampled_from(NORMS[:2])), draw(widths), draw(types)
    vector = draw(st.sampled_from(vectors(cols, x, None)))
    centered = draw(st.booleans())
    return Problem(norm, draw(row_counts), cols, x, draw(types), vector=vector, zero_centered=centered)


@st.composite
def backward_problems(draw):
    norm, cols, x, dz = draw(st.sampled_from(NORMS)), draw(widths), draw(types), draw(types)
    add = draw(types) if norm == "RmsNormAdd" else None
    vector = draw(st.sampled_from(vectors(cols, x, dz)))
    bulk = cols % 8 == 0 and draw(st.booleans())
    return Problem(norm, draw(row_counts), cols, x, draw(types), dz, add, vector, bulk)


def plan_of(problem, chip, sm_margin=0):
    function = plans.norm_backward if problem.dz else plans.norm_forward
    return function(problem, chip, sm_margin)


def arguments(plan):
    """Template arguments of the kernel."""
    return plan.kernel[plan.kernel.index("<") + 1:-1].split(", ")


def elements(plan):
    """Elements of a row in one thread: vector width times vectors."""
    width, count = arguments(plan)[3:5] if plan.source == "norm_forward.cu" else arguments(plan)[4:6]
    return int(width) * int(count)


def threads_allowed(plan):
    """The kernel's launch bound."""
    return int(arguments(plan)[-1 if plan.source == "norm_backward.cu" else -3])


def check(plan, problem, chip):
    """What holds of every plan."""
    assert 1 <= plan.grid < 1 << 31 and plan.grid % plan.cluster == 0
    assert 1 <= plan.block <= 1024 and plan.block % 32 == 0
    assert plan.shared_bytes + STATIC_SHARED_BYTES <= chip.shared_bytes
    if plan.source == "norm_shared.cu":
        assert plan.shared_bytes == problem.cols * SIZES[problem.x] and plan.shared_bytes % 16 == 0
        assert plan.block == plan.row_threads == int(arguments(plan)[4])
    assert plan.workspace_bytes >= 0 and plan.workspace_bytes % 4 == 0
    assert plan.cluster == 1 or plan.cluster in dict(chip.clusters)
    assert chip.is_hopper_or_later or not plan.programmatic
    if plan.variant in ("wide", "Shared"):
        return
    assert plan.block <= threads_allowed(plan) and plan.block % plan.row_threads == 0
    assert plan.row_threads % 32 == 0 or plan.row_threads in (4, 8, 16)
    assert elements(plan) % problem.vector == 0
    slab = -(-problem.cols // plan.cluster)
    assert plan.row_threads * elements(plan) >= (slab if plan.cluster == 1 else -(-slab // 8) * 8)
    assert plan.cluster == 1 or plan.block == plan.row_threads, "a cluster holds one row"
    assert ("Cluster" in arguments(plan)) == (plan.cluster > 1)
    if plan.cooperative and plan.cluster > 1:
        assert plan.grid // plan.cluster <= dict(chip.clusters)[plan.cluster], "all must run at once"


@quick
@given(forward_problems(), chips, margins)
def test_forward(problem, chip, sm_margin):
    problem = replace(problem, rows=max(1, problem.rows))
    plan = plans.norm_forward(problem, chip, sm_margin)
    check(plan, problem, chip)
    assert not plan.cooperative and not plan.workspace_bytes
    assert bool(plan.shared_bytes) == (plan.variant == "Shared")
    if plan.variant != "wide":
        slots = plan.block // plan.row_threads
        assert plan.grid // plan.cluster <= -(-problem.rows // slots), "no CTA without a row"
        assert threads_allowed(plan) * int(arguments(plan)[-2]) <= 2048
    if sm_margin:
        most = 2 if plan.variant == "wide" else int(arguments(plan)[-2])
        if plan.variant == "Shared":
            most = min(most, chip.shared_bytes // (plan.shared_bytes + STATIC_SHARED_BYTES))
        assert plan.grid <= most * max(plan.cluster, chip.sms - sm_margin)


@quick
@given(backward_problems(), chips, margins)
def test_backward(problem, chip, sm_margin):
    plan = plans.norm_backward(problem, chip, sm_margin)
    check(plan, problem, chip)
    if plan.variant == "wide":
        assert not plan.cooperative and not plan.workspace_bytes
        return
    planes = 2 if problem.norm == "LayerNorm" else 1
    busy = max(1, -(-problem.rows // (plan.block // plan.row_threads)))
    assert plan.workspace_bytes == 4 * planes * min(plan.grid // plan.cluster, busy) * problem.cols
    assert plan.cooperative, "its CTAs wait for each other"
    assert plan.grid <= max(plan.cluster, chip.sms - sm_margin), "all of them must run at once"
    slots = plan.block // plan.row_threads
    assert plan.stages_offset % 128 == 0
    assert plan.shared_bytes == plan.stages_offset + slots * max(
        plan.stages * plan.stage_bytes, 4 * planes * (plan.stage_bytes // column_bytes(problem)))


@quick
@given(backward_problems(), chips, margins)
def test_ring(problem, chip, sm_margin):
    plan = plans.norm_backward(problem, chip, sm_margin)
    ring = "Ringed" in plan.kernel
    assert (plan.stages > 0) == ring
    if not ring:
        return
    slots = plan.block // plan.row_threads
    assert problem.bulk and 2 <= plan.stages <= plans.MAX_STAGES
    slab = plans.round_up(-(-problem.cols // max(1, *chip.cluster_sizes)), 8)
    room = chip.shared_bytes - STATIC_SHARED_BYTES - plans.round_up(4 * slab, 128)
    assert plan.stages > 2 or plan.row_threads <= 32 or 3 * column_bytes(problem) * slab > room, "three stages fit"
    assert plan.stage_bytes % 16 == 0
    assert plan.stage_bytes * plan.cluster >= column_bytes(problem) * problem.cols
    in_warp = max(1, 32 // plan.row_threads)
    assert slots % in_warp == 0
    assert slots // in_warp <= (plans.MAX_WARP_SLOTS if plan.row_threads <= 32 else plans.MAX_GROUP_SLOTS)


@pytest.mark.parametrize("dz", ["bf16", "f32"])
def test_rows_that_fit_into_a_cluster_go_there(dz):
    for cols in (65_544, 98_304, 98_312, 112_136, 131_072):
        plan = plans.norm_backward(Problem("LayerNorm", 4096, cols, "bf16", dz, "bf16", None, 8, True), H200)
        assert plan.cluster == 8 and "Ringed" in plan.kernel, cols


def column_bytes(problem):
    """Of x, dz and add together."""
    return sum(SIZES[name] for name in (problem.x, problem.dz, problem.add) if name)


@quick
@given(st.one_of(forward_problems(), backward_problems()), st.sampled_from((SM_80, SM_89)), margins)
def test_older_chips_get_nothing_of_hopper(problem, chip, sm_margin):
    plan = plan_of(problem, chip, sm_margin)
    assert plan.cluster == 1 and not plan.programmatic and plan.stages == 0
    assert "Ringed" not in plan.kernel and "Cluster" not in plan.kernel


@quick
@given(st.one_of(forward_problems(), backward_problems()), row_counts, chips, margins, margins)
def test_row_map_does_not_depend_on_the_number_of_rows(problem, rows, chip, sm_margin, other_margin):
    one = plan_of(problem, chip, sm_margin)
    other = plan_of(replace(problem, rows=rows), chip, other_margin)
    scale = {"grid": 0, "workspace_bytes": 0}
    assert replace(one, **scale) == replace(other, **scale)


@quick
@given(st.one_of(forward_problems(), backward_problems()), chips, margins)
def test_pure(problem, chip, sm_margin):
    assert plan_of(problem, chip, sm_margin) == plan_of(problem, chip, sm_margin)


@quick
@given(backward_problems(), chips, st.integers(0, 10_000))
def test_margin_beyond_the_chip_leaves_one_cta(problem, chip, beyond):
    plan = plans.norm_backward(problem, chip, chip.sms + beyond)
    assert plan.grid == (4 if plan.variant == "wide" else plan.cluster)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.arch)
@pytest.mark.parametrize("backward", (False, True), ids=("forward", "backward"))
def test_every_width_has_a_plan(chip, backward):
    """Norms, dtypes and alignments take turns. Every width on an H200, every seventh elsewhere."""
    for cols in range(1, WIDEST + 1, 1 if chip is H200 else 7):
        x, dz = ("bf16", "f32", "f16")[cols // 8 % 3], ("bf16", "f16", "f32")[cols // 24 % 3]
        width = vectors(cols, x, dz if backward else None)[0]
        norm = NORMS[cols // 72 % 3]
        if backward:
            add = x if norm == "RmsNormAdd" else None
            problem = Problem(norm, 1000, cols, x, x, dz, add, width, bulk=cols % 16 == 0)
        else:
            problem = Problem(norm.removesuffix("Add"), 1000, cols, x, x, vector=width)
        check(plan_of(problem, chip), problem, chip)


def narrow(cols, norm="RmsNorm", x="bf16", backward=True):
    """(source of rows, lanes of a row, elements of a lane) of a narrow row, backward or forward."""
    vector = 16 // SIZES[x]
    add = x if norm == "RmsNormAdd" else None
    problem = Problem(norm, 1000, cols, x, x, *((x, add, vector, True) if backward else (None, None, vector)))
    plan = plan_of(problem, H200)
    return plan.variant.split()[-1], plan.row_threads, elements(plan)


def test_narrow_rows_leave_few_lanes_idle():
    """Where a power of two of lanes is filled by two vectors each, they have the row; other sizes have fewer lanes with
    three or four, forward five, and the widest six; in backward always through a ring. RMSNorm has eight lanes where
    four with four vectors each would begin within sectors."""
    both = {48: (4, 16), 64: (4, 16), 80: (4, 24), 104: (4, 32), 128: (8, 16), 200: (8, 32), 248: (8, 32),
            256: (16, 16), 336: (16, 24), 408: (16, 32), 512: (32, 16), 648: (32, 24), 768: (32, 24), 816: (32, 32),
            1024: (32, 32), 1536: (64, 24)}
    for cols, layout in both.items():
        assert narrow(cols, "LayerNorm", backward=False)[1:] == layout
        assert all(narrow(cols, norm) == ("Ringed", *layout) for norm in NORMS)
    forward = {160: (4, 40), 320: (8, 40), 640: (16, 40), 1280: (32, 40), 1288: (32, 48), 1440: (32, 48)}
    assert {cols: narrow(cols, backward=False)[1:] for cols in forward} == forward
    assert [narrow(cols)[1:] for cols in forward] == [(8, 24), (16, 24), (32, 24), (64, 24), (64, 24), (64, 24)]
    torn = {72: (4, 24), 88: (4, 24), 104: (8, 16), 112: (4, 32), 120: (8, 16), 136: (4, 40), 200: (8, 32)}
    assert {cols: narrow(cols, backward=False)[1:] for cols in torn} == torn
    float32 = {52: (8, 8), 64: (8, 8), 80: (8, 16), 256: (32, 8), 320: (16, 24), 512: (32, 16), 1032: (64, 24)}
    assert {cols: narrow(cols, x="f32", backward=False)[1:] for cols in float32} == float32
    for cols in range(64, 1537, 8):
        for backward in (False, True):
            _, lanes, each = narrow(cols, backward=backward)
            assert cols > 0.6 * lanes * each, "of what their registers hold"


def test_few_lanes_are_for_whole_vectors_and_rings():
    """Short vectors, and rows that the copy engine cannot take, stay with the lanes that they had."""
    assert plan_of(Problem("RmsNorm", 9, 80, "bf16", vector=2), H200).row_threads == 16
    direct = Problem("RmsNorm", 9, 80, "bf16", "bf16", "bf16", vector=8, bulk=False)
    for problem, chip in ((direct, H200), (replace(direct, bulk=True), SM_80)):
        plan = plan_of(problem, chip)
        assert plan.row_threads == 16 and "Direct" in plan.kernel


def test_rows_in_shared_memory():
    """Those of which registers would have one or two in flight on an SM, as far as copies of whole units go."""
    def variant(cols, x="bf16", norm="RmsNorm", vector=None, chip=H200):
        return plans.norm_forward(Problem(norm, 64, cols, x, vector=vector or 16 // SIZES[x]), chip).variant

    assert [variant(cols) for cols in (8192, 12_288, 65_536, 112_128)] == ["Block", "Shared", "Shared", "Shared"]
    assert variant(112_136) == "Cluster"
    assert variant(20_480, vector=4) == variant(20_480, chip=SM_80) == variant(20_480, "f32") == "Block"
    assert variant(20_480, "f32", "LayerNorm") == variant(40_960, "f32") == "Shared"


def test_widest_rows_on_the_chip():
    """Where rows are read more than once starts no earlier than the module says."""
    def variant(cols, chip):
        return plans.norm_forward(Problem("RmsNorm", 64, cols, "bf16", vector=8), chip).variant

    assert variant(131_072, H200) == "Cluster" and variant(16_384, SM_80) == "Block"
    assert variant(WIDEST, H200) == variant(WIDEST, SM_80) == "wide"


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.arch)
def test_the_longest_row_is_walked_along_in_int32(chip):
    """Forward in steps of four vectors a thread, backward, where a thread owns columns, in steps of the grid."""
    for dz in (None, "f32"):
        plan = plan_of(Problem("LayerNorm", 1 << 20, MAX_COLS, "f32", dz=dz), chip)
        assert plan.variant == "wide" and MAX_COLS + max(4, plan.grid if dz else 0) * plan.block < 2**31
