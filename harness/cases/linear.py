"""linear_fwd and linear_bwd: inputs, work and oracle; also of their fusions, which harness.cases.fused registers.

The shape of a case is (M, N, K): input (M, K), weight (N, K), output (M, N). Options: `layout` of every operand;
forward `out_dtype`; `gradients` "input" or "weight", the only one that backward is asked for; `main_grad`, the dtype of
the buffer that the weight's gradient is added to; `in_place`.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from harness.cases import recipes
from harness.cases import values as of
from harness.cases.base import DTYPES, Call, Case, Common, Expected, Work, known

CHUNK = 1 << 24
"""Elements of a stretch: its float64 temporaries take about 0.5 GB, those of a weight come on top."""

SCALE = 0.75
_KINDS = ("zero_row", "constant_row", "subnormals", "nan", "inf")
_OWN = ("largest", "outlier")
"""Kinds whose products fp16 cannot hold before they are scaled: of functions that round once."""


class Products(Common):
    """What the four functions share. `fused` ones scale their products."""

    recipes, allowance, accumulates = ("none",), None, True

    def __init__(self, outputs: tuple[str, ...], fused: bool):
        self.outputs, self.fused = outputs, fused

    def check(self, case: Case) -> None:
        """ValueError where the case has a recipe, another shape than (M, N, K), or an option of something else."""
        if case.recipe not in self.recipes:
            raise ValueError(f"{case.function} takes no recipe but none")
        if len(case.shape) != 3:
            raise ValueError(f"{case.function} needs a shape of three, MxNxK")
        recipes.check(case, self.options, least=0)
        if case.option("layout") == "expanded":
            raise ValueError(f"{case.function} has no layout expanded")

    def adversarial(self, case: Case) -> tuple[str, ...]:
        """Kinds of values for the input, of backward for the gradient of the output."""
        if not math.prod(case.shape):
            return ()
        return _KINDS if self.fused and case.dtype == "fp16" else (*_KINDS, *_OWN)

    def oracle(self, call: Call) -> dict[str, Tensor]:
        """The outputs whole, float64, keyed by name, as matrices."""
        parts = {}
        for part in self.expected(call):
            parts.setdefault(part.name, []).append(part.value)
        return {name: torch.cat(stretches) for name, stretches in parts.items()}

    def _tensors(self, case: Case, device, seed: int, values: str):
        """A function that draws a matrix: normal values about 0, divided by `root`'s root, adversarial where asked."""
        known("kind of values", values, ("normal", *_KINDS, *_OWN))
        source, layout = of.generator(device, seed), case.option("layout", "contiguous")

        def drawn(rows: int, cols: int, root: int = 1, outliers: bool = False, spoiled: bool = False) -> Tensor:
            tensor = of.normal((rows, cols), DTYPES[case.dtype], device, source, outliers)
            tensor *= max(root, 1) ** -0.5
            if spoiled and values != "normal":
                of.spoil(tensor, values)
            return of.lay_out(tensor, layout, tensor.shape)

        return drawn

    def _scale(self) -> tuple:
        return (SCALE,) if self.fused else ()

    def loosely(self, call: Call) -> float:
        """Long sums lose digits of float32 as the root of their length; a composition rounds results, or an operand."""
        terms = max(size for tensor in call.tensors() for size in tensor.shape)
        return 2.0**-19 * terms**0.5 + self._rounded(terms) * torch.finfo(call.args[0].dtype).eps


class Forward(Products):
    """linear_fwd(input, weight) -> output; linear_scale_add_fwd(input, weight, residual, scale) -> output, which is the
    residual unless `in_place` is False."""

    def __init__(self, fused: bool):
        super().__init__(("output",), fused)
        self.options = ("layout", "in_place") if fused else ("layout", "out_dtype")
        self.closer = fused

    def make(self, case: Case, device, seed: int, values: str = "normal") -> Call:
        """Inputs of `case`; the weight is as large as keeps the output about as large as the input."""
        self.check(case)
        (m, n, k), drawn = case.shape, self._tensors(case, device, seed, values)
        x, w = drawn(m, k, outliers=True, spoiled=True), drawn(n, k, root=k)
        if self.fused:
            options = {} if case.option("in_place") is None else {"in_place": case.option("in_place")}
            return Call((x, w, drawn(m, n), SCALE), options)
        return Call((x, w), {"out_dtype": DTYPES[case.option("out_dtype")]} if case.option("out_dtype") else {})

    def _rounded(self, terms: int) -> float:
        return 2 if self.fused else 0

    def in_place(self, call: Call) -> dict[str, Tensor]:
        """The residual, where the output is written into it."""
        return {"output": call.args[2]} if self.fused and call.kwargs.get("in_place", True) else {}

    def expected(self, call: Call, times: int = 1) -> Iterator[Expected]:
        """The output, a stretch of rows at a time; `times`: after so many calls that each add to the residual."""
        x, w, *rest = call.args
        residual, factor = (rest[0], times * SCALE) if rest else (None, 1.0)
        weight = w.double()
        for where in stretches(x.shape[0], max(w.shape)):
            yield product("output", where, x[where].double(), weight.t(), factor, residual)

    def work(self, case: Case) -> Work:
        """Read input, weight and residual; write the output."""
        (m, n, k), size = case.shape, DTYPES[case.dtype].itemsize
        out = DTYPES[case.option("out_dtype", case.dtype)].itemsize
        return Work(size * (m * k + n * k + (m * n if self.fused else 0)), out * m * n, 2 * m * n * k, case.dtype)

    def arithmetic(self, call: Call) -> int:
        """A product and a sum for each element of the output and each of K."""
        return 2 * call.args[0].shape[0] * call.args[1].numel()


