"""How every figure looks: light, printable, colours that a colour-blind person can tell apart, and its
provenance."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.artist import Artist  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.text import Text  # noqa: E402
from matplotlib.ticker import MaxNLocator  # noqa: E402

# Okabe and Ito's palette, its yellow left out: it vanishes on paper.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY, INK = "#8A8A8A", "#222222"
DPI = 150
"""Of a page. A figure with long names beside it is made at it: laid out at another size they may not fit."""

plt.rcParams.update(
    {
        "figure.facecolor": "white",
        "savefig.facecolor": "white",
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": GREY,
        "axes.labelcolor": INK,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "axes.grid": True,
        "grid.color": "#E6E6E6",
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "svg.hashsalt": "twinbench",
        "svg.fonttype": "path",
    }
)


def panels(
    count: int, width: float = 5.2, height: float = 3.0, columns: int = 2, **shared: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels in a grid, those that are left over taken away. Sizes in inches."""
    columns = min(columns, count)
    lines = math.ceil(count / columns)
    figure, grid = plt.subplots(
        lines, columns, figsize=(width * columns, height * lines + 0.9), squeeze=False, **shared
    )
    axes = list(grid.flat)
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def look(index: int) -> dict[str, str]:
    """Colour and marker of series number `index`: no two of the first 49 have the same of both."""
    turn, place = divmod(index, len(COLOURS))
    return {"color": COLOURS[place], "marker": MARKERS[(place + turn) % len(MARKERS)]}


def hidden_axis(axes: Axes, sizes: Sequence[int]) -> None:
    """A log axis of hidden sizes, labelled at the sizes that are there, as many as fit."""
    axes.set_xscale("log", base=2)
    shown: list[int] = []
    for size in sorted(set(sizes)):
        if not shown or size / shown[-1] >= 1.8:
            shown.append(size)
    axes.set_xticks(shown, [str(size) for size in shown])
    axes.minorticks_off()
    axes.set_xlabel("hidden size")


def plain_log(axes: Axes, which: str, low: float, high: float) -> None:
    """A log axis from about `low` to about `high`, with plain numbers, as many as suit its length: evenly apart where
    those of a decade are too few."""
    low, high = low / 1.15, high * 1.15
    steps = (1, 1.5, 2, 3, 5, 7) if high / low < 10 else (1, 2, 5) if high / low < 200 else (1,)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [
        step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high
    ]
    if len(ticks) < 3:
        even = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high)
        ticks = [tick for tick in even if low <= tick <= high]
    axes.set(**{f"{which}scale": "log", f"{which}lim": (low, high)})
    (axes.set_yticks if which == "y" else axes.set_xticks)(ticks, [f"{tick:,g}" for tick in ticks])
    axes.minorticks_off()


def short(name: str) -> str:
    """A case's name for an axis: its options as words."""
    return re.sub("=True|orientation=|format=|with_|_quantization|_rounding|_scales", "", name)


def legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all panels, at the top right, under the title: in as many columns as the figure is wide enough
    for. What it takes beyond one line is added to the figure's height."""
    handles = {label: handle for panel in axes for handle, label in zip(*panel.get_legend_handles_labels())}
    for columns in range(min(len(handles), 6), 0, -1):
        made = figure.legend(handles.values(), handles.keys(), loc="upper right", ncols=columns, fontsize=8)
        size = made.get_window_extent()
        if size.width <= 0.99 * figure.bbox.width or columns == 1:
            break
        made.remove()
    lines = math.ceil(len(handles) / columns)
    figure.set_figheight(figure.get_figheight() + (lines - 1) * size.height / lines / figure.dpi)
    made.set_bbox_to_anchor((0.995, 1 - 0.28 / figure.get_figheight()))


def save(figure: Figure, folder: Path, name: str, title: str, provenance: str) -> str:
    """Write NAME.svg and NAME.png under `folder`, headed by `title`, footed by where the figures come from;
    returns NAME. The bytes depend on the data alone."""
    folder.mkdir(parents=True, exist_ok=True)
    height = figure.get_figheight()
    figure.text(0.01, 1 - 0.08 / height, title, fontsize=12, fontweight="bold", ha="left", va="top")
    foot = figure.text(0.01, 0.06 / height, "", fontsize=7, color=GREY, ha="left", va="bottom")
    below = max(0.22, 0.1 + _inches(_fitted(foot, provenance)))
    above = max([0.6, *(0.35 + _inches(each) for each in figure.legends)]) if figure.legends else 0.36
    figure.tight_layout(rect=(0, below / height, 1, 1 - above / height))
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    figure.savefig(folder / f"{name}.png", dpi=DPI, metadata={"Software": None})
    plt.close(figure)
    return name


def _fitted(text: Text, words: str) -> Text:
    """The text, filled with the parts of `words`, in as few lines as the figure's width leaves."""
    lines = [""]
    for part in re.split("(?<= · )|(?<= and )", words):
        text.set_text(lines[-1] + part)
        if lines[-1] and text.get_window_extent().width > 0.96 * text.figure.bbox.width:
            lines.append(part)
        else:
            lines[-1] += part
    text.set_text("\n".join(line.removesuffix(" · ") for line in lines))
    return text


def _inches(artist: Artist) -> float:
    """The height of what is drawn."""
    return artist.get_window_extent().height / artist.figure.dpi
