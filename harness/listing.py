"""`list` and `--dry-run`: the cases that a run would take, with their work. Touches no GPU."""

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from harness.cases import Case, family_of
from harness.options import Options, cases, implementations

COPY_TBS = 4.28  # of an H200: what the estimates stand on
CASE_S, PASSES = 0.6, 3000  # a case takes about CASE_S and PASSES times its bytes at the copy rate


def entries(options: Options) -> list[dict[str, Any]]:
    """One dict a case: name, function, shape, dtype, recipe, options, bytes, flops, memory_bytes, limit_us,
    about_s.

    `limit_us` is the time of an H200 that moves the bytes at its copy rate; `about_s` a rough guess of what
    the whole case, parity included, takes there.
    """
    return [_entry(case) for case in cases(options)]


def _entry(case: Case) -> dict[str, Any]:
    work = family_of(case.function).work(case)
    seconds = work.bytes / COPY_TBS / 1e12
    return {
        "name": case.name,
        "function": case.function,
        "shape": case.shape_text,
        "dtype": case.dtype,
        "recipe": case.recipe,
        "options": dict(case.options),
        "bytes": work.bytes,
        "flops": work.flops,
        "memory_bytes": max(work.bytes, 3 * (60 << 20)),
        "limit_us": round(seconds * 1e6, 2),
        "about_s": round(CASE_S + PASSES * seconds, 2),
    }


def show(options: Options, as_json: bool, out: Console) -> int:
    """Print the cases as JSON or as a table; the exit code is 0."""
    found, names = entries(options), ", ".join(implementations(options))
    if as_json:
        print(json.dumps(found, indent=1))
        return 0
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("case", "MB", "MFLOP", "memory MB", "H200 limit µs", "about s"):
        table.add_column(name, justify="left" if name == "case" else "right", no_wrap=True)
    for one in found:
        figures = (
            one["bytes"] / 1e6,
            one["flops"] / 1e6,
            one["memory_bytes"] / 1e6,
            one["limit_us"],
            one["about_s"],
        )
        table.add_row(one["name"], *(f"{figure:,.1f}" for figure in figures))
    out.print(table)
    minutes, seconds = divmod(round(sum(one["about_s"] for one in found)), 60)
    out.print(f"{len(found)} cases of {names}; about {minutes}:{seconds:02} min on an H200")
    return 0
