"""optimized.quantize and optimized.dequantize on a GPU: the bytes of the reference for every quantizer, dtype, shape,
layout and input, in every run."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from harness.guards import unwritten_bytes
from harness.tests.quantize_cases import (
    ADVERSARIAL, DTYPES, E4M3, E5M2, Recipe, difference, different, guarded, layouts, recipes, values,
)
from optimized import jit
from optimized.launch import chip
from optimized.quantization import dequantize, plan_of, quantize
from reference import quantization as reference
from reference.quantizers import Float8CurrentScalingQuantizer, Float8Quantizer, MXFP8Quantizer, NVFP4Quantizer
from reference.tensors import Float8Tensor, MXFP8Tensor, NVFP4Tensor

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
RECIPES = recipes()
SHAPES = ((1, 1), (1, 16), (1, 64), (7, 1), (5, 33), (16, 16), (32, 32), (48, 80), (3, 5, 16), (64, 64), (96, 160),
          (128, 128), (2, 64, 96), (33, 256), (160, 1056), (1000, 1000), (1024, 33), (1008, 528), (2, 10_000),
          (4096, 64), (300, 4104))
LARGE = ((8192, 4096), (512, 65_536 + 64), (100_000, 320), (65_536, 528))
LARGE_RECIPES = [recipe for recipe in RECIPES if dict(recipe.options).get("dtype", E4M3) == E4M3]


def cases():
    """Every recipe with every shape that it takes; dtypes take turns."""
    for i, shape in enumerate(SHAPES):
        for j, recipe in enumerate(RECIPES):
            suitable = [dtype for dtype in DTYPES if recipe.takes(shape, dtype)]
            if suitable:
                yield recipe, shape, suitable[(i + j) % len(suitable)]


CASES = list(cases())


def named(case):
    recipe, shape, dtype = case
    return f"{recipe.name} {'x'.join(map(str, shape))} {dtype}".replace("torch.", "")


@pytest.fixture(scope="module", autouse=True)
def compiled_ahead():
    """Every kernel that the tests need, on all cores: one by one they would take minutes."""
    if not torch.cuda.is_available():
        return
    here, plans = chip(torch.device(DEVICE, torch.cuda.current_device())), []
    for recipe in RECIPES:
        for dtype in DTYPES:
            if recipe.takes((256, 256), dtype):
                x = torch.empty(256, 256, dtype=dtype, device="meta")
                plans.append(plan_of("quantize", x, recipe.make("meta"), chip=here))
                made = meta_tensor(recipe, x)
                plans += [plan_of("dequantize", made, y, chip=here) for y in DTYPES]
    jit.build([(plan.source, plan.kernel) for plan in plans], here.arch)


def meta_tensor(recipe, x):
    """What quantize gives for x on the device "meta"."""
    return reference.quantize(torch.zeros(x.shape, dtype=x.dtype), recipe.make("cpu")).to("meta")


def assert_same(recipe, x, expect_on=None):
    """Results of both twins, the same in every byte; the reference runs on `expect_on`, by default where x is."""
    expect_on = expect_on or x.device
    ours, theirs = recipe.make(x.device), recipe.make(expect_on)
    got, want = quantize(x, ours), reference.quantize(x.to(expect_on), theirs)
    assert difference(got, want) == "", recipe.name
    if isinstance(ours, Float8Quantizer):
        assert not different(ours.amax, theirs.amax.to(x.device)).any(), f"amax {ours.amax} not {theirs.amax}"
    return got, want


@pytest.mark.parametrize("case", CASES, ids=named)
def test_bytes(case):
    """Six decades of values, against the reference on the CPU; the way back in every dtype."""
    recipe, shape, dtype = case
    got, want = assert_same(recipe, values("heavy", shape, dtype, DEVICE), expect_on="cpu")
    for y in DTYPES:
        ours, theirs = dequantize(got, y), reference.dequantize(want, y).to(DEVICE)
        assert ours.shape == theirs.shape and ours.dtype == y and not different(ours, theirs).any(), y


@pytest.mark.parametrize("kind", ADVERSARIAL)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_adversarial(kind, dtype):
    for i, recipe in enumerate(RECIPES):
        shape = ((192, 320), (128, 64), (48, 1104), (33, 96))[i % 4]
        for one in (shape, (96, 160)):
            if recipe.takes(one, dtype):
                got, want = assert_same(recipe, values(kind, one, dtype, DEVICE, seed=i))
                y = DTYPES[i % 3]
                assert not different(dequantize(got, y), reference.dequantize(want, y)).any(), (recipe.name, y)


@pytest.mark.parametrize("recipe", LARGE_RECIPES, ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_large(recipe, shape):
    """Larger than a wave of CTAs, than the L2, than 2^16 tiles' edges: what the second reading finds is still x."""
    if not recipe.takes(shape, torch.bfloat16):
        pytest.skip("rows are no multiple of the block")
    x = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)
    x[-1, -1] = 40.0  # the amax is found in the part that is read last
    got, want = assert_same(recipe, x)
    assert not different(dequantize(got, torch.bfloat16), reference.dequantize(want, torch.bfloat16)).any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_value_of_16_bits(dtype):
    """Of the float32 range a sample: 2^20 bit patterns, evenly spaced, and their neighbours."""
    if dtype == torch.float32:
        patterns = torch.arange(-2**31, 2**31, 2**12, dtype=torch.int64).view(-1, 1) + torch.tensor([0, 1, 2047, 4095])
        x = patterns.int().view(torch.float32).reshape(2048, -1)
    else:
        x = torch.arange(-2**15, 2**15, dtype=torch.int32).short().view(dtype).reshape(256, 256)
    finite = torch.where(x.isfinite(), x, torch.zeros((), dtype=dtype))
    for recipe in RECIPES:
        for one in (x, finite, finite.flip(0).t().contiguous()):
            if recipe.takes(one.shape, dtype):
                assert_same(recipe, one.to(DEVICE))


