"""Pipelines in the report: what is fused, and how long the fused pipeline takes beside its rivals."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness import style
from harness.pipelines import FUNCTIONS, NOTE, lists
from harness.plots import Cases
from harness.table import led, ratio, stated, time_us

TITLES = {
    "pipeline_fusion": "residual_block: operations before and after fusing",
    "pipeline_time": "Time of a pipeline over that of eager PyTorch, forward and backward",
}
RIVALS = {"optimized": "fused", "unfused": "unfused", "compiled": "torch.compile", "eager": "eager PyTorch"}
"""Implementation -> what it is called, in the order of bars."""
OTHERS = ("reference", "copy")
"""Columns of the table where one of them was timed."""
GAP = 0.12


def held(cases: Cases) -> Cases:
    """The cases that are pipelines."""
    return {name: of for name, of in cases.items() if next(iter(of.values()))["function"] in FUNCTIONS}


def section(cases: Cases, plots: Path, origin: str) -> list[str]:
    """The report's part on pipelines, as Markdown, its figures drawn into the folder `plots`; nothing where no row is
    of one."""
    found = held(cases)
    if not found:
        return []
    parts = ["## Pipelines"]
    for name, draw in (("pipeline_fusion", fusion), ("pipeline_time", lambda: times(found))):
        figure = draw()
        if figure is not None:
            style.save(figure, plots, name, TITLES[name], origin)
            parts.append(f"[![{TITLES[name]}](plots/{name}.png)](plots/{name}.svg)")
    if any(next(iter(of.values()))["recipe"] != "none" for of in found.values()):
        parts.append(f"With a recipe {NOTE}.")
    return [*parts, "\n".join(table(found))]


def table(cases: Cases) -> list[str]:
    """The lines of a Markdown table: time of one forward and backward, and of fused over its rivals."""
    others = [name for name in OTHERS if any(time_us(of.get(name)) for of in cases.values())]
    beside = "".join(f" {name} µs |" for name in others)
    lines = [f"| pipeline | fused µs | unfused µs | torch.compile µs | eager µs |{beside} / unfused | / compile | "
             "/ eager | status |", "|---|" + "--:|" * (7 + len(others)) + "---|"]
    for name, of in cases.items():
        took = [time_us(of.get(rival)) for rival in (*RIVALS, *others)]
        ratios = [ratio(of.get("optimized"), of.get(rival)) for rival in ("unfused", "compiled", "eager")]
        figures = [_cell(each, ".1f") for each in took] + [_cell(each, ".2f") for each in ratios]
        row, named = led(of, "optimized")
        lines.append(f"| {name} | {' | '.join(figures)} | {stated(row)}{named} |")
    return lines


def fusion() -> Figure:
    """The operations of the block in their order, and below them what computes them, forward and backward."""
    import reference

    found = lists(reference)
    figure, axes = style.panels(len(found), width=6.2, height=1.9)
    for panel, (direction, ops) in zip(axes, found.items()):
        _draw(panel, ops)
        panel.set(title=f"{direction}, {'from left to right' if direction == 'forward' else 'from right to left'}")
    return figure


def _draw(panel: Axes, ops: list[tuple[str, list[str]]]) -> None:
    """Basic operations as boxes in a row; under them one box for each that is computed, as wide as what it covers."""
    place, count = 0, sum(len(covered) for _, covered in ops)
    for name, covered in ops:
        for offset, basic in enumerate(covered):
            _box(panel, place + offset, 1, 1, basic, style.GREY, filled=False)
        fused = len(covered) > 1
        _box(panel, place, 0, len(covered), name, style.COLOURS[0 if fused else 6], filled=fused)
        place += len(covered)
    panel.set(xlim=(-0.05, count), ylim=(-0.1, 2), yticks=[0.35, 1.35], yticklabels=["after", "before"], xticks=[])
    panel.grid(visible=False)
    panel.tick_params(left=False)
    for side in ("left", "bottom"):
        panel.spines[side].set_visible(False)


def _box(panel: Axes, place: int, level: int, width: int, name: str, colour: str, *, filled: bool) -> None:
    panel.barh(level, width - GAP, height=0.7, left=place, align="edge", edgecolor=colour, linewidth=1.2,
               color=colour if filled else "white")
    panel.text(place + (width - GAP) / 2, level + 0.35, name, ha="center", va="center", fontsize=7,
               color="white" if filled else style.INK)


def times(cases: Cases) -> Figure | None:
    """Bars of time over that of eager PyTorch, those of a case together; the cases for which that was timed."""
    found = {name: of for name, of in cases.items() if time_us(of.get("optimized")) and time_us(of.get("eager"))}
    if not found:
        return None
    names = [name for name in RIVALS if any(time_us(of.get(name)) for of in found.values())]
    figure, (panel,) = style.panels(1, width=8, height=0.16 * (len(names) + 1) * len(found) + 0.8, dpi=style.DPI)
    for index, name in enumerate(names):
        bars = [(place, time_us(of[name]) / time_us(of["eager"])) for place, of in enumerate(found.values())
                if time_us(of.get(name))]
        places = [-place - index / (len(names) + 1) for place, _ in bars]
        panel.barh(places, [ratio for _, ratio in bars], height=0.9 / (len(names) + 1), label=RIVALS[name],
                   color=style.COLOURS[index])
        for place, (_, ratio) in zip(places, bars):
            panel.annotate(f"{ratio:.2f}", (ratio, place), (3, 0), textcoords="offset points", va="center", fontsize=6)
    panel.axvline(1, color=style.INK, lw=1)
    panel.set_yticks([-place - 0.3 for place in range(len(found))], [style.short(name) for name in found], fontsize=7)
    panel.grid(axis="y", visible=False)
    panel.set_xlabel("time / time of eager PyTorch")
    style.legend(figure, [panel])
    return figure


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"
