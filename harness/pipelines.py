"""What computes the pipelines of harness.cases.pipelines: the op graph on a table, and the same block in plain PyTorch.

A quantized operand is dequantized and multiplied in bf16, until there are products of low precision: NOTE says so.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.nn import Parameter, functional

from harness.cases.base import DTYPES, Case
from harness.cases.pipelines import EPS, FAMILIES
from reference import ops, recipes

FUNCTIONS = ("residual_block",)
NOTE = "operands are quantized, then dequantized and multiplied in bf16"
RECIPES = {"none": None, "fp8_delayed": recipes.DelayedScaling(), "fp8_current": recipes.Float8CurrentScaling(),
           "mxfp8": recipes.MXFP8BlockScaling(), "nvfp4": recipes.NVFP4BlockScaling()}
SETTLING, SETTLING_SEED = 3, 1_000_004
"""Steps after which delayed scaling has scales that fit the values; of values that no other call has."""


class ResidualBlock:
    """RMSNorm, BasicLinear, ConstantScale, AddExtraInput(in_place=True) on one table, forward and backward.

    Made for one size and recipe; the parameters are those of the call. Delayed scaling takes its scales in SETTLING
    steps at the first call, from values of SETTLING_SEED, so that they are the same whatever the calls bring, and keeps
    them: a call then is a step less the update between two.
    """

    def __init__(self, kernels: ModuleType, fuse: bool = True):
        self.kernels, self.fuse, self.pipeline, self.parameters, self.given = kernels, fuse, None, (), None

    def __call__(self, x, residual, gamma, weight, dy, scale, *, recipe="none") -> tuple:
        """y, which is the residual, and the gradients of x, gamma and weight."""
        if self.pipeline is None:
            self.pipeline = residual_block(self.kernels, weight.shape[0], scale, weight.dtype, self.fuse)
        if self.pipeline.training:  # not settled yet
            if recipe == "fp8_delayed":
                self._settle(x, recipe)
            self.pipeline.eval()
        if self.given is not weight:
            self._take(gamma, weight)
        return residual, *self._step(x, residual.detach(), dy, recipe)

    def _settle(self, like, recipe):
        (dtype,) = (name for name, each in DTYPES.items() if each == like.dtype)
        call = FAMILIES["residual_block"].make(Case("residual_block", like.shape, dtype), like.device, SETTLING_SEED)
        x, residual, gamma, weight, dy, _ = call.args
        self._take(gamma, weight)
        for _ in range(SETTLING):
            self._step(x, residual.detach(), dy, recipe)

    def _take(self, gamma, weight):
        norm, linear, *_ = self.pipeline
        self.parameters, self.given = (Parameter(gamma), Parameter(weight)), weight
        norm.weight, linear.weight = self.parameters

    def _step(self, x, residual, dy, recipe):
        x, chosen = x.detach().requires_grad_(), RECIPES[recipe]
        with recipes.autocast(chosen is not None, recipe=chosen):
            y = self.pipeline(x, residual)
        return torch.autograd.grad(y, (x, *self.parameters), dy)


def residual_block(kernels: ModuleType, hidden: int, scale: float, dtype: torch.dtype, fuse: bool = True):
    """The pipeline, its parameters without memory."""
    empty = {"device": "meta", "dtype": dtype}
    return ops.Sequential(
        ops.RMSNorm(hidden, eps=EPS, **empty), ops.BasicLinear(hidden, hidden, **empty), ops.ConstantScale(scale),
        ops.AddExtraInput(in_place=True), kernels=kernels, fuse=fuse)


def plain(x, residual, gamma, weight, scale):
    """The block as PyTorch has it, the residual written in place."""
    normalized = functional.rms_norm(x, gamma.shape, gamma, EPS)
    return residual.add_(functional.linear(normalized, weight) * scale)


def in_pytorch(forward: Callable) -> Callable:
    """Forward and backward of `plain`, or of what a compiler makes of it."""

    def run(x, residual, gamma, weight, dy, scale, *, recipe="none") -> tuple:
        leaves = [each.detach().requires_grad_() for each in (x, gamma, weight)]
        y = forward(leaves[0], residual.detach(), leaves[1], leaves[2], scale)
        return residual, *torch.autograd.grad(y, leaves, dy)

    return run


def row_fields(case: Case) -> dict[str, Any]:
    """What a row of a pipeline says beside its times: how products of quantized operands are computed."""
    return {"kernel": {"products": NOTE}} if case.function in FUNCTIONS and case.recipe != "none" else {}


def function_of(name: str) -> Callable[..., tuple]:
    """What computes a residual block beside the tables' own: "unfused", "eager" or "compiled". One for each size,
    recipe and use."""
    if name == "unfused":
        import optimized
        return ResidualBlock(optimized, fuse=False)
    if name == "eager":
        return in_pytorch(plain)
    torch.compiler.reset()
    return in_pytorch(torch.compile(plain, dynamic=False))


def named(package: ModuleType, function: str) -> Callable[..., tuple]:
    """A function of a package; a pipeline with the package as its table."""
    return ResidualBlock(package) if function in FUNCTIONS else getattr(package, function)


def lists(kernels: ModuleType) -> dict[str, list[tuple[str, list[str]]]]:
    """forward, backward -> the operations that are computed, in forward order: (name, the basic ones covered)."""
    made = list(residual_block(kernels, 32, 0.5, torch.float32))
    return {direction: [(type(op).__name__, [type(each).__name__ for each in op.basic_ops]) for op in fused]
            for direction, fused in zip(("forward", "backward"), ops.OperationFuser(made, kernels).fused())}
