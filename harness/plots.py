"""Figures of a run on a GPU: speed-up, percent of limit, time against bytes, error, peers.

Each takes the cases of a run, as `harness.table.cases` groups them, and returns a figure, or None where the
rows have nothing to show in it.
"""

from collections import Counter, defaultdict
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness import peers, style, table
from harness.cases import NORMS, PRODUCTS
from harness.table import errors, time_us

Cases = dict[str, dict[str, dict[str, Any]]]
MOST_BARS = 16
BIG = 4_000_000  # bytes; below, the launch is what takes the time


def speedup(cases: Cases) -> Figure | None:
    """Bars of reference time (of products: cuBLAS's) / optimized time by shape, a panel a function, with the 95 %
    interval over replicates, or without replicates the one that the intervals of both medians allow; the largest shapes
    where there are many."""
    found = [of for of in cases.values() if time_us(of.get("optimized")) and time_us(table.base(of))]
    grouped = _by_function([of for of in found if not of["optimized"]["options"]] or found)
    if not grouped:
        return None
    figure, axes = style.panels(len(grouped), height=2.9)
    for panel, (function, members) in zip(axes, grouped.items()):
        kept = sorted(sorted(members, key=_bytes)[-MOST_BARS:], key=_order)
        ratios = [_ratio(table.base(of), of["optimized"]) for of in kept]
        middle = [ratio[1] for ratio in ratios]
        spread = [[max(m - low, 0) for low, m, _ in ratios], [max(high - m, 0) for _, m, high in ratios]]
        panel.bar(
            range(len(kept)), middle, yerr=spread, color=style.COLOURS[0], width=0.7, error_kw={"lw": 0.8}
        )
        for x, value in enumerate(middle):
            panel.annotate(
                f"{value:.2f}" if value < 2 else f"{value:.1f}", (x, value), (0, 3),
                textcoords="offset points", ha="center", fontsize=7
            )
        panel.set_xticks(
            range(len(kept)), [_shape(of["optimized"]) for of in kept], rotation=45, ha="right", fontsize=7
        )
        over = "cuBLAS" if function in PRODUCTS else "reference"
        panel.set(ylabel=f"× {over}", xlim=(-0.6, max(len(kept), 10) - 0.4))
        panel.margins(y=0.12)
        panel.grid(axis="x", visible=False)
        panel.set_title(_title(function, len(kept), len(members)))
    return figure


def percent_of_limit(cases: Cases) -> Figure | None:
    """Percent of the limit over hidden size, a panel a function, a series a number of rows; beside each, dashed, the
    copy of the same bytes. Plain bf16 cases of 4 MB and more that are no products; of the row counts, those with the
    most hidden sizes, and one series of all where each size has its own."""
    found = [
        of
        for of in cases.values()
        if (of.get("optimized") or {}).get("percent_of_limit")
        and _bytes(of) >= BIG
        and of["optimized"]["function"] not in PRODUCTS
        and of["optimized"]["dtype"] == "bf16"
        and not of["optimized"]["options"]
        and not (of["optimized"]["function"] in NORMS and of["optimized"]["recipe"] != "none")
    ]
    grouped = _by_function(found)
    if not grouped:
        return None
    sizes = Counter(rows for rows, _ in set(map(_rows_hidden, found)))
    apart = len(sizes) > 1 and max(sizes.values()) == 1
    counts = [None] if apart else sorted(count for count, _ in sizes.most_common(len(style.MARKERS)))
    hidden = [_rows_hidden(of)[1] for of in found]
    figure, axes = style.panels(len(grouped), sharey=True)
    for index, count in enumerate(counts):
        axes[0].plot([], [], label="rows for each size" if apart else f"{count} rows", **style.look(index))
    axes[0].plot([], [], ls="--", color=style.GREY, label="copy of the same bytes")
    for panel, (function, members) in zip(axes, grouped.items()):
        for index, count in enumerate(counts):
            line = [of for of in members if count in (None, _rows_hidden(of)[0])]
            _limit_lines(panel, sorted(line, key=_order), index)
        panel.axhline(100, color=style.INK, lw=0.8)
        style.hidden_axis(panel, hidden)
        panel.set(
            ylim=(0, 112), xlim=(min(hidden) / 1.2, max(hidden) * 1.2), ylabel="% of limit", title=function
        )
    style.legend(figure, axes)
    return figure


def _limit_lines(panel: Axes, line: list[dict[str, dict[str, Any]]], index: int) -> None:
    if not line:
        return
    hidden, look = [_rows_hidden(of)[1] for of in line], style.look(index)
    panel.plot(hidden, [of["optimized"]["percent_of_limit"] for of in line], lw=1.2, ms=4, **look)
    copied = [
        (size, of["copy"]["percent_of_limit"])
        for size, of in zip(hidden, line)
        if (of.get("copy") or {}).get("percent_of_limit")
    ]
    if copied:
        panel.plot(*zip(*copied), lw=0.9, ls="--", marker="_", color=look["color"], alpha=0.6)