@pytest.mark.parametrize("code", (E4M3, E5M2), ids=str)
def test_every_value_by_every_scale(code):
    """Delayed scaling by one scale for each exponent: the cast alone, in and beyond its range."""
    x = torch.arange(-2**15, 2**15, dtype=torch.int32).short().view(torch.bfloat16).reshape(256, 256).to(DEVICE)
    recipe = Recipe(Float8Quantizer, (("dtype", code),), True, True)
    for exponent in (-140, -126, -60, -9, -1, 0, 1, 7, 30, 100, 127):
        for mantissa in (1.0, 1.5, 1.9999999):
            scale = min(mantissa * 2.0**exponent, torch.finfo(torch.float32).max)
            ours, theirs = (recipe.make(DEVICE, scale=scale) for _ in range(2))
            assert difference(quantize(x, ours), reference.quantize(x, theirs)) == ""


@pytest.mark.parametrize("before", (0.0, -0.0, 1e-40, 3.0, float("inf"), float("nan"), -float("nan")))
@pytest.mark.parametrize("kind", ("normal", "zeros", "nan", "inf", "subnormal"))
@pytest.mark.parametrize("sides", ((True, False), (True, True)))
def test_amax_accumulates(before, kind, sides):
    recipe = Recipe(Float8Quantizer, (), *sides)
    x = values(kind, (300, 264), torch.float32, DEVICE)
    ours, theirs = (recipe.make(DEVICE, amax=before) for _ in range(2))
    for factor in (1.0, 0.25, 2.0):
        quantize(x * factor, ours), reference.quantize(x * factor, theirs)
        assert not ((ours.amax != theirs.amax) & ~(ours.amax.isnan() & theirs.amax.isnan())).any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", ((96, 160), (64, 96), (64, 72)), ids=str)
def test_layouts(shape, dtype):
    for name, x in layouts(shape, dtype, DEVICE).items():
        for recipe in RECIPES:
            if recipe.takes(x.shape, dtype):
                got, _ = assert_same(recipe, x)
                assert all(each.is_contiguous() for each in got.tensors().values()), name


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("shape", ((0, 64), (64, 0), (0, 0), (2, 0, 64), (0,)), ids=str)
def test_no_elements(recipe, shape):
    if not recipe.takes(shape, torch.bfloat16):
        pytest.skip("the quantizer does not take this shape")
    got, want = assert_same(recipe, torch.empty(shape, device=DEVICE, dtype=torch.bfloat16))
    assert dequantize(got, torch.float32).shape == reference.dequantize(want, torch.float32).shape == shape


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_every_byte_is_written_and_none_beside(recipe):
    """Padding included; the inputs keep their bytes."""
    for shape in ((96, 160), (33, 96), (160, 33), (1, 64), (32, 1040), (1040, 32)):
        if not recipe.takes(shape, torch.bfloat16):
            continue
        x = values("heavy", shape, torch.bfloat16, DEVICE)
        before, made = x.clone(), []
        for poison in (0xFF, 0x00):
            with guarded(poison):
                made.append(quantize(x, recipe.make(DEVICE)))
                made.append(dequantize(made[-1], torch.float32))
        assert difference(made[0], made[2]) == ""
        for one, other in (*zip(made[0].tensors().values(), made[2].tensors().values()), (made[1], made[3])):
            assert unwritten_bytes(one, other) == 0
        assert torch.equal(x, before)


@pytest.mark.parametrize("recipe", LARGE_RECIPES, ids=lambda recipe: recipe.name)
def test_same_in_every_run_and_on_other_streams(recipe):
    x = torch.randn(2048, 1024, device=DEVICE, dtype=torch.bfloat16)
    first = quantize(x, recipe.make(DEVICE))
    torch.cuda.synchronize()
    for _ in range(20):
        assert difference(quantize(x, recipe.make(DEVICE)), first) == ""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        other = quantize(x, recipe.make(DEVICE))
    stream.synchronize()
    assert difference(other, first) == ""


