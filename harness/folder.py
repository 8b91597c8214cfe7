"""A run's folder: rows, the environment that they were measured in, and what the report makes of them.

rows.jsonl        one line a row; of several of one identity the last stands
samples.jsonl     one line a timed row: its identity and every sample kept, {column: [µs per call, ...]}; not for git
environment.json  {"runs": [{hash, started, command, environment, ceilings, ...}, ...]}, one entry a worker process
"""

import fcntl
import json
import os
import time
from pathlib import Path
from typing import IO, Any

from harness import rows
from harness.ceilings import recorded
from harness.environment import ROOT
from harness.options import Options
from harness.origin import used_by, versions

RUNS = ROOT / "runs"
LATEST = RUNS / "latest"


class Known:
    """Which rows a run need not make any more: those that are there, but for the ones that `mend` makes anew."""

    def __init__(self, found: list[dict[str, Any]], mend: bool = False):
        self._stand = {rows.identity(row): not mend or row["status"] in rows.FINAL for row in found}

    def stands(self, row: dict[str, Any]) -> bool:
        """Whether there is a row of the same identity that stays."""
        return self._stand.get(rows.identity(row), False)

    def mendable(self, row: dict[str, Any]) -> bool:
        """Whether there is a row of the same identity that another is to replace."""
        return self._stand.get(rows.identity(row)) is False

    def add(self, row: dict[str, Any]) -> None:
        """A row that was made now, and stays."""
        self._stand[rows.identity(row)] = True


class RunFolder:
    """Opens `path` for writing, or makes runs/<timestamp>/ and lets runs/latest point at it.

    `mode` is what becomes of rows that are there already: "new" wants none; "resume" keeps them; "rerun" keeps them,
    but makes those anew that another try may mend; "fresh" drops them. With "resume" or "rerun" and no `path`,
    runs/latest goes on, if there is one. Raises `rows.RowsError`, in one sentence, for a folder that cannot be
    written, that another process writes to, that holds rows already and should not, or whose rows are not of the kind
    `wanted`, as `kinds` has it: a checked row is not a measured one, nor a short measurement a long one.
    """

    def __init__(self, path: Path | None, mode: str = "new", **wanted: Any):
        goes_on = mode in ("resume", "rerun")
        self.path = goes_on_at(path, mode) or _fresh()
        self.rows_path = self.path / "rows.jsonl"
        try:
            if self.rows_path.exists() and mode == "new":
                raise rows.RowsError(
                    f"{self.path} holds rows already; add --resume, --rerun-failed or --fresh, or take another --out"
                )
            self.path.mkdir(parents=True, exist_ok=True)
            was_one = self.rows_path.exists()
            self._lock = _locked(self.rows_path)
            if mode == "fresh" and was_one:
                self._drop()
            self.found = rows.latest(rows.read(self.rows_path))
            _refuse_another(self.path, self.found, wanted)
            self._writer, self._samples = rows.Writer(self.rows_path), None
            if not path and not (goes_on and LATEST.exists()):
                _point_latest(self.path)
        except OSError as error:
            raise rows.RowsError(f"cannot write {self.path}: {error.strerror}") from None
        self.known = Known(self.found, mend=mode == "rerun")

    def _drop(self) -> None:
        self.rows_path.write_bytes(b"")
        drawn = [path for kind in ("png", "svg") for path in (self.path / "plots").glob(f"*.{kind}")]
        for path in (*(self.path / name for name in ("samples.jsonl", "environment.json", "REPORT.md")), *drawn):
            path.unlink(missing_ok=True)

    def refuse_other(self, gpu: str | None) -> None:
        """Raises RowsError where the rows that are there come from another GPU than `gpu`, or from a CPU."""
        for other in {row["gpu"] for row in self.found} - {gpu}:
            raise rows.RowsError(
                f"{shown(self.path)} holds rows of {other or rows.CPU}: {gpu or rows.CPU} cannot go on with them"
            )

    def origin_of_others(self, environment: str) -> str | None:
        """Versions and commits of the rows that are there, in words, where they come from another environment."""
        others = [row for row in self.found if row["environment"] not in (None, environment)]
        return ", ".join(versions(used_by(others, describe(self.path)))) or "another environment" if others else None

    def write(self, row: dict[str, Any], samples: dict[str, list[float]] | None = None) -> None:
        """Append one row, and its samples (column -> µs per call) to samples.jsonl; both are on the disk when this
        returns."""
        self._writer.write(row)  # first: on a full disk the samples are what can be spared
        self.known.add(row)
        if samples:
            self._samples = self._samples or rows.Writer(self.path / "samples.jsonl")
            self._samples.write({name: row[name] for name in rows.IDENTITY} | {"samples_us": samples})

    def describe(self, entry: dict[str, Any]) -> None:
        """Add one entry to environment.json."""
        record(self.path, [*describe(self.path), rows.strict(entry)])

    def close(self) -> None:
        """Close the files of rows and samples."""
        for file in filter(None, (self._writer, self._samples, self._lock)):
            file.close()


