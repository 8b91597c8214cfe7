"""The cases that the harness can build, one file per mirrored module."""

from harness.cases.base import DTYPES, Call, Case, Expected, Family, Work, known
from harness.cases.normalization import FAMILIES, with_rows

__all__ = [
    "DTYPES", "FAMILIES", "Call", "Case", "Expected", "Family", "Work", "family_of", "known", "with_rows",
]


def family_of(function: str) -> Family:
    """The family of a function; ValueError, with the names known, where there is none."""
    return FAMILIES[known("function", function, FAMILIES)]
