"""Plans of quantize and dequantize are legal for every shape, dtype and chip, and every specialization compiles."""

import pytest
import torch

from harness.tests.quantize_cases import DTYPES, FP8, recipes
from harness.tests.test_plan import CHIPS, SM_80
from optimized import jit
from optimized import quantize_plan as plans
from optimized.plan import H200, MAX_GRID
from optimized.quantization import MAX_EXTENT, plan_of
from reference.quantizers import Float8Quantizer
from reference.tensors import Float8Tensor, MXFP8Tensor, NVFP4Tensor

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")
given, st = hypothesis.given, hypothesis.strategies

MOST = 300
REGISTERS = 65_536  # of an SM, given to warps in units of 8 a thread
RESERVED_BYTES = 1024  # of shared memory, for each CTA
STATIC_MOST_BYTES = 48 << 10
RECIPES = recipes()
SHAPES = ((1, 32), (64, 64), (4096, 4096), (0, 32), (100_000, 320), (16, 3, 32), (1 << 20, 1 << 20))

quick = hypothesis.settings(max_examples=400, deadline=None, derandomize=True)
schemes = st.sampled_from((
    ("Fp8", "E4M3", "Delayed"), ("Fp8", "E5M2", "Current"), ("Mxfp8", "E4M3"), ("Nvfp4", "Nearest", "Lines"),
    ("Nvfp4", "Stochastic", "Transformed"), ("Nvfp4", "Nearest", "Squares"),
))
sizes = st.one_of(st.integers(0, 300), st.integers(0, 1 << 20))
flags = st.booleans()
works = st.builds(plans.Work, schemes, st.sampled_from(("bf16", "f16", "f32")), sizes, sizes, flags, flags, flags)


def meta(shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


def quantized():
    """A meta tensor of every format and orientation."""
    one, x = meta((1,), torch.float32), torch.bfloat16
    for code in FP8:
        data, scales = meta((256, 256), code), meta((256, 8), torch.uint8)
        yield Float8Tensor(data, None, one, x)
        yield Float8Tensor(None, data, one, x)
        yield MXFP8Tensor(data, scales, None, None, x)
        yield MXFP8Tensor(None, None, data, meta((8, 256), torch.uint8), x)
    nvfp4 = (meta((256, 128), torch.uint8), meta((256, 16), FP8[0]), one)
    yield NVFP4Tensor(*nvfp4, None, None, None, x)
    yield NVFP4Tensor(None, None, None, *nvfp4, x)


def every_plan(chip):
    """Of every recipe and dtype, and back."""
    for recipe in RECIPES:
        for dtype in DTYPES:
            if recipe.takes((256, 256), dtype):
                x = meta((256, 264), dtype)  # of a pitch that is a multiple of 16 bytes, or of 257 elements
                for one in (x[:, :256], x.view(-1)[:256 * 257].view(256, 257)[:, :256]):
                    yield plan_of("quantize", one, recipe.make("meta"), chip=chip)
    for tensor in quantized():
        for dtype in DTYPES:
            yield plan_of("dequantize", tensor, dtype, chip=chip)


@pytest.fixture(scope="module")
def planned():
    """Request -> its plans."""
    by_request = {}
    for plan in every_plan(H200):
        by_request.setdefault((plan.source, plan.kernel), []).append(plan)
    return by_request


def check(plan, chip):
    assert 1 <= plan.grid <= MAX_GRID and plan.block == plans.THREADS
    assert plan.cooperative == (plan.workspace_bytes > 0), "CTAs tell each other their amax through the workspace"
    if plan.cooperative:
        ctas = int(plan.kernel[:-1].rsplit(", ", 1)[1])
        assert plan.grid <= chip.sms * ctas, "all of them must run at once"
        assert plan.workspace_bytes in (4 * plan.grid, 8 * plan.grid)
    assert chip.is_hopper_or_later or not plan.programmatic


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.arch)
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_every_recipe_has_a_plan(recipe, chip):
    for shape in SHAPES:
        if recipe.takes(shape, torch.bfloat16):
            check(plan_of("quantize", meta(shape), recipe.make("meta"), chip=chip), chip)


@pytest.mark.parametrize("shape", [(MAX_EXTENT + 1, 1), (1, MAX_EXTENT + 1)], ids=["rows", "columns"])
def test_what_32_bits_do_not_count_is_refused(shape):
    one, x = meta((1,), torch.float32), meta(shape)
    quantizer = Float8Quantizer(one, one)
    less = meta([min(size, MAX_EXTENT) for size in shape])
    assert plan_of("quantize", less, quantizer, chip=H200).grid
    with pytest.raises(ValueError, match="input has shape"):
        plan_of("quantize", x, quantizer, chip=H200)
    with pytest.raises(ValueError, match="tensor has shape"):
        plan_of("dequantize", Float8Tensor(meta(shape, FP8[0]), None, one, x.dtype, x.shape), x.dtype, chip=H200)


@quick
@given(works, st.sampled_from(CHIPS))
def test_quantize(work, chip):
    plan = plans.quantize(work, chip)
    check(plan, chip)
    assert plan == plans.quantize(work, chip)
    parts = -(-work.rows // 128) * -(-work.cols // 128)
    if not work.tiles:
        parts = -(-(work.rows * work.cols if work.flat else work.rows * (-(-work.cols // 8) * 8)) // plans.STRIP)
    assert plan.grid <= max(1, parts), "no CTA without a part"
    assert work.twice or plan.grid == max(1, min(parts, MAX_GRID)), "CTAs come and go"


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.arch)
def test_dequantize(chip):
    for tensor in quantized():
        plan = plan_of("dequantize", tensor, torch.float16, chip=chip)
        check(plan, chip)
        assert not plan.cooperative


def test_there_are_not_too_many(planned):
    assert 0 < len(planned) <= MOST


def test_all_compile_without_spills(planned):
    built = jit.build(planned, H200.arch)
    wrong = [f"{kernel}: {complaint}" for (source, kernel), binary in built.items()
             for complaint in complaints(planned[source, kernel][0], binary)]
    assert not wrong, "\n".join(wrong)


def complaints(plan, binary):
    """What is wrong with a specialization for an H200, in words."""
    if binary.spill_bytes or binary.stack_bytes:
        yield f"{binary.spill_bytes} bytes of spills, {binary.stack_bytes} of stack"
    ctas = int(plan.kernel[:-1].rsplit(", ", 1)[1]) if plan.cooperative else 1
    if ctas * plan.block * -(-binary.registers // 8) * 8 > REGISTERS:
        yield f"{ctas} CTAs of {binary.registers} registers do not fit on an SM"
    if ctas * (binary.shared_bytes + RESERVED_BYTES) > H200.shared_bytes or binary.shared_bytes > STATIC_MOST_BYTES:
        yield f"{ctas} CTAs of {binary.shared_bytes} bytes of shared memory do not fit on an SM"


def test_some_compile_for_sm_80():
    """FP8 codes are integer arithmetic there, which costs registers."""
    there = [plan for plan in every_plan(SM_80) if "bf16" in plan.kernel and "E5M2" not in plan.kernel]
    for (_, kernel), binary in jit.build([(plan.source, plan.kernel) for plan in there[::4]], SM_80.arch).items():
        assert 0 < binary.registers * plans.THREADS <= REGISTERS and binary.shared_bytes <= STATIC_MOST_BYTES, kernel
