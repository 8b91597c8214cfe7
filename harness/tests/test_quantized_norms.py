"""Norms with quantized outputs on a GPU: the reference's bytes, by every recipe, orientation and path, over odd shapes,
dtypes and values; the same in every run, in CUDA graphs, on other streams."""

from itertools import product

import pytest
import torch

import optimized
import reference
from harness.cases import FUSED
from harness.mismatches import Comparison
from harness.tests.gpu import build, here
from harness.tests.quantize_cases import DTYPES, Recipe, difference, guarded, recipes, values
from optimized.launch import allocator
from optimized.normalization import Path, forced_path, plan_of
from reference.quantizers import Float8CurrentScalingQuantizer, Float8Quantizer, MXFP8Quantizer, NVFP4Quantizer

pytestmark = pytest.mark.gpu

DEVICE, EPS = "cuda", 1e-5
FUNCTIONS = ("layernorm_fwd", "rmsnorm_fwd")
RECIPES = recipes()
SHAPES = ((32, 32), (33, 96), (7, 31), (1, 64), (160, 264), (96, 1056), (256, 512), (64, 4096), (32, 5120), (130, 48),
          (32, 16384), (64, 20480), (3, 40000), (32, 65536), (2, 300_000),
          (100, 192), (224, 1088), (64, 2048), (160, 8192))  # slabs, like the wide ones above but the last two
KINDS = ("normal", "heavy", "nan", "inf", "zeros", "negative_zeros", "outlier", "tiny", "subnormal", "zero_blocks",
         "outlier_column")  # a prime number of them, so that they meet every dtype and function


def operands(function, shape, dtype, kind="heavy", gamma=None, seed=0):
    x = values(kind, shape, dtype, DEVICE, seed)
    source = torch.Generator().manual_seed(seed)
    weight, bias = ((start + 0.2 * torch.randn(shape[-1], generator=source)).to(gamma or dtype).to(DEVICE)
                    for start in (1, 0))
    return (x, weight, bias) if function == "layernorm_fwd" else (x, weight)


def meta(function, shape, dtype):
    """Operands without memory."""
    x, weight = torch.empty(shape, dtype=dtype, device="meta"), torch.empty(shape[-1], dtype=dtype, device="meta")
    return (x, weight, weight) if function == "layernorm_fwd" else (x, weight)


def planned(function, given, recipe, **options):
    """The plan of a call on this GPU."""
    return plan_of(function, *given, EPS, recipe.make(given[0].device), chip=here(), **options)


def build_ahead(calls):
    """Compile the kernels of calls: (function, operands, recipe, options) of each."""
    plans = [planned(function, given, recipe, **options) for function, given, recipe, options in calls]
    build((plan.source, plan.kernel) for plan in plans)


def both(function, given, recipe, **options):
    """What the twins give, and the amax that each made."""
    ours, theirs = recipe.make(DEVICE), recipe.make(DEVICE)
    got = getattr(optimized, function)(*given, EPS, ours, **options)
    want = getattr(reference, function)(*given, EPS, theirs, **options)
    return got, want, [getattr(each, "amax", None) for each in (ours, theirs)]


