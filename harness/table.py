"""The tables that a run ends with, for a terminal of 100 columns."""

from collections import Counter
from collections.abc import Iterable
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness import peers, rows
from harness.subject import DOUBTS

GOOD, FAIR, POOR = "green", "yellow", "red"


def counted(count: int, what: str) -> str:
    """"1 case", "2 cases"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def cases(found: Iterable[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Rows of cases by case name, then by implementation, in the order of the file; a later row replaces."""
    grouped: dict[str, dict[str, dict[str, Any]]] = {}
    for row in found:
        if row["kind"] == "case":
            grouped.setdefault(row["case"], {})[row["implementation"]] = row
    return grouped


def time_us(row: dict[str, Any] | None) -> float | None:
    """The median that a row is judged by: graph time on a GPU, host time on a CPU; None where it has none."""
    column = row and row["graph_us" if row["device"] == "cuda" else "warm_us"]
    return column["median"] if column else None


def led(of: dict[str, dict[str, Any]], name: str) -> tuple[dict[str, Any], str]:
    """The row that the line of a case is about: that of the implementation `name`, or where there is none the first;
    and what then follows the case's name, so that the line says whose figures it has."""
    row = of.get(name) or next(iter(of.values()))
    return row, "" if row["implementation"] == name else f" ({row['implementation']})"


def ratio(row: dict[str, Any] | None, other: dict[str, Any] | None) -> float | None:
    """How many times as long `row` takes as `other`; None for a row over itself."""
    ours, theirs = time_us(row), time_us(other)
    return ours / theirs if ours and theirs and row is not other else None