@pytest.mark.parametrize("recipe", LARGE_RECIPES, ids=lambda recipe: recipe.name)
def test_in_a_graph(recipe):
    """Captured once, replayed on other values at the same addresses; amax goes on accumulating."""
    x = torch.randn(512, 512, device=DEVICE, dtype=torch.bfloat16)
    quantizer = recipe.make(DEVICE)
    quantize(x, quantizer)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = quantize(x, quantizer)
        back = dequantize(made, torch.bfloat16)
    for factor in (3.0, 0.1):
        x.mul_(factor)
        graph.replay()
        theirs = recipe.make(DEVICE)
        want = reference.quantize(x, theirs)
        assert difference(made, want) == ""
        assert not different(back, reference.dequantize(want, torch.bfloat16)).any()


def test_threads_share_what_is_prepared():
    x = torch.randn(256, 512, device=DEVICE, dtype=torch.bfloat16)
    want = [quantize(x * i, NVFP4Quantizer(columnwise=True)) for i in range(1, 9)]
    torch.cuda.synchronize()

    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            made = [quantize(x * i, NVFP4Quantizer(columnwise=True)) for _ in range(20)]
            torch.cuda.current_stream().synchronize()
        return [difference(one, want[i - 1]) for one in made]

    with ThreadPoolExecutor(8) as pool:
        assert {text for texts in pool.map(work, range(1, 9)) for text in texts} == {""}


def test_random_stream_follows_seed_and_offset():
    x = torch.randn(128, 256, device=DEVICE, dtype=torch.bfloat16)
    seen = set()
    for seed, offset in ((0, 0), (0, 1), (1, 0), (2**64 - 1, 2**63 - 1), (2**32, 0), (0, 2**32)):
        quantizer = NVFP4Quantizer(stochastic_rounding=True, seed=seed, offset=offset, columnwise=True)
        got = quantize(x, quantizer)
        assert difference(got, reference.quantize(x, quantizer)) == ""
        seen.add(bytes(got.rowwise_data.cpu().flatten().tolist()))
    assert len(seen) == 6


@pytest.mark.parametrize("y", DTYPES, ids=str)
@pytest.mark.parametrize("code", (E4M3, E5M2), ids=str)
def test_dequantize_of_every_code(code, y):
    """All codes with all scales, those that no quantizer writes included."""
    codes = torch.arange(256, device=DEVICE).to(torch.uint8)
    data = codes.repeat(256, 4)
    scales = torch.zeros(256, 32, dtype=torch.uint8, device=DEVICE)
    scales[:] = codes[:, None]
    dtype = torch.bfloat16
    factors = [torch.full((1,), scale, device=DEVICE) for scale in (1.0, 0.3, 1e-30)]
    made = [Float8Tensor(data.view(code), None, factor, dtype) for factor in factors]
    made += [Float8Tensor(None, data.view(code), factor, dtype) for factor in factors]
    made += [MXFP8Tensor(data.view(code), scales, None, None, dtype)]
    down = codes.view(1, 256).repeat(8, 1)
    made += [MXFP8Tensor(None, None, codes[:, None].repeat(1, 256).contiguous().view(code), down, dtype)]
    if code == E4M3:
        scales = scales.repeat(1, 2).view(code)
        for amax in (0.0, 1.0, 1e-38, 1e-44, 3e38, float("inf"), float("nan")):
            one = torch.full((1,), amax, device=DEVICE)
            made += [NVFP4Tensor(data[:, :512].contiguous(), scales, one, None, None, None, dtype),
                     NVFP4Tensor(None, None, None, data[:, :512].contiguous(), scales, one, dtype)]
    for tensor in made:
        assert not different(dequantize(tensor, y), reference.dequantize(tensor, y)).any(), tensor


@pytest.mark.parametrize("cls", (Float8CurrentScalingQuantizer, MXFP8Quantizer, NVFP4Quantizer))
def test_results_carry_no_graph(cls):
    x = torch.randn(64, 64, device=DEVICE, requires_grad=True)
    made = quantize(x, cls(columnwise=True))
    assert not any(each.requires_grad for each in made.tensors().values())
    assert not dequantize(made, torch.float32).requires_grad


def test_mixed_devices_and_cpu_are_refused():
    x = torch.randn(64, 64, device=DEVICE)
    one = torch.ones(1)
    with pytest.raises(ValueError, match="quantize: .*scale.* is on cpu"):
        quantize(x, Float8Quantizer(one, one.clone()))
    with pytest.raises(ValueError, match="quantize: input is on cpu"):
        quantize(x.cpu(), MXFP8Quantizer())
    with pytest.raises(ValueError, match="dequantize: tensor is on cpu"):
        dequantize(reference.quantize(x.cpu(), MXFP8Quantizer()), torch.float32)
    with pytest.raises(ValueError, match="32"):
        quantize(x[:, :33], MXFP8Quantizer())
    with pytest.raises(TypeError, match="quantizer"):
        quantize(x, None)
