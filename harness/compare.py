"""Two runs of the same cases, row by row: how far times and speed-ups moved, and what only one of them has."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from harness import rows, table
from harness.table import counted

LONG_US = 20.0  # shorter functions are within a few event ticks of each other
SHOWN = 15


@dataclass(frozen=True)
class Change:
    """One row in both runs. `changes`: column, or "speedup", -> new / old − 1; `apart`: whether the intervals of the
    judged column do not touch."""

    row: dict[str, Any]
    us: float
    changes: dict[str, float]
    apart: bool


def changes(old: Iterable[dict[str, Any]], new: Iterable[dict[str, Any]]) -> list[Change]:
    """What both runs measured, in the order of the old one."""
    before, after = _cases(old), _cases(new)
    bases = {rows.identity(of) for of in (*_bases(before.values()), *_bases(after.values()))}
    return [change for key, row in before.items() if key in after
            and (change := _change(row, after[key], row["implementation"] != "copy" and key not in bases))]


def differences(old: Iterable[dict[str, Any]], new: Iterable[dict[str, Any]]) -> list[str]:
    """What else than the code may have moved the times, a sentence each: another GPU, another environment."""
    said = []
    for name, text, none in (("gpu", "GPU", rows.CPU), ("environment", "environment", "an unknown one")):
        before, after = (sorted({row[name] or none for row in found}) for found in (old, new))
        if before and after and before != after:
            said.append(f"Another {text}: {', '.join(before)}; now {', '.join(after)}")
    return said


def unmatched(old: Iterable[dict[str, Any]], new: Iterable[dict[str, Any]]) -> list[str]:
    """What only one run has, or what has another status in the other, a sentence each."""
    before, after = _cases(old), _cases(new)
    said = []
    for key in dict.fromkeys((*before, *after)):
        row = before.get(key) or after[key]
        name = f"{row['case']}, {row['implementation']}"
        if key not in after or key not in before:
            said.append(f"{name}: only in the {'old' if key in before else 'new'} run")
        elif before[key]["status"] != after[key]["status"]:
            said.append(f"{name}: {before[key]['status']}, now {after[key]['status']}")
    return said


def within(found: Iterable[Change], name: str, share: float) -> tuple[int, int]:
    """(how many of the changes of `name` are under `share`, how many there are) among rows over 20 µs."""
    moved = [abs(change.changes[name]) for change in found if change.us > LONG_US and name in change.changes]
    return sum(each < share for each in moved), len(moved)


def show(console: Console, old: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
    """Print the largest changes, a summary of each column, and what is not in both runs."""
    found = changes(old, new)
    console.print(_largest(found) if found else "Largest changes of 0 rows: no row was timed in both runs.", "")
    for name in (*rows.COLUMNS, "speedup"):
        every = [abs(change.changes[name]) for change in found if name in change.changes]
        if every:
            inside, count = within(found, name, 0.015)
            console.print(f"{name}: {len(every)} rows in both, changed by {median(every):.2%} in the median; over "
                          f"{LONG_US:g} µs {inside} of {count} by under 1.5 %, "
                          f"{within(found, name, 0.01)[0]} by under 1 %")
    for line in differences(old, new):
        console.print(line, markup=False)
    said = unmatched(old, new)
    for line in said[:SHOWN]:
        console.print(line, markup=False)
    if len(said) > SHOWN:
        console.print(f"… and {len(said) - SHOWN} more")


def _cases(found: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The rows of cases that stand, by identity."""
    return {rows.identity(row): row for row in rows.latest(found) if row["kind"] == "case"}


def _bases(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that speed-ups are over: compared with themselves they never move."""
    return [row for of in table.cases(found).values() if (row := table.base(of))]


def _change(old: dict[str, Any], new: dict[str, Any], sped_up: bool) -> Change | None:
    judged = next((name for name in rows.COLUMNS if old[name] and new[name]), None)
    if judged is None:
        return None
    moved = {name: new[name]["median"] / old[name]["median"] - 1 for name in rows.COLUMNS
             if old[name] and new[name] and old[name]["median"] and new[name]["median"]}
    if sped_up and old["speedup"] and new["speedup"]:
        moved["speedup"] = new["speedup"]["median"] / old["speedup"]["median"] - 1
    one, other = old[judged], new[judged]
    apart = one["ci_high"] < other["ci_low"] or other["ci_high"] < one["ci_low"]
    return Change(old, one["median"], moved, apart)


def _largest(found: list[Change]) -> Table:
    """The rows whose judged column moved most, with its intervals' verdict."""
    lines = Table(title=f"Largest changes of {counted(len(found), 'row')}, new against old", title_justify="left",
                  box=None, pad_edge=False)
    for name in ("case", "implementation", "µs", "graph", "cold", "warm", "speed-up", "intervals"):
        lines.add_column(name, justify="left" if name in ("case", "implementation", "intervals") else "right")
    for change in sorted(found, key=_moved, reverse=True)[:SHOWN]:
        cells = [f"{change.changes[name]:+.1%}" if name in change.changes else ""
                 for name in (*rows.COLUMNS, "speedup")]
        lines.add_row(change.row["case"], change.row["implementation"], f"{change.us:.2f}", *cells,
                      "apart" if change.apart else "touch")
    return lines


def _moved(change: Change) -> float:
    return abs(math.log1p(next(iter(change.changes.values()), 0.0)))
