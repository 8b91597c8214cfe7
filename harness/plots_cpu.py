"""Figures of a run without a GPU: time of reference and torch.compile, errors against the oracle, the compile
report."""

from collections import defaultdict
from typing import Any

from matplotlib.figure import Figure

from harness import style
from harness.plots import Cases
from harness.table import errors, time_us


def time(cases: Cases) -> Figure | None:
    """CPU time by case, on a log axis: the reference, and torch.compile's version where it was measured."""
    found = [(name, of) for name, of in cases.items() if time_us(of.get("reference"))]
    if not found:
        return None
    figure, (panel,) = style.panels(1, width=8, height=0.24 * len(found) + 1, dpi=style.DPI)
    places, drawn = range(len(found), 0, -1), []
    for index, (name, label) in enumerate((("reference", "reference"), ("compiled", "torch.compile"))):
        points = [(took / 1e3, place) for place, (_, of) in zip(places, found) if (took := time_us(of.get(name)))]
        if points:
            panel.plot(*zip(*points), ls="", ms=5, label=label, **style.look(index))
            drawn += [took for took, _ in points]
    style.plain_log(panel, "x", min(drawn), max(drawn))
    panel.set_yticks(list(places), [style.short(name) for name, _ in found], fontsize=7)
    panel.set_ylim(0.3, len(found) + 0.7)
    panel.set_xlabel("ms on this CPU")
    style.legend(figure, [panel])
    return figure


def error(cases: Cases) -> Figure | None:
    """Largest error of each reference against the oracle over hidden size, a series a dtype, with one ulp of
    each."""
    grouped = defaultdict(list)
    for of in cases.values():
        worst = errors(of["reference"])[0] if "reference" in of else None
        if worst:
            hidden = int(of["reference"]["shape"].split("x")[-1])
            grouped[of["reference"]["dtype"]].append((hidden, worst))
    if not grouped:
        return None
    figure, (panel,) = style.panels(1, width=6.5, height=3.6)
    for index, (dtype, points) in enumerate(sorted(grouped.items())):
        look = style.look(index)
        panel.scatter(*zip(*points), s=22, label=dtype, linewidths=0, **look)
        panel.axhline(ULP[dtype], color=look["color"], lw=0.8, ls="--")
    panel.set_yscale("log")
    style.hidden_axis(panel, [hidden for points in grouped.values() for hidden, _ in points])
    panel.set_ylabel("largest error (dashed: one ulp)")
    style.legend(figure, [panel])
    return figure


ULP = {"bf16": 2.0**-7, "fp16": 2.0**-10, "fp32": 2.0**-23}


def kernels(found: list[dict[str, Any]]) -> Figure | None:
    """Registers against compile time of every specialization, a series a source file; spills are ringed."""
    grouped = defaultdict(list)
    for row in found:
        if row["kind"] == "compile" and row["status"] == "OK":
            kernel = row["kernel"]
            grouped[kernel["source"]].append((row["compile_ms"], kernel["registers"], kernel["spill_bytes"]))
    if not grouped:
        return None
    figure, (panel,) = style.panels(1, width=6.5, height=3.6)
    for index, (source, points) in enumerate(sorted(grouped.items())):
        times, registers, _ = zip(*points)
        panel.scatter(times, registers, s=22, alpha=0.8, label=source, linewidths=0, **style.look(index))
        spilled = [(time, register) for time, register, spills in points if spills]
        if spilled:
            panel.scatter(
                *zip(*spilled), s=70, facecolors="none", edgecolors=style.COLOURS[1], label="spills"
            )
    panel.set(xlabel="ms to compile", ylabel="registers a thread", ylim=(0, 265))
    style.legend(figure, [panel])
    return figure
