"""`report`: REPORT.md, with its plots as SVG and PNG, made from the rows of a run and from nothing else."""

import math
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from harness import folder, peers, rows
from harness.cases import PRODUCTS
from harness.ceilings import Ceilings
from harness.origin import device, provenance
from harness.table import base, cases, errors, gpu_state, led, ratio, speedup, spread, stated, time_us

FIGURES = {
    "speedup": "Speed-up of optimized over reference, of products over cuBLAS",
    "percent_of_limit": "Percent of this GPU's limit",
    "products": "Percent of the limit: matrix products",
    "time_against_bytes": "Time against bytes moved",
    "error": "Error against the float64 oracle",
    "against_peers": "Recorded peers against optimized",
    "cpu_time": "CPU time",
    "cpu_error": "Error of the references against the float64 oracle",
    "kernels": "Compile report",
}
PLAIN = ("speedup", "percent_of_limit", "products", "error", "against_peers", "cpu_error")
"""Figures of what has no recipe; left out where everything has one."""
ABSENT = {
    "speedup": "No case has graph times of both reference and optimized.",
    "percent_of_limit": "No timed case moves 4 MB or more.",
    "products": "No matrix product in bf16 was timed.",
    "time_against_bytes": "No optimized function was timed.",
    "error": "No optimized function was checked against the oracle.",
    "against_peers": "No peer is recorded for this GPU at these shapes.",
    "cpu_time": "Nothing was timed on the CPU.",
    "cpu_error": "No reference was checked against the oracle.",
    "kernels": "No kernel was compiled.",
}
GPU_CASES = ("Of optimized, unless a line names another implementation. / copy is its time over that of a copy of as "
             "many bytes; × tells how many times faster it is than what is named.")
CPU_CASES = "Of the reference, unless a line names another implementation."


def write(run: Path | None, out: Path | None) -> int:
    """Write the report of a run's folder (default: the latest run) into `out` (default: that folder).

    Prints where it is; the exit code is 0. Raises RowsError for a folder without readable rows.
    """
    run = folder.of(run or folder.LATEST)
    try:
        there = run.exists()
    except OSError as error:
        raise rows.RowsError(f"cannot read {run}: {error.strerror}") from None
    if not there:
        raise rows.RowsError(f"{folder.shown(run)} does not exist; `python -m harness bench` makes a run")
    found = rows.latest(rows.read(run / "rows.jsonl"))
    target = out or run.resolve()
    try:
        target.mkdir(parents=True, exist_ok=True)
        text = compose(found, folder.describe(run), target / "plots")
        (target / "REPORT.md").write_text(text, encoding="utf-8")
    except OSError as error:
        raise rows.RowsError(f"cannot write {folder.shown(target)}: {error.strerror}") from None
    print(f"Report: {folder.shown(target / 'REPORT.md')}")
    return 0


def compose(found: list[dict[str, Any]], runs: list[dict[str, Any]], plots: Path) -> str:
    """The report's Markdown; draws its figures into the folder `plots`."""
    from harness import plots_norms, plots_pipelines, plots_quantization

    origin = provenance(found, runs)
    grouped = cases(found)
    parts = [f"# {device(found)}: parity and speed", origin, *_headline(found, grouped, runs)]
    if not found:
        return "\n\n".join([*parts, "This run has no rows: there is nothing to show."]) + "\n"
    on_gpu = any(row["device"] == "cuda" for row in found)
    pipelines = plots_pipelines.held(grouped)
    others = {name: of for name, of in grouped.items() if name not in pipelines}
    parts += _figures(found, grouped, runs, plots, origin, on_gpu) + plots_quantization.section(others, plots, origin)
    parts += plots_norms.section(others, plots, origin)
    parts += plots_pipelines.section(grouped, plots, origin)
    parts += _tables(grouped, on_gpu) + _specializations(found) + _failures(found)
    parts += [
        "## Measuring one row again",
        "Every row of `rows.jsonl` has the command in its field `repeat`; for the first:",
    ]
    parts += [f"```sh\n{found[0]['repeat']}\n```"]
    return "\n\n".join(parts) + "\n"


def _headline(found: list[dict[str, Any]], grouped: dict, runs: list[dict[str, Any]]) -> list[str]:
    counts = Counter(row["status"] for row in found)
    lines = ["Rows: " + (", ".join(f"{count} {status}" for status, count in counts.most_common()) or "none")]
    checked = [row["parity"]["ok"] for row in found if row["parity"]]
    lines += [f"Parity: {sum(checked)} of {len(checked)} checked rows are right"] if checked else []
    for name in ("reference", "cublas"):
        speedups = [
            value for of in grouped.values() if "optimized" in of and (base(of) or {}).get("implementation") == name
            if (value := speedup(of["optimized"], base(of))[0])
        ]
        if speedups:
            mean = math.exp(sum(map(math.log, speedups)) / len(speedups))
            lines.append(f"Speed-up over {name}: {mean:.2f} × (geometric mean of {len(speedups)} cases)")
    limits = [of["optimized"]["percent_of_limit"] for of in grouped.values() if _big(of.get("optimized"))]
    lines += (
        [f"Percent of limit: median {median(limits):.0f} % of {len(limits)} cases of 64 MB and more"]
        if limits
        else []
    )
    against = [
        best[1] / time_us(row)
        for of in grouped.values()
        if time_us(row := of.get("optimized")) and (best := peers.best(row))
    ]
    if against:
        ahead = sum(value >= 1 for value in against)
        lines.append(f"At or under the best recorded peer: {ahead} of {len(against)} cases")
    ceilings = next((run["ceilings"] for run in reversed(runs) if run.get("ceilings")), None)
    if ceilings:
        lines.append(f"Measured ceilings: {Ceilings(**ceilings)}; event tick {ceilings['tick_us']:.3f} µs")
    if state := gpu_state(found):
        lines.append(f"GPU while it was measured: {state}")
    return ["\n".join(f"- {line}" for line in lines)]


