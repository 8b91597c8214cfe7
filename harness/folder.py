"""A run's folder: rows, the environment that they were measured in, and what the report makes of them.

rows.jsonl        one line a row
environment.json  {"runs": [{hash, started, command, environment, ceilings}, ...]}, one entry a process
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from harness import rows
from harness.ceilings import recorded
from harness.environment import ROOT

RUNS = ROOT / "runs"
LATEST = RUNS / "latest"


class RunFolder:
    """Opens `path` for writing, or makes runs/<timestamp>/ and lets runs/latest point at it.

    With `resume` and no `path`, runs/latest goes on, if there is one. Raises `rows.RowsError`, in one sentence,
    for a folder that cannot be written, and for one that holds rows already when `resume` is not set or when they are
    those of another verb: a checked row is not a measured one.
    """

    def __init__(self, path: Path | None, resume: bool = False, verb: str = "bench"):
        again = resume and LATEST.exists()
        self.path = Path(path) if path else (LATEST.resolve() if again else _fresh())
        self.rows_path = self.path / "rows.jsonl"
        try:
            if self.rows_path.exists() and not resume:
                raise rows.RowsError(
                    f"{self.path} holds rows already; add --resume to continue them, or take another --out"
                )
            self.path.mkdir(parents=True, exist_ok=True)
            self.known = rows.read(self.rows_path) if self.rows_path.exists() else []
            self._refuse_another(verb)
            self._writer = rows.Writer(self.rows_path)
            if not path and not again:
                _point_latest(self.path)
        except OSError as error:
            raise rows.RowsError(f"cannot write {self.path}: {error.strerror}") from None
        self._done = {rows.identity(row) for row in self.known}

    def _refuse_another(self, verb: str) -> None:
        for entry in describe(self.path):
            words = str(entry.get("command", "")).split()[3:4]  # python -m harness VERB
            if words and words != [verb]:
                raise rows.RowsError(f"{shown(self.path)} holds rows of {words[0]}: {verb} cannot go on with them")

    def has(self, row: dict[str, Any]) -> bool:
        """Whether the folder holds a row of the same identity."""
        return rows.identity(row) in self._done

    def write(self, row: dict[str, Any]) -> None:
        """Append one row; it is on the disk when this returns."""
        self._writer.write(row)
        self.known.append(row)
        self._done.add(rows.identity(row))

    def describe(self, entry: dict[str, Any]) -> None:
        """Add one entry to environment.json, whole or not at all."""
        runs = describe(self.path) + [rows.strict(entry)]
        target, part = self.path / "environment.json", self.path / "environment.json.part"
        try:
            part.write_text(json.dumps({"runs": runs}, indent=1, allow_nan=False) + "\n")
            part.replace(target)
        except OSError as error:
            raise rows.RowsError(f"cannot write {target}: {error.strerror}") from None

    def close(self) -> None:
        """Close the rows file."""
        self._writer.close()


def describe(path: Path) -> list[dict[str, Any]]:
    """The entries of a folder's environment.json, oldest first; none where there is no such file."""
    try:
        runs = json.loads((Path(path) / "environment.json").read_text())["runs"]
        if isinstance(runs, list) and all(map(_is_entry, runs)):
            return runs
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    raise rows.RowsError(f"{path}/environment.json cannot be read as an environment record")


def shown(path: Path) -> str:
    """The path as a person types it: relative to the current folder where it lies under it."""
    path, here = Path(path).resolve(), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _is_entry(entry: Any) -> bool:
    """Whether an entry of environment.json has what a report reads in it, or lacks it altogether."""
    if not isinstance(entry, dict) or not isinstance(entry.get("environment", {}), dict):
        return False
    environment, ceilings = entry.get("environment", {}), entry.get("ceilings") or {}
    parts = [environment.get("host", {}), environment.get("git") or {}, ceilings]
    return all(isinstance(part, dict) for part in parts) and (not ceilings or recorded(ceilings))


def _fresh() -> Path:
    """A new folder under runs, of this process alone."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for n in range(1000):
        path = RUNS / (f"{stamp}-{n}" if n else stamp)
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            continue
        except OSError as error:
            raise rows.RowsError(f"cannot write {path}: {error.strerror}") from None
    raise rows.RowsError(f"cannot make a new folder under {RUNS}")


def _point_latest(path: Path) -> None:
    part = RUNS / f".latest-{os.getpid()}"
    part.symlink_to(path.name)
    try:
        part.replace(LATEST)
    except OSError as error:
        part.unlink()
        raise rows.RowsError(f"cannot make {LATEST} a link to the new run: {error.strerror}") from None
