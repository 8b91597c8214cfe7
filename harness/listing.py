"""`list` and `--dry-run`: the cases that a run would take, with their work. Touches no GPU."""

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from harness import schedule
from harness.cases import family_of
from harness.memory import needed_bytes
from harness.options import Options
from harness.schedule import Task
from harness.table import counted


def entries(tasks: list[Task], device: str = "cuda") -> list[dict[str, Any]]:
    """One dict a case: name, function, shape, dtype, recipe, options, implementations, bytes, flops, memory_bytes,
    limit_us, about_s.

    `memory_bytes` is what the case needs on the device to be checked and timed, `limit_us` the time of an H200 that
    moves the bytes at its copy rate, `about_s` a rough guess of what the whole case, parity included, takes there.
    """
    return [_entry(task, device) for task in tasks]


def _entry(task: Task, device: str) -> dict[str, Any]:
    case = task.case
    work = family_of(case.function).work(case)
    return {
        "name": case.name,
        "function": case.function,
        "shape": case.shape_text,
        "dtype": case.dtype,
        "recipe": case.recipe,
        "options": dict(case.options),
        "implementations": task.names,
        "bytes": work.bytes,
        "flops": work.flops,
        "memory_bytes": needed_bytes(case, task.names, device),
        "limit_us": round(schedule.limit_us(case), 2),
        "about_s": round(task.about_s, 2),
    }


def show(options: Options, as_json: bool, out: Console) -> int:
    """Print the cases that are asked for as JSON or as a table; the exit code is 0."""
    tasks = schedule.tasks(options)[1]
    if not as_json:
        return show_tasks(tasks, out)
    print(json.dumps(entries(tasks), indent=1))
    return 0


def show_tasks(tasks: list[Task], out: Console, device: str = "cuda") -> int:
    """Print tasks as a table, for a GPU with what an H200 takes for them; the exit code is 0."""
    found, names = entries(tasks, device), ", ".join(dict.fromkeys(name for task in tasks for name in task.names))
    columns = {"MB": ("bytes", 1e6), "MFLOP": ("flops", 1e6), "memory MB": ("memory_bytes", 1e6)}
    if device == "cuda":
        columns |= {"H200 limit µs": ("limit_us", 1), "about s": ("about_s", 1)}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("case", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    for one in found:
        figures = [one[key] / unit for key, unit in columns.values()]
        table.add_row(one["name"], *(f"{figure:,.0f}" if figure >= 1000 else f"{figure:.1f}" for figure in figures))
    out.print(table)
    minutes, seconds = divmod(round(sum(one["about_s"] for one in found)), 60)
    took = f"; about {minutes}:{seconds:02} min on an H200" if device == "cuda" else ", on this CPU"
    out.print(f"{counted(len(found), 'case')}{f' of {names}' if names else ''}{took}")
    return 0
