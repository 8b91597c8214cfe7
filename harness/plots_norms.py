"""What quantized norms reach: figures of the report."""

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from harness import style
from harness.cases import NORMS, RECIPES
from harness.cases.base import IN_TWO
from harness.plots import BIG, Cases
from harness.table import time_us

TITLES = {
    "norms_limit": "Quantized norms: percent of the limit over hidden size",
    "norms_gain": "What each fusion gains: time of norm, then quantize, over that of one launch",
}
_SIDES = {(): "rowwise", (("orientation", "both"),): "both ways"}


def section(cases: Cases, plots: Path, origin: str) -> list[str]:
    """The report's part on norms with quantized outputs, as Markdown, its figures drawn into the folder `plots`;
    nothing where there are none."""
    held = {name: of for name, of in cases.items() if (of.get("optimized") or {}).get("function") in NORMS
            and of["optimized"]["recipe"] != "none"}
    parts = []
    for name, draw in (("norms_limit", limit), ("norms_gain", gain)):
        figure = draw(held)
        if figure is not None:
            style.save(figure, plots, name, TITLES[name], origin)
            parts.append(f"[![{TITLES[name]}](plots/{name}.png)](plots/{name}.svg)")
    return ["## Norms with quantized outputs", *parts] if parts else []


def limit(cases: Cases) -> Figure | None:
    """Percent of the limit over hidden size, a panel a function, a series a recipe, filled where it is rowwise alone;
    bf16 of 4 MB and more, with the number of rows that most cases have. The limit counts x once."""
    rows = [of["optimized"] for of in cases.values()]
    rows = [row for row in rows if row.get("percent_of_limit") and (row["bytes"] or 0) >= BIG and row["dtype"] == "bf16"
            and _options(row) in _SIDES]
    if not rows:
        return None
    count = Counter(_shape(row)[0] for row in rows).most_common(1)[0][0]
    rows = [row for row in rows if _shape(row)[0] == count]
    functions = [name for name in NORMS if any(row["function"] == name for row in rows)]
    figure, axes = style.panels(len(functions), sharey=True)
    for panel, function in zip(axes, functions):
        for (recipe, side), line in _series(row for row in rows if row["function"] == function).items():
            look = style.look(RECIPES.index(recipe) - 1)
            points = sorted((_shape(row)[1], row["percent_of_limit"]) for row in line)
            panel.plot(*zip(*points), lw=1.2, ms=4, label=f"{recipe}, {_SIDES[side]}", ls="--" if side else "-",
                       mfc="white" if side else look["color"], **look)
        panel.axhline(100, color=style.INK, lw=0.8)
        style.hidden_axis(panel, [_shape(row)[1] for row in rows])
        panel.set(ylim=(0, 112), ylabel="% of limit", title=f"{function}, {count} rows")
        panel.legend(fontsize=6.5, ncols=2, loc="lower right")
    return figure


def gain(cases: Cases) -> Figure | None:
    """Bars of time on the path UNFUSED over that of the fused one, of the cases that were timed on both. The fused one
    that was asked for by its path stands before the one that was taken by default: it was timed beside the other."""
    times: dict[tuple, dict[str, float]] = defaultdict(dict)
    for row in sorted((of["optimized"] for of in cases.values()), key=lambda row: "path" in row["options"]):
        options = dict(row["options"])
        path = options.pop("path", "fused")
        if not path.endswith(IN_TWO) and (took := time_us(row)):
            key = (row["function"], row["shape"], row["dtype"], row["recipe"], tuple(sorted(options.items())))
            times[key]["unfused" if path == "unfused" else "fused"] = took
    found = {key: of["unfused"] / of["fused"] for key, of in times.items() if len(of) == 2}
    if not found:
        return None
    figure, (panel,) = style.panels(1, width=8, height=0.24 * len(found) + 0.8, dpi=style.DPI)
    places = range(len(found), 0, -1)
    colours = [style.COLOURS[RECIPES.index(recipe) - 1] for _, _, _, recipe, _ in found]
    panel.barh(places, list(found.values()), height=0.7, color=colours)
    for place, ratio in zip(places, found.values()):
        panel.annotate(f"{ratio:.2f}", (ratio, place), (3, 0), textcoords="offset points", va="center", fontsize=7)
    panel.axvline(1, color=style.INK, lw=1)
    names = [" ".join([function, shape, recipe, *dict(options).values()])
             for function, shape, _, recipe, options in found]
    panel.set_yticks(list(places), names, fontsize=7)
    panel.set_ylim(0.3, len(found) + 0.7)
    panel.grid(axis="y", visible=False)
    panel.set_xlabel("× as fast as norm, then quantize")
    return figure


def _series(rows) -> dict[tuple, list[dict[str, Any]]]:
    found = defaultdict(list)
    for row in rows:
        found[row["recipe"], _options(row)].append(row)
    return dict(sorted(found.items(), key=lambda item: (RECIPES.index(item[0][0]), item[0][1])))


def _options(row: dict[str, Any]) -> tuple:
    return tuple(sorted(row["options"].items()))


def _shape(row: dict[str, Any]) -> tuple[int, int]:
    *leading, hidden = map(int, row["shape"].split("x"))
    rows = 1
    for size in leading:
        rows *= size
    return rows, hidden