def time_against_bytes(cases: Cases, copy_tbs: float | None) -> Figure | None:
    """Graph time of every optimized case over the bytes that it moves, log-log, with the time of the copy
    rate."""
    grouped = _by_function([of for of in cases.values() if time_us(of.get("optimized")) and _bytes(of)])
    if not grouped:
        return None
    figure, (panel,) = style.panels(1, width=7.5, height=4.6)
    for index, (function, members) in enumerate(grouped.items()):
        points = [(_bytes(of) / 1e6, time_us(of["optimized"])) for of in members]
        panel.scatter(*zip(*points), s=18, alpha=0.85, label=function, linewidths=0, **style.look(index))
    members = [of for members in grouped.values() for of in members]
    sizes, times = [_bytes(of) / 1e6 for of in members], [time_us(of["optimized"]) for of in members]
    if copy_tbs:
        panel.plot(
            [1e-3, 1e5],
            [1e-3 / copy_tbs, 1e5 / copy_tbs],
            color=style.INK,
            lw=1,
            label=f"limit: the copy rate, {copy_tbs:.2f} TB/s",
        )
    style.plain_log(panel, "x", min(sizes), max(sizes))
    style.plain_log(panel, "y", min(times), max(times))
    panel.set(xlabel="MB read and written", ylabel="µs (CUDA graph)")
    panel.legend(fontsize=8)
    return figure


def error(cases: Cases) -> Figure | None:
    """Largest error of optimized against that of the reference, both against the oracle, with the lines y =
    x, y = 2x."""
    grouped = defaultdict(list)
    for of in cases.values():
        ours, _, reference = errors(of["optimized"]) if "optimized" in of else (None, None, None)
        if ours and reference:
            grouped[of["optimized"]["function"]].append((reference, ours))
    if not grouped:
        return None
    figure, (panel,) = style.panels(1, width=6.5, height=4.9)
    for index, (function, points) in enumerate(grouped.items()):
        panel.scatter(*zip(*points), s=18, alpha=0.75, label=function, linewidths=0, **style.look(index))
    values = [value for points in grouped.values() for point in points for value in point]
    ends = [min(values) / 1.5, max(values) * 1.5]
    panel.plot(ends, ends, color=style.GREY, lw=0.8, ls="--", label="equal")
    panel.plot(
        ends, [2 * end for end in ends], color=style.INK, lw=1, label="2 × reference (and one ulp: the bound)"
    )
    panel.set(xscale="log", yscale="log", xlabel="error of reference", ylabel="error of optimized")
    panel.legend(fontsize=8)
    return figure


def against_peers(cases: Cases) -> Figure | None:
    """Recorded time of each peer / time of optimized, a panel a function; above the line of 1, optimized is
    faster."""
    found = [of for of in cases.values() if time_us(of.get("optimized")) and peers.best(of["optimized"])]
    grouped = defaultdict(list)
    for of in found:
        grouped[peers.key(of["optimized"])[0]].append(of)
    if not grouped:
        return None
    known = [peers.load(of["optimized"]["gpu"])[peers.key(of["optimized"])] for of in found]
    names = sorted({peer for times in known for peer in times})
    figure, axes = style.panels(len(grouped), height=3.1)
    for panel, (function, members) in zip(axes, grouped.items()):
        kept, drawn = sorted(members, key=_order), [1.0]
        for index, name in enumerate(names):
            times = [peers.load(of["optimized"]["gpu"])[peers.key(of["optimized"])].get(name) for of in kept]
            points = [
                (x, took / time_us(of["optimized"])) for x, (of, took) in enumerate(zip(kept, times)) if took
            ]
            if points:
                panel.plot(*zip(*points), lw=0.6, ms=4.5, label=name, **style.look(index))
                drawn += [value for _, value in points]
        panel.axhline(1, color=style.INK, lw=1.2)
        panel.set_xticks(
            range(len(kept)), [of["optimized"]["shape"] for of in kept], rotation=45, ha="right", fontsize=7
        )
        style.plain_log(panel, "y", min(drawn), max(drawn))
        panel.set(ylabel="time of peer / optimized", title=function)
    style.legend(figure, axes)
    return figure


def _by_function(found: list[dict[str, dict[str, Any]]]) -> dict[str, list[dict[str, dict[str, Any]]]]:
    grouped = defaultdict(list)
    for of in found:
        grouped[of["optimized"]["function"]].append(of)
    return grouped


def _ratio(slow: dict[str, Any], fast: dict[str, Any]) -> tuple[float, float, float]:
    middle, low, high = table.speedup(fast, slow)
    if low is not None and high is not None:
        return low, middle, high
    a, b = slow["graph_us"], fast["graph_us"]
    return a["ci_low"] / b["ci_high"], a["median"] / b["median"], a["ci_high"] / b["ci_low"]


def _rows_hidden(of: dict[str, dict[str, Any]]) -> tuple[int, int]:
    *leading, hidden = map(int, of["optimized"]["shape"].split("x"))
    rows = 1
    for size in leading:
        rows *= size
    return rows, hidden


def _order(of: dict[str, dict[str, Any]]) -> tuple[int, int]:
    return _rows_hidden(of)[::-1]


def _bytes(of: dict[str, dict[str, Any]]) -> int:
    return of["optimized"]["bytes"] or 0


def _shape(row: dict[str, Any]) -> str:
    return row["shape"] if row["dtype"] == "bf16" else f"{row['shape']} {row['dtype']}"


def _title(function: str, kept: int, members: int) -> str:
    return function if kept == members else f"{function}: the {kept} largest of {members}"
