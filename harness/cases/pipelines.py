"""Whole pipelines of the op graph, forward and backward: inputs, work and oracle.

residual_block(x, residual, gamma, weight, dy, scale, recipe) is a pre-norm block with a scaled residual,
y = residual + scale · rmsnorm(x) · weightᵀ, written into residual, and the gradients of x, gamma and weight for the
gradient dy of y; that of the residual is dy itself. The shape of a case is (M, H): a token has H values everywhere, the
weight is H × H. With a recipe the operands of the three products are quantized, then dequantized and multiplied in
`dtype`: see harness.pipelines.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from harness import oracle
from harness.cases import values as of
from harness.cases.base import DTYPES, RECIPES, Call, Case, Common, Expected, Work
from harness.cases.linear import product

EPS, SCALE = 1e-5, 0.5
BLOCK = 32
"""What rows and columns are multiples of where blocks are quantized."""

_LOSS = {"none": 0.0, "fp8_delayed": 0.5, "fp8_current": 0.5, "mxfp8": 0.5, "nvfp4": 1.5}
"""Of a recipe: what quantized operands may put a product off by, in its units: a bound for what is broken, no more."""


class ResidualBlock(Common):
    """residual_block -> y, dx, dgamma, dweight."""

    outputs, recipes, allowance, accumulates = ("y", "dx", "dgamma", "dweight"), RECIPES, None, True

    def check(self, case: Case) -> None:
        """ValueError for another shape than (M, H), options, blocks that do not fit, and fp32 with a transform."""
        if len(case.shape) != 2 or not math.prod(case.shape):
            raise ValueError(f"{case.function} needs a shape of two, MxH")
        if case.options:
            raise ValueError(f"{case.function} has no option {case.options[0][0]}")
        if case.recipe in ("mxfp8", "nvfp4") and (case.rows % BLOCK or case.hidden % BLOCK):
            raise ValueError(f"{case.shape_text} has sizes that are no multiples of {BLOCK}")
        if case.recipe == "nvfp4" and case.dtype != "bf16":
            raise ValueError("nvfp4 transforms its operands, which must be bf16 for that")

    def in_place(self, call: Call) -> dict[str, Tensor]:
        """The residual, into which y is written."""
        return {"y": call.args[1]}

    def adversarial(self, case: Case) -> tuple[str, ...]:
        """None: what a row goes through its functions are proved with."""
        return ()

    def make(self, case: Case, device, seed: int, values: str = "normal") -> Call:
        """Inputs of `case`; the weight is as large as keeps what is added about as large as the residual."""
        self.check(case)
        (rows, hidden), source = case.shape, of.generator(device, seed)

        def drawn(*shape: int, root: int = 1, outliers: bool = False) -> Tensor:
            return of.normal(shape, DTYPES[case.dtype], device, source, outliers).mul_(root**-0.5)

        gamma = drawn(hidden).mul_(0.2).add_(1.0)
        args = (drawn(rows, hidden, outliers=True), drawn(rows, hidden), gamma, drawn(hidden, hidden, root=hidden),
                drawn(rows, hidden, root=rows))
        return Call((*args, SCALE), {"recipe": case.recipe})

    def loosely(self, call: Call) -> float:
        """The composition rounds the norm, the product, and the gradient that goes from one to the other; a recipe also
        quantizes all operands."""
        x = call.args[0]
        return 2.0**-19 * max(x.shape) ** 0.5 + 6 * torch.finfo(x.dtype).eps + _LOSS[call.kwargs["recipe"]]

    def expected(self, call: Call, times: int = 1) -> Iterator[Expected]:
        """All outputs in float64, as without a recipe; `times`: after so many calls that each add to the residual."""
        x, residual, gamma, weight, dy, scale = call.args
        x, gain, w, grad = (each.double() for each in (x, gamma, weight, dy))
        rsigma = 1 / (x.square().mean(-1, keepdim=True) + EPS).sqrt()
        normalized = x * rsigma
        everywhere = slice(None)
        yield product("y", everywhere, normalized * gain, w.t(), times * scale, residual)
        yield product("dweight", everywhere, grad.t(), normalized * gain, scale)
        dz = product("dz", everywhere, grad, w, scale)
        dx, unit = oracle.backward(dz.value, normalized, rsigma, gain, centered=False)
        unit = unit.maximum(rsigma * dz.unit * gain.abs().max())
        yield Expected("dx", everywhere, dx, unit)
        dgamma = oracle.ColumnSum(gain)
        dgamma.add(dz.value * normalized)
        yield Expected("dgamma", everywhere, *dgamma.result())

    def oracle(self, call: Call) -> dict[str, Tensor]:
        """The outputs whole, float64, keyed by name."""
        return {part.name: part.value for part in self.expected(call)}

    def work(self, case: Case) -> Work:
        """Read x, residual, gamma, weight and dy; write y, dx, dgamma and dweight; three products, a norm and its
        backward."""
        (rows, hidden), size = case.shape, DTYPES[case.dtype].itemsize
        read = 3 * rows * hidden + hidden * hidden + hidden
        written = 2 * rows * hidden + hidden * hidden + hidden
        return Work(size * read, size * written, _flops(rows, hidden), case.dtype)

    def arithmetic(self, call: Call) -> int:
        """The same, at the sizes of the tensors."""
        return _flops(*call.args[0].shape)


FAMILIES = {"residual_block": ResidualBlock()}


def _flops(rows: int, hidden: int) -> int:
    return 6 * rows * hidden * hidden + 13 * rows * hidden
