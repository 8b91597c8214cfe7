"""`merge`: the folders of shards, or of parts of a run, as one."""

import json
from pathlib import Path
from typing import Any

from harness import folder, rows
from harness.rows import RowsError
from harness.subject import DOUBTS
from harness.table import counted


def merge(out: Path, folders: list[Path]) -> int:
    """Write rows, records of environments and samples of `folders` into the new folder `out`; the exit code is 0.

    The same row twice is kept once, the first. Raises RowsError, in one sentence, for rows that contradict each
    other, for folders of different GPUs or verbs, and for an `out` that holds rows already.
    """
    if (out / "rows.jsonl").exists():
        raise RowsError(f"{folder.shown(out)} holds rows already; merge into a new folder")
    folders = [folder.of(path) for path in folders]
    runs = [run for path in folders for run in folder.describe(path)]
    found = _joined({path: rows.latest(rows.read(path / "rows.jsonl")) for path in folders})
    _refuse_mixed(found, runs)
    try:
        out.mkdir(parents=True, exist_ok=True)
        folder.record(out, list({json.dumps(run, sort_keys=True): run for run in runs}.values()))
        if samples := b"".join(line for path in folders for line in _samples(path)):
            (out / "samples.jsonl").write_bytes(samples)
        _write_rows(out, found)
    except OSError as error:
        raise RowsError(f"cannot write {folder.shown(out)}: {error.strerror}") from None
    print(f"{counted(len(found), 'row')} of {counted(len(folders), 'folder')} in {folder.shown(out)}/rows.jsonl")
    return 0


def _write_rows(out: Path, found: list[dict[str, Any]]) -> None:
    """All rows or none: a folder with some of them would pass for a whole one."""
    part = out / "rows.jsonl.part"
    part.unlink(missing_ok=True)
    writer = rows.Writer(part)
    try:
        for row in found:
            writer.write(row)
    finally:
        writer.close()
    part.replace(out / "rows.jsonl")


def _samples(path: Path) -> list[bytes]:
    """Whole lines of a folder's samples, where it has any."""
    try:
        lines = (path / "samples.jsonl").read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [line for line in lines if line.endswith(b"\n")]


def _joined(parts: dict[Path, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for path, part in parts.items():
        for row in part:
            first, earlier = found.setdefault(rows.identity(row), (path, row))
            if why := contradiction(earlier, row):
                raise RowsError(
                    f"{folder.shown(first)} and {folder.shown(path)} contradict each other in {row['case']}, "
                    f"{row['implementation']}: {why}"
                )
    return [row for _, row in found.values()]


def contradiction(one: dict[str, Any], other: dict[str, Any]) -> str:
    """Why two rows of the same identity cannot both be true, or "".

    They agree when device, environment and machine code are the same, either both have a result or they have the
    same status, and the confidence intervals of each time that both have overlap.
    """
    for name, text, none in (("gpu", "GPU", rows.CPU), ("environment", "environment", "an unknown one")):
        if one[name] != other[name]:
            return f"{text} {one[name] or none} and {other[name] or none}"
    if one["status"] != other["status"] and not {one["status"], other["status"]} <= set(DOUBTS):
        return f"status {one['status']} and {other['status']}"
    codes = [(row["kernel"] or {}).get("code_digest") for row in (one, other)]
    if codes[0] != codes[1]:
        return "different machine code"
    for name in rows.COLUMNS:
        if one[name] and other[name] and not _overlap(one[name], other[name]):
            medians = f"{one[name]['median']:.4g} and {other[name]['median']:.4g}"
            return f"{name} {medians}, beyond their confidence intervals"
    return ""


def _overlap(one: dict[str, float], other: dict[str, float]) -> bool:
    return one["ci_low"] <= other["ci_high"] and other["ci_low"] <= one["ci_high"]


def _refuse_mixed(found: list[dict[str, Any]], runs: list[dict[str, Any]]) -> None:
    devices = sorted({row["gpu"] or rows.CPU for row in found})
    if len(devices) > 1:
        raise RowsError(f"these folders hold rows of different devices: {' and '.join(devices)}")
    for what, kinds in folder.kinds(found, runs).items():
        if len(kinds) > 1:
            raise RowsError(f"these folders hold rows of different {what}s: {' and '.join(kinds)}")
