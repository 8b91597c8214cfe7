"""constant_scale and add: from tensors to launches on the CPU, and on a GPU to the bytes of the reference."""

import pytest
import torch

import optimized
import reference
from harness.tests.emulated import launched  # noqa: F401 - a fixture
from harness.tests.linear_calls import DTYPES, LAYOUTS, lay
from optimized import jit
from optimized.launch import allocator
from optimized.plan import H200
from optimized.pointwise import plan_of

SHAPES = ((), (1,), (7,), (3, 5), (2, 3, 40), (4, 1, 64), (0, 8), (3, 0), (33, 1023))
SCALE = -0.7


def drawn(shape, dtype, layout="contiguous", seed=0, device="cpu"):
    source = torch.Generator(device).manual_seed(seed)
    values = torch.randn(shape, generator=source, device=device).to(dtype)
    return values if values.dim() == 0 else lay(values, layout)


def check_both(shape, dtype, layouts, device):
    x, y = (drawn(shape, dtype, layout, seed, device) for seed, layout in enumerate(layouts))
    for _ in range(2):
        for found, expected in ((optimized.constant_scale(x, SCALE), reference.constant_scale(x, SCALE)),
                                (optimized.add(x, y), reference.add(x, y))):
            assert found.dtype == dtype and found.is_contiguous() and torch.equal(found, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("other", LAYOUTS)
def test_every_layout_gives_the_same(dtype, layout, other, launched):
    for shape in SHAPES:
        check_both(shape, dtype, (layout, other), "cpu")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("which", ("new", "input", "other"))
def test_out(layout, which, launched):
    for _ in range(2):
        x, y = drawn((6, 40), torch.float16, layout), drawn((6, 40), torch.float16, layout, seed=1)
        expected = reference.add(x, y)
        out = {"new": lay(torch.full_like(x, float("nan")), layout), "input": x, "other": y}[which]
        version = out._version
        assert optimized.add(x, y, out=out) is out
        assert torch.equal(out, expected) and out._version > version


def test_overlap_is_found_though_a_call_like_it_was_prepared(launched):
    memory = torch.ones(16, 8)
    optimized.add(memory[:4], memory[4:8], out=memory[8:12])
    with pytest.raises(ValueError, match="out.*overlaps other"):
        optimized.add(memory[:4], memory[6:10], out=memory[8:12])
    optimized.add(memory[:4], memory[4:8], out=memory[4:8])


def test_every_output_comes_from_the_hook(launched):
    given = []

    def allocate(shape, dtype, device):
        given.append(torch.full(shape, float("nan"), dtype=dtype))
        return given[-1]

    x = drawn((5, 9), torch.float32)
    with allocator(allocate):
        found = [function() for function in (lambda: optimized.constant_scale(x, 2.0), lambda: optimized.add(x, x)) * 2]
    assert [id(each) for each in found] == [id(each) for each in given] and len(launched) == 4


def test_scales_share_what_is_prepared(launched):
    x = drawn((5, 9), torch.float32)
    for scale in (1.0, 2, 0.0, -3.5, 1e-42):
        assert torch.equal(optimized.constant_scale(x, scale), reference.constant_scale(x, scale))
    for scale in (float("nan"), 1e39, "1", True, None):
        with pytest.raises((TypeError, ValueError), match="constant_scale: scale"):
            optimized.constant_scale(x, scale)
    assert len({id(plan) for plan, _ in launched}) == 1


def test_vectors_are_as_wide_as_alignment_allows():
    def run(function, *args):
        return plan_of(function, *args, chip=H200).kernel.split(", ")[-1].rstrip(">")

    x = torch.empty(33, 1023, dtype=torch.bfloat16, device="meta")
    assert run("constant_scale", x, 1.0) == run("add", x, x) == "8", "what follows without a gap is one row"
    assert run("constant_scale", x[:, 1:], 1.0) == "1" and run("constant_scale", x[:1, :512], 1.0) == "8"
    assert run("constant_scale", torch.empty(33, 1022, dtype=torch.bfloat16, device="meta")[:, :1000], 1.0) == "2"
    assert run("constant_scale", x.float(), 1.0) == "4"


@pytest.mark.parametrize("arch", ("sm_90a", "sm_80"))
def test_every_specialization_compiles_without_spills(arch):
    widths = {"bf16": (8, 4, 2, 1), "f16": (8, 4, 2, 1), "f32": (4, 2, 1)}
    wanted = [("pointwise.cu", f"pointwise<{op}, {element}, {run}>")
              for op in ("Scale", "Add") for element, runs in widths.items() for run in runs]
    built = jit.build(wanted, arch)
    assert {kernel: binary.spill_bytes + binary.stack_bytes for (_, kernel), binary in built.items()
            if binary.spill_bytes or binary.stack_bytes or binary.registers > 128} == {}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bytes_of_the_reference(dtype, layout):
    for shape in (*SHAPES, (1025, 4097), (1 << 24,)):
        check_both(shape, dtype, (layout, layout), "cuda")


def test_a_factor_needs_no_default_device():
    with torch.device("meta"):
        assert reference.constant_scale(torch.ones(3, device="cpu"), 0.5).tolist() == [0.5] * 3


@pytest.mark.gpu
def test_special_values():
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-45, 3e38, -3e38], device="cuda")
    x, y = (each.flatten() for each in torch.meshgrid(special, special, indexing="ij"))
    for dtype in DTYPES:
        a, b = x.to(dtype), y.to(dtype)
        for scale in (0.0, -2.0):
            found, expected = optimized.constant_scale(a, scale), reference.constant_scale(a, scale)
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(optimized.add(a, b), reference.add(a, b), rtol=0, atol=0, equal_nan=True)


@pytest.mark.gpu
def test_out_on_a_gpu_and_in_a_graph():
    x, y = drawn((64, 1000), torch.bfloat16, device="cuda"), drawn((64, 1000), torch.bfloat16, seed=1, device="cuda")
    expected = reference.add(x, y)
    target = y.clone()
    optimized.add(x, target, out=target)
    assert torch.equal(target, expected)
    target.copy_(y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimized.add(x, target, out=target)
        scaled = optimized.constant_scale(target, SCALE)
    target.copy_(y)
    graph.replay()
    assert torch.equal(target, expected) and torch.equal(scaled, reference.constant_scale(expected, SCALE))
