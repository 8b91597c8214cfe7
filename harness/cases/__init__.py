"""The cases that the harness can build, one file per mirrored module."""

import math
from dataclasses import replace

from harness.cases import fused, linear, normalization, pipelines, pointwise, quantization, recipes
from harness.cases.base import (
    DTYPES, EXACT, FUSED, RECIPES, Allowance, Call, Case, Expected, Family, Work, known
)
from harness.cases.recipes import quantizer_of

__all__ = [
    "DTYPES", "EXACT", "FAMILIES", "FUSED", "NORMS", "PIPELINES", "PRODUCTS", "RECIPES", "Allowance", "Call", "Case",
    "Expected", "Family",
    "Work", "accepted", "family_of", "for_a_cpu", "known", "quantizer_of", "with_rows",
]

FAMILIES: dict[str, Family] = (
    normalization.FAMILIES | quantization.FAMILIES | linear.FAMILIES | fused.FAMILIES | pointwise.FAMILIES
    | pipelines.FAMILIES)
"""Function -> what the harness knows of it."""

NORMS = tuple(normalization.FAMILIES)
"""The forward and backward norms; the forward ones may run with a recipe, too."""


PRODUCTS = (*linear.FAMILIES, *fused.FAMILIES)
"""The functions whose cases have shapes MxNxK."""


PIPELINES = tuple(pipelines.FAMILIES)
"""What is no function of the packages, but runs on either as a table: see harness.pipelines."""


def family_of(function: str) -> Family:
    """The family of a function; ValueError, with the names known, where there is none."""
    return FAMILIES[known("function", function, FAMILIES)]


def accepted(case: Case) -> Case:
    """The case itself; ValueError where its function does not take its recipe, its options or its shape."""
    family_of(case.function).check(case)
    return case


def for_a_cpu(case: Case, elements: int) -> Case:
    """The case cut to about as many elements as a CPU takes in a moment; of a product all three sizes."""
    if case.function in (*PRODUCTS, *PIPELINES):
        side = math.isqrt(elements) // 2
        return replace(case, shape=tuple(min(size, side) for size in case.shape))
    return with_rows(case, max(1, elements // max(case.hidden, 1)))


def with_rows(case: Case, rows: int) -> Case:
    """The same case with at most `rows` rows, or the rows of one block: a row's values and its path through a kernel do
    not depend on the others."""
    if case.function in PRODUCTS:
        return replace(case, shape=(min(case.shape[0], rows), *case.shape[1:]))
    rows = recipes.rows_alike(case, rows)
    return case if case.rows <= rows else replace(case, shape=(rows, case.hidden))
