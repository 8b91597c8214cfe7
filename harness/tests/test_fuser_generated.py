"""Every pipeline of up to three operations, and every one of four that is fused somewhere, fused and unfused."""

import pytest
import torch

import reference
from harness.tests import pipelines
from reference import recipes
from reference.ops import BasicOperation

NAMES = pipelines.names()
RECIPES = (recipes.DelayedScaling(), recipes.Float8CurrentScaling(), recipes.MXFP8BlockScaling(),
           recipes.NVFP4BlockScaling())


def run(name, kernels, device="cpu", dtype=torch.float32, recipe=None):
    """(results fused, unfused, and of plain PyTorch), with what was fused checked."""
    torch.manual_seed(len(name))
    made = pipelines.make(name, device, dtype)
    given = pipelines.inputs(name, device, dtype)
    found = []
    for fuse in (True, False):
        pipeline = pipelines.sequential(made, kernels, fuse)
        with recipes.autocast(recipe is not None, recipe=recipe):
            found.append(pipelines.results(pipeline, pipeline, *given))
        lists = pipelines.lists(pipeline)
        assert lists == (pipelines.fused(name) if fuse else [[type(op).__name__ for op in made]] * 2), name
        for ops in pipeline._groups[0]._last.plan.fused:
            covered = [id(basic) for op in ops for basic in op.basic_ops]
            assert covered == list(map(id, pipeline)) and all(isinstance(op, BasicOperation) for op in pipeline)
    return *found, eager(made, given)


def eager(made, given):
    """Results of plain PyTorch."""
    return pipelines.results(lambda *tensors: pipelines.eager(made, *tensors[:1], tensors[1:]), made, *given)


def exact(name, device):
    """Results of plain PyTorch in float64 for what `run` draws in bf16."""
    torch.manual_seed(len(name))
    made = [op.double() for op in pipelines.make(name, device, torch.bfloat16)]
    x, *lists = pipelines.inputs(name, device, torch.bfloat16)
    return eager(made, (x.double(), *([each.double() for each in given] for given in lists)))


def close(name, one, other, **tolerance):
    assert one.keys() == other.keys()
    for key, value in one.items():
        torch.testing.assert_close(value, other[key], msg=lambda text: f"{name}, {key}: {text}", **tolerance)


def as_near(name, one, other, exact):
    """By the root of the mean square and by the largest difference, `one` is about as near to `exact` as `other` is."""
    assert one.keys() == other.keys() == exact.keys()
    for key, wanted in exact.items():
        unit = rms(wanted)
        ours, theirs = one[key].double() - wanted, other[key].double() - wanted
        assert rms(ours) <= 1.5 * rms(theirs) + 2**-9 * unit, (name, key)
        assert ours.abs().max() <= 2 * theirs.abs().max() + 2**-6 * unit, (name, key)


def agree(name, one, other):
    """As two ways to round in bf16 do, in units of the root of the mean square: 2^-7 by that root, 2^-3 anywhere."""
    assert one.keys() == other.keys()
    for key, wanted in other.items():
        apart, unit = one[key].double() - wanted.double(), rms(wanted)
        assert rms(apart) <= 2**-7 * unit and apart.abs().max() <= 2**-3 * unit, (name, key)


def rms(values):
    return values.double().square().mean().sqrt()


def test_the_names_are_all_there():
    kinds = len(pipelines.KINDS)
    assert len(set(NAMES)) == len(NAMES) and sum(len(name) <= 3 for name in NAMES) == kinds + kinds**2 + kinds**3
    assert {"LSA", "LSAI", "ILSA", "LS", "RLSA", "ALSN"} <= set(NAMES) and pipelines.fused("RLSA") == [
        ["RMSNorm", "ForwardLinearScaleAdd"], ["RMSNorm", "BackwardLinearScale", "AddExtraInput"]]


@pytest.mark.parametrize("first", list(pipelines.KINDS))
def test_fused_is_unfused_and_pytorch(first):
    for name in (name for name in NAMES if name[0] == first):
        fused, unfused, plain = run(name, reference)
        close(name, fused, unfused, rtol=0, atol=0)
        close(name, fused, plain, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: type(recipe).__name__)
def test_fused_is_unfused_with_each_recipe(recipe):
    """But for the gradient that BackwardLinearScale quantizes before it is scaled, not behind."""
    for name in (name for name in NAMES if "L" in name and (len(name) < 3 or name[:2] in ("RL", "QL", "LS"))):
        if len(name) < 4:
            fused, unfused, plain = run(name, reference, dtype=torch.bfloat16, recipe=recipe)
            for key, value in fused.items():
                if pipelines.BACKWARD not in name or key.startswith("output"):
                    assert torch.equal(value, unfused[key]), (name, key)
                assert cosine(value, unfused[key]) > 0.97 and cosine(value, plain[key]) > 0.95, (name, key)


@pytest.mark.parametrize("first", list(pipelines.KINDS))
def test_bf16_is_as_near_to_exact_as_pytorch(first):
    for name in (name for name in NAMES if name[0] == first):
        fused, _, plain = run(name, reference, dtype=torch.bfloat16)
        as_near(name, fused, plain, exact(name, "cpu"))


def cosine(one, other):
    return torch.cosine_similarity(one.float().flatten(), other.float().flatten(), 0)


@pytest.mark.gpu
@pytest.mark.parametrize("first", list(pipelines.KINDS))
def test_fused_is_unfused_on_the_optimized_table(first):
    import optimized
    from harness.tests.gpu import compile_ahead_of
    compile_ahead_of(*(lambda name=name, dtype=dtype: run(name, optimized, "cuda", dtype)
                       for name in (*pipelines.KINDS, "LSA") for dtype in (torch.float32, torch.bfloat16)))
    for name in (name for name in NAMES if name[0] == first):
        fused, unfused, plain = run(name, optimized, "cuda")
        close(name, fused, unfused, rtol=2e-4, atol=8e-4)
        close(name, fused, plain, rtol=2e-4, atol=16e-4)
        fused, unfused, plain = run(name, optimized, "cuda", torch.bfloat16)
        agree(name, fused, unfused)
        for each in (fused, unfused):
            as_near(name, each, plain, exact(name, "cuda"))
