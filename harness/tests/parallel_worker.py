"""What every rank of a test of tensor parallelism does: each scenario on its shares, beside the whole on one rank."""

import copy
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as distributed

from harness.tests import pipelines
from reference import ops, recipes

ROWS, SIZE = 64, 64
LIMIT = timedelta(seconds=60)
"""After which a rank that waits for one that has failed fails, too."""
MODES = [(mode, sequence, recipe) for mode in ("column", "row") for sequence in (False, True)
         for recipe in (None, "current")]


def start(rank, size, folder, backend="gloo"):
    """One rank: run every scenario, and leave {scenario: error} in the folder. With "nccl" on a GPU of its own, and on
    the optimized table."""
    torch.set_num_threads(1)
    if backend == "nccl":
        import optimized
        torch.cuda.set_device(rank)
        torch.set_default_device(f"cuda:{rank}")
        ops.Sequential.kernels = optimized
    distributed.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=size,
                                   timeout=LIMIT)
    found = {}
    for name, scenario in SCENARIOS.items():
        torch.manual_seed(7)
        try:
            scenario(rank, size)
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
        distributed.barrier()
    torch.save(found, Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()


def share(tensor, dim, rank, size):
    """This rank's part of a tensor along a dimension."""
    return tensor.chunk(size, dim)[rank].contiguous()


def _split(mode, sequence, recipe=None, group=None, accumulate=False):
    """One layer with what surrounds it, whole and split: outputs, gradients, and what was fused."""
    def scenario(rank, size):
        if group:
            rank, size = rank % 2, 2
        members = GROUPS.get(group)
        chosen = None if recipe is None else recipes.Float8CurrentScaling()
        whole = ops.Sequential(ops.BasicLinear(SIZE, SIZE), ops.ConstantScale(0.5), ops.AddExtraInput(in_place=True))
        linear = ops.BasicLinear(SIZE, SIZE, tensor_parallel_mode=mode, sequence_parallel=sequence,
                                 tensor_parallel_group=members, accumulate_into_main_grad=accumulate)
        weight_dim = 0 if mode == "column" else 1
        with torch.no_grad():
            linear.weight.copy_(share(whole[0].weight, weight_dim, rank, size))
        if accumulate:
            linear.weight.main_grad = torch.ones_like(linear.weight)
        split = ops.Sequential(linear, *[copy.deepcopy(op) for op in whole[1:]])
        rows, columns = lambda t: share(t, 0, rank, size), lambda t: share(t, 1, rank, size)
        inward = (rows if sequence else _all) if mode == "column" else columns
        outward = columns if mode == "column" else rows if sequence else _all
        x, residual, grad = torch.randn(3, ROWS, SIZE).unbind(0)
        wanted = _gradients(whole, x, residual, grad, chosen)
        found = _gradients(split, inward(x), outward(residual), outward(grad), chosen)
        wanted = [outward(wanted[0]), inward(wanted[1]), outward(wanted[2]), share(wanted[3], weight_dim, rank, size)]
        if accumulate:
            assert found[3] is None and linear.weight.grad is None
            found[3], wanted[3] = linear.weight.main_grad, wanted[3] + 1
        _check(found, wanted, quantized=recipe is not None)
        assert pipelines.lists(split) == [
            ["ForwardLinearScaleAdd"] if mode == "column" else ["BasicLinear", "ConstantScale", "AddExtraInput"],
            ["BackwardLinearScale", "AddExtraInput"] if mode == "row"
            else ["BasicLinear", "ConstantScale", "AddExtraInput"]]

    return scenario


def _check(found, wanted, quantized):
    for one, other in zip(found, wanted, strict=True):
        if quantized:
            assert torch.cosine_similarity(one.flatten(), other.flatten(), 0) > 0.99
        else:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


def _all(tensor):
    return tensor.clone()


def _gradients(pipeline, x, residual, grad, recipe):
    x, residual = x.detach().requires_grad_(), residual.detach().requires_grad_()
    with recipes.autocast(recipe is not None, recipe=recipe):
        y = pipeline(x, residual.clone())
    y.backward(grad)
    return [y.detach(), x.grad, residual.grad, pipeline[0].weight.grad]


def _two_layers(rank, size):
    """A column layer, a bias, a row layer, with a norm in front: a block of Megatron's."""
    for sequence in (False, True):
        whole = ops.Sequential(ops.RMSNorm(SIZE), ops.BasicLinear(SIZE, 2 * SIZE), ops.Bias(2 * SIZE),
                               ops.BasicLinear(2 * SIZE, SIZE))
        split = ops.Sequential(
            ops.RMSNorm(SIZE),
            ops.BasicLinear(SIZE, 2 * SIZE, tensor_parallel_mode="column", sequence_parallel=sequence),
            ops.Bias(2 * SIZE, tensor_parallel_mode="column"),
            ops.BasicLinear(2 * SIZE, SIZE, tensor_parallel_mode="row", sequence_parallel=sequence))
        with torch.no_grad():
            whole[2].bias.copy_(torch.randn(2 * SIZE))
            split[2].bias.copy_(share(whole[2].bias, 0, rank, size))
            for index, dim in ((1, 0), (3, 1)):
                split[index].weight.copy_(share(whole[index].weight, dim, rank, size))
        part = (lambda t: share(t, 0, rank, size)) if sequence else _all
        x, grad = torch.randn(2, ROWS, SIZE).unbind(0)
        results = []
        for pipeline, of in ((whole, _all), (split, part)):
            given = of(x).requires_grad_()
            y = pipeline(given)
            y.backward(of(grad))
            results.append([y.detach(), given.grad, pipeline[2].bias.grad, pipeline[1].weight.grad])
        (y, dx, dbias, dweight), found = results
        _check(found, [part(y), part(dx), share(dbias, 0, rank, size), share(dweight, 0, rank, size)], False)


def _quantize_beside(rank, size):
    """A tensor that ranks gather may come quantized: its values are exchanged."""
    for mode, before, behind in (("column", ops.Quantize(), ops.Identity()),
                                 ("row", ops.Identity(), ops.Quantize(forward=False, backward=True))):
        linear = ops.BasicLinear(SIZE, SIZE, tensor_parallel_mode=mode, sequence_parallel=True)
        found = []
        for pipeline in (ops.Sequential(linear), ops.Sequential(before, linear, behind)):
            torch.manual_seed(rank)
            x = torch.randn(ROWS // size if mode == "column" else ROWS, linear.local_in_features, requires_grad=True)
            with recipes.autocast(recipe=recipes.Float8CurrentScaling()):
                y = pipeline(x)
            found.append([y, *torch.autograd.grad(y.square().sum(), (x, linear.weight))])
        _check(*found, quantized=True)


def _delayed_scaling(rank, size):
    """Ranks that see other values take the same scales; those that do not reduce take their own."""
    for reduces in (True, False):
        recipe = recipes.DelayedScaling(reduce_amax=reduces)
        pipeline = ops.Sequential(ops.BasicLinear(SIZE, SIZE))
        for _ in range(2):
            x = torch.full((ROWS, SIZE), float(rank + 1), requires_grad=True)
            with recipes.autocast(recipe=recipe):
                y = pipeline(x)
            y.backward(torch.full_like(y, 0.5 * (rank + 1)))
        scale = pipeline[0]._state.scale
        largest = size if reduces else rank + 1
        assert scale[0] == 448 / largest and scale[2] == 57344 / (0.5 * largest), (scale, largest)
    amax = torch.tensor([float("nan") if rank == 1 else 3.0])
    state = recipes.DelayedScaling().state(("input",))
    state.amax_history[0] = -amax
    from reference.ops.quantizing import _reduce
    _reduce([state], None)
    assert state.amax_history[0].isnan().all()


def _bad_input(rank, size):
    for words, make in (
        ("must be a multiple", lambda: ops.BasicLinear(SIZE, 7, tensor_parallel_mode="column")),
        ("must be a multiple", lambda: ops.BasicLinear(7, SIZE, tensor_parallel_mode="row")),
        ("tensor_parallel_mode is None", lambda: ops.BasicLinear(8, 8, tensor_parallel_group=distributed.group.WORLD)),
        ("a ProcessGroup", lambda: ops.BasicLinear(8, 8, tensor_parallel_mode="row", tensor_parallel_group=3)),
        ("no rows to share", lambda: ops.BasicLinear(8, 8, tensor_parallel_mode="column", sequence_parallel=True)(
            torch.ones(8))),
        ("multiple of the", lambda: ops.BasicLinear(8, 8, tensor_parallel_mode="row", sequence_parallel=True)(
            torch.ones(size + 1, 8 // size))),
    ):
        try:
            make()
        except ValueError as error:
            assert words in str(error), error
        else:
            raise AssertionError(words)


def _groups(rank, size):
    """Layers on two of four ranks, and on a group of one, where there is nothing to exchange."""
    if size < 4:
        return
    pairs = [distributed.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    GROUPS["pair"] = pairs[rank // 2]
    for sequence in (False, True):
        for mode in ("column", "row"):
            torch.manual_seed(rank // 2)
            _split(mode, sequence, group="pair")(rank, size)
    single = [distributed.new_group([each]) for each in range(size)][rank]
    linear = ops.BasicLinear(8, 8, tensor_parallel_mode="row", tensor_parallel_group=single, sequence_parallel=True)
    assert linear.tensor_parallel_mode is None and linear.weight.shape == (8, 8)
    other = pairs[1 - rank // 2]
    for take in (lambda: ops.BasicLinear(8, 8, tensor_parallel_mode="row", tensor_parallel_group=other),
                 lambda: recipes.autocast(amax_reduction_group=other).__enter__()):
        try:
            take()
        except ValueError as error:
            assert "a group that this rank is in" in str(error)
        else:
            raise AssertionError("a group of others was taken")


GROUPS: dict = {}
SCENARIOS = {f"{mode}{' sequence' * sequence}{' quantized' if recipe else ''}": _split(mode, sequence, recipe)
             for mode, sequence, recipe in MODES}
SCENARIOS |= {
    "main_grad column": _split("column", True, accumulate=True), "main_grad row": _split("row", False, accumulate=True),
    "two layers": _two_layers, "quantize beside": _quantize_beside, "delayed scaling": _delayed_scaling,
    "bad input": _bad_input, "groups": _groups,
}