def _big(row: dict[str, Any] | None) -> bool:
    return bool(row and row["percent_of_limit"] and row["bytes"] >= 64e6)


def _figures(found: list, grouped: dict, runs: list, plots: Path, origin: str, on_gpu: bool) -> list[str]:
    from harness import plots as gpu
    from harness import plots_cpu, plots_products, style

    plain = {name: of for name, of in grouped.items() if next(iter(of.values()))["recipe"] == "none"}
    copy_tbs = next((run["ceilings"]["copy_tbs"] for run in reversed(runs) if run.get("ceilings")), None)
    drawn = (
        {
            "speedup": lambda: gpu.speedup(plain),
            "percent_of_limit": lambda: gpu.percent_of_limit(plain),
            "products": lambda: plots_products.percent_of_limit(plain),
            "time_against_bytes": lambda: gpu.time_against_bytes(grouped, copy_tbs),
            "error": lambda: gpu.error(plain),
            "against_peers": lambda: gpu.against_peers(plain),
        }
        if on_gpu
        else {
            "cpu_time": lambda: plots_cpu.time(grouped),
            "cpu_error": lambda: plots_cpu.error(plain),
            "kernels": lambda: plots_cpu.kernels(found),
        }
    )
    parts = []
    for name, draw in drawn.items():
        if name in PLAIN and grouped and not plain:
            continue
        figure = draw()
        parts.append(f"## {FIGURES[name]}")
        if figure is None:
            parts.append(ABSENT[name])
            continue
        style.save(figure, plots, name, FIGURES[name], origin)
        parts.append(f"[![{FIGURES[name]}](plots/{name}.png)](plots/{name}.svg)")
    return parts


def _tables(grouped: dict, on_gpu: bool) -> list[str]:
    lines = _gpu_lines(grouped) if on_gpu else _cpu_lines(grouped)
    return ["## All cases", GPU_CASES if on_gpu else CPU_CASES, "\n".join(lines)] if len(lines) > 2 else []


def _gpu_lines(grouped: dict) -> list[str]:
    lines = [
        "| case | graph µs | ± % | cold µs | TB/s | TFLOP/s | % limit | / copy | × ref. or cuBLAS "
        "| best peer | host µs | SM MHz | status |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for name, of in grouped.items():
        row, named = led(of, "optimized")
        ours, peer, cold = time_us(row), peers.best(row), row["cold_us"] and row["cold_us"]["median"]
        rate = row["bytes"] / ours / 1e6 if ours and row["bytes"] else None
        beside = f"{peer[0]} {peer[1] / ours:.2f} ×" if peer and ours else ""
        figures = [
            _cell(ours, 2),
            _cell(spread(row), 1),
            _cell(cold, 2),
            _cell(rate, 2),
            _cell(row["flops"] / ours / 1e6 if ours and row["flops"] and row["function"] in PRODUCTS else None, 0),
            _cell(row["percent_of_limit"], 0),
            _cell(ratio(row, of.get("copy")), 2),
            _interval(*speedup(row, base(of))),
            beside,
            _cell(row["host_us"], 1),
            _cell((row["gpu_state"] or {}).get("sm_mhz"), 0),
            stated(row),
        ]
        lines.append(f"| {name}{named} | {' | '.join(figures)} |")
    return lines


def _cpu_lines(grouped: dict) -> list[str]:
    lines = [
        "| case | µs | torch.compile µs | largest error | rms error | status |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for name, of in grouped.items():
        row, named = led(of, "reference")
        worst, rms, _ = errors(row)
        figures = [
            _cell(time_us(row), 1),
            _cell(time_us(of.get("compiled")), 1),
            "" if worst is None else f"{worst:.1e}",
            "" if rms is None else f"{rms:.1e}",
            stated(row),
        ]
        lines.append(f"| {name}{named} | {' | '.join(figures)} |")
    return lines


def _specializations(found: list[dict[str, Any]]) -> list[str]:
    compiled = [row for row in found if row["kind"] == "compile"]
    if not compiled:
        return []
    lines = [
        "| kernel | compile ms | registers | spilled bytes | shared bytes | status |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for row in compiled:
        figures = [row["kernel"].get(name, "") for name in ("registers", "spill_bytes", "shared_bytes")]
        cells = [f"`{row['case']}`", _cell(row["compile_ms"], 0), *map(str, figures), row["status"]]
        lines.append(f"| {' | '.join(cells)} |")
    return ["## All specializations", "\n".join(lines)]


def _failures(found: list[dict[str, Any]]) -> list[str]:
    failed = [row for row in found if row["status"] != "OK"]
    if not failed:
        return []
    lines = [f"- {row['status']}: {row['case']}, {row['implementation']}: {row['reason']}" for row in failed]
    return ["## Rows that are not OK", "\n".join(lines)]


def _cell(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _interval(middle: float | None, low: float | None, high: float | None) -> str:
    return _cell(middle, 2) + ("" if low is None or high is None else f" ({low:.2f} to {high:.2f})")
