"""What quantization loses and what it costs: figures and a table of the report."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from harness import style
from harness.cases import Expected, family_of
from harness.cases.values import normal
from harness.distortion import Distortions
from harness.options import parse_case
from harness.plots import Cases
from harness.table import led, ratio, stated, time_us

TITLES = {
    "quantization_accuracy": "Accuracy against bytes of the reference's quantization",
    "quantization_time": "Time of quantize and dequantize against a copy of the bytes that they move",
}
SHAPE = (128, 2048)
L2_BYTES = 60 << 20  # of an H200
FREEDOM = 3  # degrees of freedom of Student's t: its kurtosis is infinite
E5M2 = torch.float8_e5m2


def section(cases: Cases, plots: Path, origin: str) -> list[str]:
    """The report's part on quantization, as Markdown, its figures drawn into the folder `plots`; nothing where no row
    is of a quantizing case."""
    held = {name: of for name, of in cases.items() if next(iter(of.values()))["recipe"] != "none"}
    if not held:
        return []
    parts = ["## Quantization"]
    for name, draw in (("quantization_accuracy", accuracy), ("quantization_time", lambda: against_copy(held))):
        figure = draw()
        if figure is not None:
            style.save(figure, plots, name, TITLES[name], origin)
            parts.append(f"[![{TITLES[name]}](plots/{name}.png)](plots/{name}.svg)")
    return [*parts, "\n".join(table(held))]


def table(cases: Cases) -> list[str]:
    """The lines of a Markdown table: time, and what quantization lost, of optimized where it ran, else of reference.

    / copy: time over that of a copy of the useful bytes, and, in brackets, of the bytes that cross the memory's pins,
    the input counted twice where it must be read twice. max, rms: error in units of a row's largest value. differing:
    codes, scales, amax and padding bytes that are not the reference's.
    """
    lines = ["| case | implementation | µs | / copy | SNR dB | max | rms | flushed | differing | status |",
             "|---|---|--:|--:|--:|--:|--:|--:|--:|---|"]
    for name, of in cases.items():
        row, _ = led(of, "optimized" if "optimized" in of else "reference")
        parity = row["parity"] or {}
        sides = [side for output in (parity.get("quantization") or {}).values() for side in output.values()]
        counts = parity.get("counts") or {}
        wrong = sum(count for output in counts.values() for key, count in output.items()
                    if key.endswith("mismatches") or key == "padding")
        cells = [
            row["implementation"], _cell(time_us(row), "{:,.2f}"), _times(row, of.get("copy")),
            _cell(_worst(sides, "snr_db", min), "{:.1f}"), _cell(_worst(sides, "max", max), "{:.3f}"),
            _cell(_worst(sides, "rms", max), "{:.4f}"), _cell(_worst(sides, "flushed", max), "{:.2%}"),
            str(wrong) if counts else "", stated(row),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def against_copy(cases: Cases) -> Figure | None:
    """Bars of time over the time of a copy that moves the bytes which cross the memory's pins; the optimized cases
    whose copy was timed, in the order of the run."""
    found = [(name, _over_copy(of["optimized"], of["copy"])[1]) for name, of in cases.items()
             if time_us(of.get("optimized")) and time_us(of.get("copy"))]
    if not found:
        return None
    figure, (panel,) = style.panels(1, width=8, height=0.22 * len(found) + 0.8, dpi=style.DPI)
    places = range(len(found), 0, -1)
    panel.barh(places, [ratio for _, ratio in found], height=0.7, color=style.COLOURS[0])
    for place, (_, ratio) in zip(places, found):
        panel.annotate(f"{ratio:.2f}", (ratio, place), (3, 0), textcoords="offset points", va="center", fontsize=7)
    panel.axvline(1, color=style.INK, lw=1)
    panel.set_yticks(list(places), [style.short(name) for name, _ in found], fontsize=7)
    panel.set_ylim(0.3, len(found) + 0.7)
    panel.grid(axis="y", visible=False)
    panel.set_xlabel("time / that of a copy of what crosses the pins")
    return figure


def accuracy() -> Figure:
    """Signal-to-noise ratio over bytes an element, a panel a distribution, a series a recipe: rowwise, from the
    reference on the CPU."""
    points = accuracies()
    distributions, recipes = (list(dict.fromkeys(point[i] for point in points)) for i in (0, 1))
    figure, axes = style.panels(len(distributions), width=3.9, height=3.3, columns=3, sharey=True)
    for panel, distribution in zip(axes, distributions):
        for kind, recipe, size, snr_db in points:
            if kind == distribution:
                index = recipes.index(recipe)  # the earlier the larger, so that one behind another shows
                panel.scatter([size], [snr_db], s=240 / (1 + index), label=recipe, linewidths=0, **style.look(index))
        panel.set(title=distribution, xlabel="bytes an element", xlim=(0.45, 1.15))
    axes[0].set_ylabel("signal-to-noise ratio, dB")
    handles, labels = axes[0].get_legend_handles_labels()
    axes[0].legend(handles, labels, fontsize=7, loc="upper left", markerscale=0.7, frameon=True)
    return figure


@functools.cache
def accuracies() -> list[tuple[str, str, float, float]]:
    """(distribution, recipe, bytes an element, signal-to-noise ratio in dB) of the reference, rowwise, on the CPU."""
    found = []
    for distribution, draw in DISTRIBUTIONS.items():
        x, earlier = draw(torch.Generator().manual_seed(0)), draw(torch.Generator().manual_seed(1))
        for recipe, quantizer in _quantizers(earlier).items():
            found.append((distribution, recipe, *_accuracy(x, quantizer)))
    return found


def _accuracy(x: Tensor, quantizer: Any) -> tuple[float, float]:
    import reference

    made = reference.quantize(x, quantizer)
    meter, exact = Distortions(made, quantizer), x.double()
    meter.add(Expected("output", slice(0, len(x)), exact, exact.abs().amax(-1, keepdim=True)))
    size = sum(held.numel() * held.element_size() for held in made.tensors().values())
    return size / x.numel(), meter.result()["rowwise"]["snr_db"]


def _quantizers(earlier: Tensor) -> dict[str, Any]:
    """Recipes by name; delayed scaling has the scale of an earlier draw."""
    from reference import quantizers as of

    scale = (448 / earlier.abs().max()).reshape(1)
    return {
        "FP8 E4M3, current scaling": of.Float8CurrentScalingQuantizer(),
        "FP8 E4M3, delayed: scale of another draw": of.Float8Quantizer(scale, torch.zeros(1)),
        "FP8 E5M2, current scaling": of.Float8CurrentScalingQuantizer(dtype=E5M2),
        "MXFP8 E4M3": of.MXFP8Quantizer(),
        "MXFP8 E5M2": of.MXFP8Quantizer(dtype=E5M2),
        "NVFP4": of.NVFP4Quantizer(),
        "NVFP4, stochastic": of.NVFP4Quantizer(stochastic_rounding=True),
    }


def _student(source: torch.Generator) -> Tensor:
    """Student's t: a normal value over the root of the mean of FREEDOM squares of others."""
    squares = torch.randn((FREEDOM, *SHAPE), generator=source).square().mean(0)
    return torch.randn(SHAPE, generator=source) / squares.sqrt()


DISTRIBUTIONS: dict[str, Callable[[torch.Generator], Tensor]] = {
    "normal": lambda source: normal(SHAPE, torch.float32, "cpu", source),
    f"heavy-tailed (Student t, {FREEDOM} dof)": _student,
    "outlier channels (10–30 ×)": lambda source: normal(SHAPE, torch.float32, "cpu", source, outliers=True),
}


def _over_copy(row: dict[str, Any], copy: dict[str, Any]) -> tuple[float, float]:
    """Time over that of the copy, of the useful bytes and of those that cross the pins: the second by the copy's
    rate."""
    case = parse_case(row["case"])
    family = family_of(case.function)
    useful = ratio(row, copy)
    return useful, useful * family.work(case).bytes / family.passes(case, L2_BYTES)


def _times(row: dict[str, Any], copy: dict[str, Any] | None) -> str:
    if ratio(row, copy) is None:
        return ""
    useful, crossing = _over_copy(row, copy)
    return f"{useful:.2f}" if useful == crossing else f"{useful:.2f} ({crossing:.2f})"


def _worst(sides: list[dict[str, float | None]], key: str, pick: Callable) -> float | None:
    return pick((side[key] for side in sides if side.get(key) is not None), default=None)


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
