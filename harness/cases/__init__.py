"""The cases that the harness can build, one file per mirrored module."""

from dataclasses import replace

from harness.cases import normalization, quantization, recipes
from harness.cases.base import (
    DTYPES, EXACT, FUSED, RECIPES, Allowance, Call, Case, Expected, Family, Work, known
)
from harness.cases.recipes import quantizer_of

__all__ = [
    "DTYPES", "EXACT", "FAMILIES", "FUSED", "NORMS", "RECIPES", "Allowance", "Call", "Case", "Expected", "Family",
    "Work", "accepted", "family_of", "known", "quantizer_of", "with_rows",
]

FAMILIES: dict[str, Family] = normalization.FAMILIES | quantization.FAMILIES
"""Function -> what the harness knows of it."""

NORMS = tuple(normalization.FAMILIES)
"""The functions that may run without a recipe."""


def family_of(function: str) -> Family:
    """The family of a function; ValueError, with the names known, where there is none."""
    return FAMILIES[known("function", function, FAMILIES)]


def accepted(case: Case) -> Case:
    """The case itself; ValueError where its function does not take its recipe, its options or its shape."""
    family_of(case.function).check(case)
    return case


def with_rows(case: Case, rows: int) -> Case:
    """The same case with at most `rows` rows, or the rows of one block: a row's values and its path through a kernel do
    not depend on the others."""
    rows = recipes.rows_alike(case, rows)
    return case if case.rows <= rows else replace(case, shape=(rows, case.hidden))