def kinds(found: list[dict[str, Any]], runs: list[dict[str, Any]]) -> dict[str, list[str]]:
    """What must not be mixed in one folder: the verbs, profiles and seeds of its rows and of its entries of
    environment.json."""
    commands = [words for run in runs if (words := str(run.get("command", "")).split()[3:])]  # python -m harness VERB
    return {
        "verb": sorted({words[0] for words in commands}),
        "profile": sorted({_profile(words) for words in commands if words[0] == "bench"}),
        "seed": sorted({str(row["seed"]) for row in found if row["seed"] is not None}),
    }


def _profile(words: list[str]) -> str:
    """The profile that a command line names, or takes where it names none."""
    given = [word.partition("=")[2] or after for word, after in zip(words, [*words[1:], ""])
             if word.partition("=")[0] == "--profile"]
    return given[-1] if given else Options.profile


def of(path: Path) -> Path:
    """The folder of a run that is named by its rows.jsonl, or by itself."""
    return path.parent if path.name == "rows.jsonl" else path


def goes_on_at(path: Path | None, mode: str) -> Path | None:
    """The folder that a run writes to: `path`, or the latest one where it goes on; None for a new one."""
    if path or mode not in ("resume", "rerun") or not LATEST.exists():
        return path and Path(path)
    return LATEST.resolve()


def known_at(path: Path | None, mode: str, **wanted: Any) -> Known:
    """What a run of the kind `wanted` would find known in a folder, which need not be there. Raises RowsError where it
    could not go on with that."""
    there = path and mode in ("resume", "rerun") and (path / "rows.jsonl").exists()
    found = rows.latest(rows.read(path / "rows.jsonl")) if there else []
    if there:
        _refuse_another(path, found, wanted)
    return Known(found, mend=mode == "rerun")


def _refuse_another(path: Path, found: list[dict[str, Any]], wanted: dict[str, Any]) -> None:
    there = kinds(found, describe(path))
    for what, value in wanted.items():
        for other in there[what]:
            if other != str(value):
                named = "" if what == "verb" else f"{what} "
                raise rows.RowsError(
                    f"{shown(path)} holds rows of {named}{other}: {named}{value} cannot go on with them")


def record(path: Path, runs: list[dict[str, Any]]) -> None:
    """Write environment.json with these entries, whole or not at all."""
    target, part = path / "environment.json", path / "environment.json.part"
    try:
        part.write_text(json.dumps({"runs": runs}, indent=1, allow_nan=False) + "\n")
        part.replace(target)
    except OSError as error:
        raise rows.RowsError(f"cannot write {target}: {error.strerror}") from None


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


def _locked(path: Path) -> IO[bytes]:
    """The file, opened and locked until it is closed. Raises RowsError where another process has it."""
    file = open(path, "ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise rows.RowsError(f"{shown(path)} is being written by another run") from None
    except OSError:
        return file  # a file system without locks: nothing tells
    return file


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
