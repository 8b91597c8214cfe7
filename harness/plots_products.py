"""Figure of the matrix products of a run on a GPU: how near to the limit optimized and its rivals come."""

from collections import defaultdict
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness import style
from harness.cases import PRODUCTS

SERIES = ("optimized", "cublas", "unfused")
MOST_BARS = 24


def percent_of_limit(cases: dict[str, dict[str, dict[str, Any]]]) -> Figure | None:
    """Percent of the limit by shape, a panel a function, a bar for optimized, cuBLAS and PyTorch's separate operations.
    Plain bf16 cases, the most arithmetic where there are many; None where there is none."""
    grouped = defaultdict(list)
    for of in cases.values():
        row = of.get("optimized")
        plain = row and row["function"] in PRODUCTS and row["dtype"] == "bf16" and not row["options"]
        if plain and row["percent_of_limit"]:
            grouped[row["function"]].append(of)
    if not grouped:
        return None
    figure, axes = style.panels(len(grouped), width=7.0, height=3.1, sharey=True)
    for panel, (function, members) in zip(axes, grouped.items()):
        kept = sorted(sorted(members, key=_flops)[-MOST_BARS:], key=_sizes)
        for index, name in enumerate(SERIES):
            _bars(panel, kept, name, index)
        panel.axhline(100, color=style.INK, lw=0.8)
        shapes = [of["optimized"]["shape"] for of in kept]
        panel.set_xticks(range(len(kept)), shapes, rotation=60, ha="right", fontsize=6)
        panel.set(ylim=(0, 112), ylabel="% of limit", title=function)
        panel.grid(axis="x", visible=False)
    style.legend(figure, axes)
    return figure


def _bars(panel: Axes, kept: list[dict[str, dict[str, Any]]], name: str, index: int) -> None:
    found = [(x + 0.27 * (index - 1), of[name]["percent_of_limit"]) for x, of in enumerate(kept)
             if (of.get(name) or {}).get("percent_of_limit")]
    if found:
        panel.bar(*zip(*found), width=0.26, color=style.COLOURS[index], label="cuBLAS" if name == "cublas" else name)


def _flops(of: dict[str, dict[str, Any]]) -> int:
    return of["optimized"]["flops"] or 0


def _sizes(of: dict[str, dict[str, Any]]) -> tuple[int, ...]:
    m, n, k = map(int, of["optimized"]["shape"].split("x"))
    return n * k, n, m
