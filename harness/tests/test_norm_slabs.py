"""Norms that are quantized from slabs, columnwise or both ways, on a GPU: every dtype, recipe, norm and layout of
operands in one to sixteen CTAs; many slabs a CTA."""

from itertools import product

import pytest
import torch

from harness.tests.gpu import here
from harness.tests.quantize_cases import DTYPES, difference, recipes
from harness.tests.test_quantized_norms import FUNCTIONS, assert_right, both, build_ahead, operands, planned
from reference.quantizers import Float8Quantizer, MXFP8Quantizer

pytestmark = pytest.mark.gpu

RECIPES = [each for each in recipes(((False, True), (True, True)))
           if each.cls in (Float8Quantizer, MXFP8Quantizer) and each.options == (("dtype", torch.float8_e4m3fn),)]
# By bytes of an element: slabs of which three CTAs, two or one share an SM; where columns are no multiple of 256, and
# 3136 or more, some CTAs have none.
SHAPES = {2: ((224, 1088), (64, 2048), (40, 8192), (32, 8192), (32, 13376), (40, 18496), (32, 26688)),
          4: ((224, 1088), (64, 2048), (96, 960), (40, 4096), (32, 3136), (32, 8256), (32, 13312))}
VARIATIONS = ("plain", "no beta", "other gamma", "zero-centered", "pitched x")
KINDS = {torch.bfloat16: "heavy", torch.float16: "normal", torch.float32: "heavy"}
MANY = {2: ((512, 2048), (256, 13376), (256, 26688)), 4: ((512, 2048), (256, 8256), (256, 13312))}


def varied(variation, function, shape, dtype):
    """Operands, finite ones, and options. Around a pitched x lies NaN."""
    gamma = torch.bfloat16 if dtype == torch.float32 else torch.float32
    x, *weights = operands(function, shape, dtype, KINDS[dtype], gamma if variation == "other gamma" else None)
    if variation == "no beta":
        weights = [weights[0], None]
    if variation == "pitched x":
        x = torch.nn.functional.pad(x, (8, 16), value=float("nan"))[:, 8:-16]
    return (x, *weights), {"zero_centered_gamma": True} if variation == "zero-centered" else {}


def jobs(variation, recipe, dtype):
    """Function and shape of each call; the functions take turns where both can."""
    turn = VARIATIONS.index(variation) + DTYPES.index(dtype)
    for i, shape in enumerate(SHAPES[dtype.itemsize]):
        if recipe.takes(shape, dtype):
            yield "layernorm_fwd" if variation == "no beta" else FUNCTIONS[(i + turn) % 2], shape


def assert_statistics_are_near(got, want, x):
    """mu relative to the largest of its row, rsigma to itself; both were summed up in float32."""
    if want[1] is not None:
        assert ((got[1] - want[1]).abs() <= 1e-6 * x.abs().amax(-1).float()).all()
    torch.testing.assert_close(got[2], want[2], rtol=1e-5, atol=0)


@pytest.fixture(scope="module", autouse=True)
def compiled_ahead():
    if not torch.cuda.is_available():
        return
    calls = []
    for variation, recipe, dtype in product(VARIATIONS, RECIPES, DTYPES):
        for function, shape in jobs(variation, recipe, dtype):
            given, options = varied(variation, function, shape, dtype)
            calls.append((function, given, recipe, options))
    build_ahead(calls)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("variation", VARIATIONS)
def test_the_bytes_of_the_reference(variation, dtype, recipe):
    ctas = set()
    for function, shape in jobs(variation, recipe, dtype):
        given, options = varied(variation, function, shape, dtype)
        plan = planned(function, given, recipe, **options)
        assert plan.source == "norm_slab.cu"
        ctas.add(plan.cluster)
        got, want = assert_right(function, given, recipe, **options)
        assert_statistics_are_near(got, want, given[0])
    assert ctas == ({1, 2, 8, 16} if dtype.itemsize == 2 else {2, 4, 8, 16})


@pytest.mark.parametrize("left", (1, 8))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_cta_that_takes_many_slabs_changes_no_byte(function, dtype, left):
    """Nor what it costs to have only a few SMs: `left` of them."""
    sm_margin = max(1, here().sms - left)
    for shape, recipe in product(MANY[dtype.itemsize], RECIPES):
        given = operands(function, shape, dtype, KINDS[dtype])
        plan = planned(function, given, recipe, sm_margin=sm_margin)
        assert plan.source == "norm_slab.cu" and 32 * plan.grid // plan.cluster < shape[0]
        (full, _, one), (part, _, other) = (both(function, given, recipe, sm_margin=each) for each in (0, sm_margin))
        assert difference(part[0], full[0]) == "" and one[0] == other[0]
        assert all(a is b or torch.equal(a, b) for a, b in zip(part[1:], full[1:], strict=True))