def base(of: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """What speed-ups are over: cuBLAS where it was timed, else the reference."""
    return of["cublas"] if time_us(of.get("cublas")) else of.get("reference")


def speedup(row: dict[str, Any], reference: dict[str, Any] | None) -> tuple[float | None, ...]:
    """(median, ci_low, ci_high) of how many times faster `row` is than the reference, replicate by replicate. Without
    replicates the ratio of the medians, without an interval; without either None, and so for the reference itself and
    for a copy, which computes nothing."""
    if row is reference or row["implementation"] == "copy":
        return None, None, None
    measured = row["speedup"] or {"median": ratio(reference, row), "ci_low": None, "ci_high": None}
    return measured["median"], measured["ci_low"], measured["ci_high"]


def spread(row: dict[str, Any]) -> float | None:
    """Half the range of the replicates' medians, in percent of their median; None where there is one replicate."""
    medians = (row["replicates"] or {}).get("graph_us") or ()
    return 50 * (max(medians) - min(medians)) / median(medians) if len(medians) > 1 else None


def gpu_state(found: Iterable[dict[str, Any]]) -> str | None:
    """The state of the GPU over all timed cases, in one line: SM clocks (medians of the cases), the most power and
    heat, and what held the clocks back; None where nobody said."""
    states = list({row["case"]: row["gpu_state"]
                   for row in found if row["kind"] == "case" and row["gpu_state"]}.values())
    clocks, power, heat = ([state[name] for state in states if state[name] is not None]
                           for name in ("sm_mhz", "power_w", "temperature_c"))
    parts = [f"SM clock {min(clocks):,.0f} to {max(clocks):,.0f} MHz"] if clocks else []
    parts += [f"at most {max(power):,.0f} W"] if power else []
    parts += [f"at most {max(heat):.0f} °C"] if heat else []
    for name in sorted({name for state in states for name in state["reasons"] or ()}):
        parts.append(f"{name} in {sum(name in (state['reasons'] or ()) for state in states)} of {len(states)} cases")
    return "; ".join(parts) or None


def show(console: Console, found: list[dict[str, Any]]) -> None:
    """Print what the rows say: the results, the compile report, the list of what failed."""
    grouped = cases(found)
    on_gpu = {name: of for name, of in grouped.items() if any(row["device"] == "cuda" for row in of.values())}
    on_cpu = {name: of for name, of in grouped.items() if name not in on_gpu}
    compiled = [row for row in found if row["kind"] == "compile"]
    for of, table in ((on_gpu, gpu_table), (on_cpu, cpu_table), (compiled, compile_table)):
        if of:
            console.print(table(of))
            state = gpu_state(found) if table is gpu_table else None
            console.print(*([Text(state, style="dim")] if state else []), "", sep="\n")
    _show_failures(console, found)


def show_checks(console: Console, found: list[dict[str, Any]]) -> None:
    """Print the verdict on each checked implementation of each case, and the list of what failed."""
    names = ("case", "implementation", ">max error", ">rms error", ">reference's max", "parity")
    table = _table("Parity", names)
    for row in found:
        if row["kind"] == "case":
            figures = [_error(value) for value in errors(row)]
            table.add_row(row["case"], row["implementation"], *figures, _verdict(row))
    console.print(table, "")
    _show_failures(console, found)


def gpu_table(grouped: dict[str, dict[str, dict[str, Any]]]) -> Table:
    """One line a case: the optimized function's graph time, how far its replicates lie apart, and what it is compared
    with: /copy is its time over that of a copy of as many bytes, ×ref how many times faster it is."""
    gpu = next(row["gpu"] for of in grouped.values() for row in of.values())
    names = (
        "function",
        "shape",
        "dtype",
        ">µs",
        ">± %",
        ">TB/s",
        ">% limit",
        ">/copy",
        ">×ref",
        ">×best peer",
        "verdict",
    )
    table = _table(f"{gpu}: optimized, µs of a replayed CUDA graph", names)
    previous = None
    for of in grouped.values():
        row, named = led(of, "optimized")
        table.add_row(*_gpu_cells(row, of, previous, named))
        previous = row["function"]
    return table


def _gpu_cells(row: dict[str, Any], of: dict[str, dict[str, Any]], previous: str | None, named: str = "") -> list[Any]:
    ours, percent = time_us(row), row["percent_of_limit"]
    rate = row["bytes"] / ours / 1e6 if ours and row["bytes"] else None
    peer = peers.best(row)
    ahead = peer[1] / ours if peer and ours else None
    label = row["function"] if row["function"] != previous else Text(row["function"], style="dim")
    return [
        label,
        row["shape"],
        _dtype(row) + named,
        _number(ours),
        _percent(spread(row)),
        _number(rate, 2),
        _graded(percent, 85, 70, "{:.0f}"),
        _number(ratio(row, of.get("copy")), 2),
        _interval(*speedup(row, base(of))),
        Text("")
        if ahead is None
        else Text(f"{_short(peer[0])} {ahead:.2f}", style=GOOD if ahead >= 1 else POOR),
        _verdict(row),
    ]


def cpu_table(grouped: dict[str, dict[str, dict[str, Any]]]) -> Table:
    """One line a case: the reference on this CPU, its error against the oracle, torch.compile beside it."""
    names = ("function", "shape", "dtype", ">µs", ">compiled µs", ">max error", ">rms error", "parity")
    table = _table("CPU: reference against the float64 oracle", names)
    for of in grouped.values():
        row, named = led(of, "reference")
        times = [_number(time_us(one)) for one in (row, of.get("compiled"))]
        worst, rms, _ = map(_error, errors(row))
        table.add_row(row["function"], row["shape"], _dtype(row) + named, *times, worst, rms, _verdict(row))
    return table


def errors(row: dict[str, Any]) -> tuple[float | None, ...]:
    """The largest (max, rms, reference_max) error over the outputs of a row, in units of the oracle's
    values."""
    outputs = (row["parity"] or {}).get("errors", {}).values()
    kinds = ("max", "rms", "reference_max")
    return tuple(
        max((out[kind] for out in outputs if out.get(kind) is not None), default=None) for kind in kinds
    )


def compile_table(found: list[dict[str, Any]]) -> Table:
    """One line a specialization: what its compilation took and what it needs of an SM."""
    names = ("kernel", ">ms", "cached", ">registers", ">spills", ">shared", "status")
    table = _table(counted(len(found), "specialization"), names)
    for row in found:
        kernel, hit = row["kernel"], "yes" if row["cache_hit"] else ""
        registers, spills = (str(kernel.get(name, "")) for name in ("registers", "spill_bytes"))
        spilled = Text(spills, style="" if spills in ("", "0") else POOR)
        figures = [_number(row["compile_ms"], 0), hit, registers, spilled, _bytes(kernel.get("shared_bytes"))]
        table.add_row(row["case"], *figures, _verdict(row))
    return table


def _show_failures(console: Console, found: Iterable[dict[str, Any]]) -> None:
    """Why rows have no result, those of one reason together; for each row that failed: what, why, and the command that
    repeats it."""
    found = list(found)
    left_out = Counter((row["status"], row["implementation"], row["reason"]) for row in found
                       if row["status"] not in (*DOUBTS, *rows.FAILURES))
    for (status, name, reason), count in left_out.items():
        console.print(Text(f"{status} {name} of {counted(count, 'case')}: {reason}", style=FAIR), soft_wrap=True)
    for row in found:
        if row["status"] in rows.FAILURES:
            what = f"{row['status']} {row['case']}, {row['implementation']}: {row['reason']}"
            console.print(
                Text(what, style=POOR), Text(f"    {row['repeat']}", style="dim"), sep="\n", soft_wrap=True
            )


def _table(title: str, names: Iterable[str]) -> Table:
    """An empty table; a name that begins with ">" heads a column of figures. Long case names are folded."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.padding = (0, 1, 0, 0)
    for name in names:
        heading = name.removeprefix(">")
        table.add_column(
            heading,
            justify="right" if name != heading else "left",
            no_wrap=heading not in ("case", "kernel", "dtype"),
            overflow="fold",
            min_width=len(heading),
        )
    return table


def _dtype(row: dict[str, Any]) -> str:
    recipe = [] if row["recipe"] == "none" else [row["recipe"]]
    return " ".join([row["dtype"], *recipe, *(f"{key}={value}" for key, value in row["options"].items())])


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _interval(middle: float | None, low: float | None, high: float | None) -> str:
    """A ratio, with half its interval relative to it where that is known: "7.4±0.3%"."""
    half = "" if low is None or high is None else f"±{50 * (high - low) / middle:.1f}%"
    return _number(middle) + half


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _bytes(value: int | None) -> str:
    return "" if value is None else f"{value / 1024:.1f} KiB" if value >= 1024 else f"{value} B"


def _graded(value: float | None, good: float, fair: float, form: str) -> Text:
    if value is None:
        return Text("–")
    return Text(form.format(value), style=GOOD if value >= good else FAIR if value >= fair else POOR)


def unchecked(row: dict[str, Any]) -> bool:
    """Whether a row has a result that nobody compared with the oracle: that of a copy."""
    return row["kind"] == "case" and row["status"] in DOUBTS and row["parity"] is None


def stated(row: dict[str, Any]) -> str:
    """The status of a row, in a report."""
    return f"{row['status']}, not checked" if unchecked(row) else row["status"]


def _verdict(row: dict[str, Any]) -> Text:
    """ok, which takes a parity that was checked; a doubt about the time of a right result, in small letters; or what
    failed."""
    status = row["status"]
    if unchecked(row) and status == "OK":
        return Text("not checked", style=FAIR)
    if status == "OK":
        return Text("ok", style=GOOD)
    if status in DOUBTS:
        return Text(status.lower().replace("_", "-"), style=FAIR)
    return Text(status, style=POOR if status in rows.FAILURES else FAIR)


def _short(peer: str) -> str:
    name = peer.split()[0].replace("transformer_engine", "TE").replace("-kernels", "").replace("-kernel", "")
    return "compile" if name == "torch.compile" else name