def assert_alike(got, want, amaxes, dtype):
    """Within what semantics allow of what is fused."""
    assert (type(got[0]), got[0].shape, got[0].dtype) == (type(want[0]), want[0].shape, want[0].dtype)
    assert Comparison("y", FUSED).tensors(got[0], want[0]).reason == ""
    if amaxes[0] is not None:
        assert Comparison("amax", FUSED).amax(*amaxes, dtype).reason == ""
    for ours, theirs in zip(got[1:], want[1:], strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or ours.shape == theirs.shape


def assert_right(function, given, recipe, **options):
    """The reference's bytes, within what is allowed; every byte is written, none beside, the same in every run. What
    the twins give."""
    with guarded(0xFF):
        got, want, amaxes = both(function, given, recipe, **options)
    assert_alike(got, want, amaxes, given[0].dtype)
    with guarded(0x00):
        again, *_ = both(function, given, recipe, **options)
    assert difference(again[0], got[0]) == "", "every byte is written, the same in every run"
    return got, want


def jobs():
    """Every recipe with every shape that it takes. Functions, dtypes and kinds of values take turns, for a recipe from
    shape to shape; dtypes also from orientation to orientation. Recipes of one format, 15, take the same turn: they
    share kernels."""
    for (i, shape), (j, recipe) in product(enumerate(SHAPES), enumerate(RECIPES)):
        turn = i + j // 15
        dtype = DTYPES[(turn + j) % 3]
        dtype = dtype if recipe.takes(shape, dtype) else torch.bfloat16
        if recipe.takes(shape, dtype):
            yield recipe, shape, FUNCTIONS[turn % 2], dtype, KINDS[(i + j) % len(KINDS)]


JOBS = list(jobs())


@pytest.fixture(scope="module", autouse=True)
def compiled_ahead():
    if torch.cuda.is_available():
        build_ahead((function, meta(function, shape, dtype), recipe, {}) for recipe, shape, function, dtype, _ in JOBS)


@pytest.mark.parametrize("number", range(len(JOBS)), ids=lambda number: "-".join(map(str, JOBS[number][1:])))
def test_the_bytes_of_the_reference(number):
    recipe, shape, function, dtype, kind = JOBS[number]
    assert_right(function, operands(function, shape, dtype, kind), recipe)


@pytest.mark.parametrize("recipe", [each for each in RECIPES if not each.options or len(each.options) < 2],
                         ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_paths_give_the_same(function, recipe):
    """Where rows are summed up in one order, to the byte: of 4096 columns they are not."""
    for shape, exact in (((64, 96), True), ((96, 4096), False)):
        given = operands(function, shape, torch.bfloat16)
        chosen, want, amaxes = both(function, given, recipe)
        with forced_path(Path.UNFUSED):
            unfused, _, others = both(function, given, recipe)
        assert_alike(unfused, want, others, torch.bfloat16)
        assert_alike(chosen, unfused, (amaxes[0], others[0]), torch.bfloat16)
        assert not exact or difference(chosen[0], unfused[0]) == ""


def test_an_impossible_path_is_refused_before_memory_is_taken():
    def allocates(shape, dtype, device):
        raise AssertionError("memory was allocated before the path was refused")

    given = operands("rmsnorm_fwd", (32, 64), torch.bfloat16)
    refused = pytest.raises(ValueError, match="rmsnorm_fwd: .*FULLY_FUSED")
    with allocator(allocates), forced_path(Path.FULLY_FUSED), refused:
        optimized.rmsnorm_fwd(*given, EPS, NVFP4Quantizer())
    with forced_path(Path.FULLY_FUSED):
        optimized.rmsnorm_fwd(*given, EPS, MXFP8Quantizer())
    with allocator(allocates), forced_path(Path.FUSED_NORM_AMAX_FP8), pytest.raises(ValueError):
        optimized.rmsnorm_fwd(*given, EPS, MXFP8Quantizer())


@pytest.mark.parametrize("columnwise", (False, True))
def test_amax_grows_and_is_never_cleared(columnwise):
    x, weight = operands("rmsnorm_fwd", (256, 1024), torch.bfloat16, "normal")
    quantizer = Float8Quantizer(torch.ones(1, device=DEVICE), torch.zeros(1, device=DEVICE), columnwise=columnwise)
    seen = []
    for scale in (1.0, 3.0, 2.0):
        optimized.rmsnorm_fwd(x, weight * scale, EPS, quantizer)
        seen.append(float(quantizer.amax))
    assert seen[0] > 1 and seen[1] == pytest.approx(3 * seen[0], rel=0.01) and seen[2] == seen[1]
    quantizer.amax.fill_(float("nan"))
    optimized.rmsnorm_fwd(x, weight, EPS, quantizer)
    assert quantizer.amax.isnan()


@pytest.mark.parametrize("layout", ("strided", "offset", "expanded", "transposed", "narrow gamma"))
@pytest.mark.parametrize("columnwise", (False, True))
def test_layouts(layout, columnwise):
    wide = values("heavy", (64, 232), torch.bfloat16, DEVICE)
    dense = wide[:, :96].contiguous()
    x = {"strided": wide[:, 8:104], "offset": wide.view(-1)[1:1 + 64 * 96].view(64, 96),
         "expanded": wide[:1, :96].expand(64, 96), "transposed": dense.view(96, 64).t()}.get(layout, dense)
    gamma = torch.randn(97, device=DEVICE)[1:]
    gamma = gamma.bfloat16() if layout == "narrow gamma" else gamma.contiguous()
    for cls in (Float8Quantizer, Float8CurrentScalingQuantizer, MXFP8Quantizer, NVFP4Quantizer):
        recipe = Recipe(cls, (), True, columnwise)
        got, want, amaxes = both("layernorm_fwd", (x, gamma, gamma), recipe, zero_centered_gamma=True)
        assert_alike(got, want, amaxes, torch.bfloat16)


@pytest.mark.parametrize("recipe", RECIPES[:15:2] + RECIPES[-15::3], ids=lambda recipe: recipe.name)
def test_graphs(recipe):
    """Captured, and replayed on other values."""
    given = operands("rmsnorm_fwd", (128, 512), torch.bfloat16)
    if not recipe.takes((128, 512), torch.bfloat16):
        pytest.skip("blocks")
    quantizer = recipe.make(DEVICE)
    optimized.rmsnorm_fwd(*given, EPS, quantizer)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = optimized.rmsnorm_fwd(*given, EPS, quantizer)
    given[0].copy_(values("normal", (128, 512), torch.bfloat16, DEVICE, seed=7))
    for _ in range(2):
        graph.replay()
    want = reference.rmsnorm_fwd(*given, EPS, recipe.make(DEVICE))
    assert Comparison("y", FUSED).tensors(captured[0], want[0]).reason == ""


@pytest.mark.parametrize("shape", ((0, 64), (3, 0, 64)))
def test_no_rows(shape):
    for recipe in RECIPES:
        got, want, amaxes = both("rmsnorm_fwd", operands("rmsnorm_fwd", shape, torch.bfloat16, "normal"), recipe)
        assert_alike(got, want, amaxes, torch.bfloat16)
        assert difference(got[0], want[0]) == ""


@pytest.mark.parametrize("shape", ((512, 1024), (2048, 4096)))
@pytest.mark.parametrize("sm_margin", (1, 100, 10_000))
def test_a_margin_changes_no_byte(sm_margin, shape):
    given = operands("layernorm_fwd", shape, torch.bfloat16)
    for recipe in RECIPES:
        full, part = (both("layernorm_fwd", given, recipe, sm_margin=each)[0] for each in (0, sm_margin))
        assert difference(full[0], part[0]) == ""


def test_a_row_does_not_depend_on_the_others():
    """Nor on how many there are, where the scale is not that of the tensor."""
    x, weight = operands("rmsnorm_fwd", (2048, 1024), torch.bfloat16)
    for columnwise in (False, True):
        made = [optimized.rmsnorm_fwd(part, weight, EPS, MXFP8Quantizer(columnwise=columnwise))[0]
                for part in (x, x[1024:1056])]
        data = [each.columnwise_data if columnwise else each.rowwise_data for each in made]
        assert torch.equal(data[0][1024:1056].view(torch.uint8), data[1].view(torch.uint8))
