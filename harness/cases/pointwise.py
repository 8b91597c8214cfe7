"""constant_scale and add: inputs, work and oracle."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from harness.cases import recipes
from harness.cases import values as of
from harness.cases.base import DTYPES, EXACT, Call, Case, Common, Expected, Work, known
from harness.cases.linear import SCALE, largest, stretches

_KINDS = ("zeros", "negative_zeros", "subnormals", "largest", "outlier", "nan", "inf")


class Pointwise(Common):
    """constant_scale(input, scale) -> output; add(input, other) -> output, which is `other` with the option `in_place`.

    float32 arithmetic of two values has one right result: outputs are compared with the reference's to the bit.
    """

    outputs, recipes, allowance, accumulates = ("output",), ("none",), EXACT, True

    def __init__(self, adds: bool):
        self.adds = adds

    def check(self, case: Case) -> None:
        """ValueError where the case has a recipe, or an option of something else."""
        if case.recipe not in self.recipes:
            raise ValueError(f"{case.function} takes no recipe but none")
        recipes.check(case, ("layout", "in_place") if self.adds else ("layout",))
        if case.option("in_place") and case.option("layout") == "expanded":
            raise ValueError(f"{case.function} writes into no expanded tensor")

    def adversarial(self, case: Case) -> tuple[str, ...]:
        """Kinds of values for the input; none where it is empty."""
        return _KINDS if math.prod(case.shape) else ()

    def make(self, case: Case, device, seed: int, values: str = "normal") -> Call:
        """Inputs of `case`, with adversarial `values` in the first where they are asked for."""
        self.check(case)
        known("kind of values", values, ("normal", *_KINDS))
        source, layout = of.generator(device, seed), case.option("layout", "contiguous")

        def drawn(spoiled: str = "normal") -> Tensor:
            shape = of.drawn_shape(case.shape, layout)
            tensor = of.normal(shape, DTYPES[case.dtype], device, source, outliers=True)
            if spoiled != "normal":
                of.spoil_blocks(_matrix(tensor), spoiled)
            return of.lay_out(tensor, layout, case.shape)

        if not self.adds:
            return Call((drawn(values), SCALE), {})
        x, other = drawn(values), drawn()
        return Call((x, other), {"out": other} if case.option("in_place") else {})

    def in_place(self, call: Call) -> dict[str, Tensor]:
        """`other`, where the sum is written into it."""
        return {"output": call.kwargs["out"]} if "out" in call.kwargs else {}

    def expected(self, call: Call, times: int = 1) -> Iterator[Expected]:
        """The output, a stretch of rows at a time; `times`: after so many calls that each add to `other`."""
        x, other = _matrix(call.args[0]), _matrix(call.args[1]) if self.adds else None
        for where in stretches(*x.shape):
            rows = x[where].double()
            value = times * rows + other[where].double() if self.adds else SCALE * rows
            yield Expected("output", where, value, largest(value))

    def oracle(self, call: Call) -> dict[str, Tensor]:
        """The output whole, float64: (rows, cols) whatever the rank."""
        return {"output": torch.cat([part.value for part in self.expected(call)])}

    def work(self, case: Case) -> Work:
        """Read the operands once, write the output once."""
        size, elements = DTYPES[case.dtype].itemsize, math.prod(case.shape)
        distinct = math.prod(of.drawn_shape(case.shape, case.option("layout", "contiguous")))
        return Work(size * distinct * (2 if self.adds else 1), size * elements, elements)

    def arithmetic(self, call: Call) -> int:
        """One operation an element."""
        return call.args[0].numel()


FAMILIES = {"constant_scale": Pointwise(adds=False), "add": Pointwise(adds=True)}


def _matrix(tensor: Tensor) -> Tensor:
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])