class Backward(Products):
    """linear_bwd(grad_output, input, weight) -> grad_input, grad_weight; linear_scale_bwd(…, scale) -> the same."""

    options = ("layout", "gradients", "main_grad")

    def __init__(self, fused: bool):
        super().__init__(("grad_input", "grad_weight"), fused)

    def check(self, case: Case) -> None:
        """As of all; and a buffer needs a gradient to be added."""
        super().check(case)
        if case.option("gradients") == "input" and case.option("main_grad"):
            raise ValueError(f"{case.function} with gradients=input adds nothing to main_grad")

    def make(self, case: Case, device, seed: int, values: str = "normal") -> Call:
        """Inputs of `case`; the gradient is as large as keeps that of the weight about as large as the input."""
        self.check(case)
        (m, n, k), drawn = case.shape, self._tensors(case, device, seed, values)
        asked, main_grad = case.option("gradients"), case.option("main_grad")
        dy = drawn(m, n, root=m, outliers=True, spoiled=True)
        x = None if asked == "input" else drawn(m, k, outliers=True)
        w = None if asked == "weight" else drawn(n, k, root=k)
        options = {}
        if asked:
            options = {"input_requires_grad": asked == "input", "weight_requires_grad": asked == "weight"}
        if main_grad:
            buffer = drawn(n, k).to(DTYPES[main_grad])
            options |= {"grad_weight": buffer, "accumulate_into_grad_weight": True}
        return Call((dy, x, w, *self._scale()), options)

    def _rounded(self, terms: int) -> float:
        """Each of the terms is off by at most eps / 2, by 0.21 eps as a rule, and they add up as their root at most.
        But signs are random: in 2³⁰ sums to 6.3 times 0.21 eps, that is 1.3 eps, or 2 where a few terms
        outweigh all."""
        return min(terms**0.5, 4) / 2 if self.fused else 0

    def in_place(self, call: Call) -> dict[str, Tensor]:
        """The buffer that the weight's gradient is added to."""
        buffer = call.kwargs.get("grad_weight")
        return {} if buffer is None else {"grad_weight": buffer}

    def expected(self, call: Call, times: int = 1) -> Iterator[Expected]:
        """Both gradients, a stretch of rows at a time; `times`: after so many calls that each add to the buffer."""
        dy, x, w, *_ = call.args
        factor = SCALE if self.fused else 1.0
        if w is not None:
            weight = w.double()
            for where in stretches(dy.shape[0], max(w.shape)):
                yield product("grad_input", where, dy[where].double(), weight, factor)
        if x is not None:
            buffer, input = call.kwargs.get("grad_weight"), x.double()
            repeated = factor if buffer is None else times * factor
            for where in stretches(dy.shape[1], max(x.shape)):
                yield product("grad_weight", where, dy[:, where].double().t(), input, repeated, buffer)

    def work(self, case: Case) -> Work:
        """Read what the gradients that are asked for need, and the buffer; write them."""
        (m, n, k), size = case.shape, DTYPES[case.dtype].itemsize
        asked, main_grad = case.option("gradients"), case.option("main_grad")
        buffer = DTYPES[main_grad].itemsize if main_grad else 0
        read, written, count = size * m * n, 0, 0
        if asked != "weight":
            read, written, count = read + size * n * k, written + size * m * k, count + 1
        if asked != "input":
            read, count = read + size * m * k + buffer * n * k, count + 1
            written += (buffer or size) * n * k
        return Work(read, written, 2 * count * m * n * k, case.dtype)

    def arithmetic(self, call: Call) -> int:
        """A product and a sum for each element of a gradient and each that its sums run over."""
        dy, x, w, *_ = call.args
        return 2 * sum(dy.shape[0] * w.numel() if each is w else dy.shape[1] * x.numel()
                       for each in (x, w) if each is not None)


FAMILIES = {"linear_fwd": Forward(fused=False), "linear_bwd": Backward(fused=False)}


def product(name: str, where: slice, a: Tensor, b: Tensor, factor: float, c: Tensor | None = None) -> Expected:
    """factor · a b + c, for the rows `where` of the output, in float64.

    The unit is the largest magnitude of the row, of the result and of c, or that which sums of so many terms of random
    signs come to, if that is larger: factor · |row of a| · |column of b| / √terms.
    """
    value = factor * (a @ b)
    columns = b.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).norm(dim=0)
    rows = a.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).norm(dim=1, keepdim=True)
    most = columns.max() if columns.numel() else columns.new_zeros(())
    unit = abs(factor) * rows * most / max(a.shape[1], 1) ** 0.5
    if c is not None:
        added = c[where].double()
        value, unit = value + added, unit.maximum(largest(added))
    return Expected(name, where, value, unit.maximum(largest(value)))


def stretches(rows: int, width: int) -> Iterator[slice]:
    """Slices that cover the rows, each of about CHUNK elements; one empty slice where there are none."""
    step = max(1, CHUNK // max(width, 1))
    for start in range(0, max(rows, 1), step):
        yield slice(start, min(start + step, rows))


def largest(rows: Tensor) -> Tensor:
    """The largest finite magnitude of each row, (rows, 1)."""
    if not rows.shape[1]:
        return rows.new_zeros(len(rows), 1)
    return rows.abs().nan_to_num(nan=0.0, posinf=0.0).amax(-1, keepdim=True)
