"""Result rows: strict JSON, one line each, on the disk the moment they exist."""

import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType
from typing import Any

SCHEMA = 2
ADDED = {2: ("host_bound", "replicates", "speedup", "audit", "gpu_state", "seconds")}
"""Version -> the fields that it brought: null in rows of an earlier one."""
STATUSES = (
    "OK",
    "FAIL_PARITY",
    "UNSUPPORTED",
    "OOM",
    "TIMEOUT",
    "CRASH",
    "COMPILE_ERROR",
    "NOISY",
    "HOST_BOUND",
    "THROTTLED",
    "INVALID",
    "SKIPPED",
)
KINDS = ("case", "compile")
COLUMNS = ("graph_us", "cold_us", "warm_us")
"""The times of a row, the one that it is judged by first."""
FINAL = ("OK", "UNSUPPORTED", "SKIPPED")  # another try would give the same, or nothing better
FAILURES = ("FAIL_PARITY", "TIMEOUT", "CRASH", "COMPILE_ERROR", "INVALID")
IDENTITY = (
    "kind",
    "case",
    "function",
    "implementation",
    "shape",
    "dtype",
    "recipe",
    "options",
    "seed",
    "device",
)
FIELDS = {
    "schema": "version of this list",
    "kind": '"case": a measured or checked case; "compile": one specialization and what its compilation gave',
    "function": "name of the function",
    "implementation": "reference, compiled, optimized, cublas, unfused, copy, ...",
    "shape": '"MxN" or "MxNxK"',
    "dtype": "of the activations",
    "recipe": "quantization recipe, or none",
    "options": "the case's other arguments",
    "seed": "of the inputs",
    "case": "the case's name",
    "status": "one of STATUSES",
    "reason": "why the status is not OK",
    "cold_us": "L2 flushed by reading before each call",
    "warm_us": "the same input again and again; below 20 µs several calls a sample",
    "graph_us": "a CUDA graph of calls rotating over inputs; each column {median, p20, p80, min, ci_low, "
    "ci_high, n, dropped}",
    "replicates": "column -> the medians of its replicates, in the order measured",
    "copy_us": "graph median of a plain copy of the same bytes in this run",
    "host_us": "host cost of one call",
    "host_bound": "whether calls one by one wait for the host: warm time under 1.5 x host cost",
    "reference_us": "graph (on a CPU: warm) median of the reference in this run",
    "speedup": "{median, ci_low, ci_high} of the reference's time (where cublas was timed: of its time) over this one, "
    "replicate by replicate",
    "rotation": "{inputs, calls, bytes} of the graph column",
    "compile_ms": "NVRTC time of the kernel",
    "cache_hit": "whether the kernel came from the disk cache",
    "bytes": "read and written, counted from the tensors",
    "read_bytes": "read alone",
    "written_bytes": "written",
    "flops": "of the formula",
    "audit": "{read_bytes, written_bytes} counted from the tensors that went in and came out",
    "percent_of_limit": "of what the measured ceilings allow, by graph time",
    "parity": "errors against the float64 oracle, counts of codes and scales, what quantization lost, and the checks",
    "kernel": "plan and binary of the kernel",
    "gpu": "name of the GPU, or null",
    "gpu_state": "{sm_mhz, memory_mhz, power_w, temperature_c, reasons} while the case ran, each null where "
    "the driver does not say",
    "seconds": "stage of this row -> seconds that it took",
    "device": '"cuda" or "cpu"',
    "time": "UTC, ISO 8601",
    "repeat": "the command that repeats this row",
    "environment": "hash of the environment record",
}


_SHAPES = {
    dict: (
        "options", "cold_us", "warm_us", "graph_us", "replicates", "speedup", "rotation", "audit", "parity",
        "kernel", "gpu_state", "seconds",
    ),
    str: ("case", "function", "implementation", "shape", "dtype", "recipe", "reason", "gpu", "time", "repeat"),
    (int, float): ("copy_us", "host_us", "reference_us", "compile_ms", "bytes", "flops", "percent_of_limit"),
}
_NUMBER, _MAYBE = (int, float), (int, float, NoneType)
_TIMING = dict.fromkeys(("median", "ci_low", "ci_high"), _NUMBER)
_PARTS = {
    "cold_us": _TIMING, "warm_us": _TIMING, "graph_us": _TIMING,
    "speedup": {"median": _NUMBER, "ci_low": _MAYBE, "ci_high": _MAYBE},
    "gpu_state": dict.fromkeys(("sm_mhz", "power_w", "temperature_c"), _MAYBE) | {"reasons": (list, NoneType)},
    "parity": {"ok": bool, "errors": dict},
}
_BUILT = {"source": str, "registers": int, "spill_bytes": int}
"""What the kernel of a compile row has that is OK."""


CURE = "without this line the rest can be read, and --resume measures it anew"
CPU = "a CPU"
"""What a row without a GPU comes from."""


class RowsError(Exception):
    """A rows file that cannot be read or written; one sentence says why."""


def row(**fields: Any) -> dict[str, Any]:
    """A whole row: every field of FIELDS, null where nothing is given. Raises KeyError for a name that is not
    in FIELDS, ValueError for a status that is not in STATUSES."""
    unknown = fields.keys() - FIELDS.keys()
    if unknown:
        raise KeyError(f"row: no such field: {', '.join(sorted(unknown))}")
    if fields.get("status") not in STATUSES:
        raise ValueError(f"row: status is {fields.get('status')!r}; allowed: {', '.join(STATUSES)}")
    return dict.fromkeys(FIELDS) | {"schema": SCHEMA, "kind": "case"} | fields


def identity(row: dict[str, Any]) -> str:
    """What a row is about, as one string: two rows with the same identity measure the same thing."""
    return json.dumps([row.get(name) for name in IDENTITY], sort_keys=True)


def latest(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that stand: of each identity the last, where the first one was."""
    return list({identity(row): row for row in found}.values())


def strict(value: Any) -> Any:
    """`value` with every NaN or infinity, which JSON does not have, replaced by null."""
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Writer:
    """Appends rows to `path`; each is flushed and fsynced before `write` returns.

    A torn last line, left by a killed run, is cut off first. Raises RowsError when the file cannot be
    written.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            self._file = open(path, "a+b")
            self._cut_torn_line()
        except OSError as error:
            raise RowsError(f"cannot write {path}: {error.strerror}") from None

    def write(self, row: dict[str, Any]) -> None:
        """Append one row as one line of strict JSON."""
        line = json.dumps(strict(row), allow_nan=False) + "\n"
        try:
            self._file.write(line.encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise RowsError(f"cannot write {self.path}: {error.strerror}") from None

    def close(self) -> None:
        """Close the file; what was written stays."""
        try:
            self._file.close()
        except OSError:
            pass  # a full disk was already reported by write()

    def _cut_torn_line(self) -> None:
        self._file.seek(0)
        content = self._file.read()
        if not content.endswith(b"\n"):
            self._file.truncate(content.rfind(b"\n") + 1)


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, without a torn last line. Raises RowsError for a file that is missing, is not ours,
    or has a later schema version; rows of an earlier one have null for what it did not have."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise RowsError(f"cannot read {path}: {error.strerror}") from None
    return list(_parsed(path, lines))


def _parsed(path: Path, lines: list[str]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is empty or torn
        try:
            row = json.loads(line)
            schema = row["schema"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise RowsError(f"{path}, line {number}: not a result row; {CURE}") from None
        if schema in range(1, SCHEMA):
            later = (name for version, names in ADDED.items() if version > schema for name in names)
            row, schema = dict.fromkeys(later) | row | {"schema": SCHEMA}, SCHEMA
        if schema != SCHEMA:
            raise RowsError(f"{path}, line {number}: schema {schema}, this version reads {SCHEMA}")
        if not _whole(row):
            raise RowsError(f"{path}, line {number}: a damaged result row; {CURE}")
        yield row


def _whole(row: dict[str, Any]) -> bool:
    """Whether a row has every field, and in each what reports take for granted."""
    return (
        FIELDS.keys() <= row.keys()
        and row["kind"] in KINDS
        and row["status"] in STATUSES
        and all(row[name] is None or isinstance(row[name], kind) for kind in _SHAPES for name in _SHAPES[kind])
        and all(row[name] is None or _has(row[name], parts) for name, parts in _PARTS.items())
        and all(isinstance(error, dict) for error in (row["parity"] or {}).get("errors", {}).values())
        and (row["kind"] != "compile" or row["status"] != "OK" or _has(row["kernel"] or {}, _BUILT))
    )


def _has(value: dict[str, Any], parts: dict[str, Any]) -> bool:
    """Whether each part is there, and of its type."""
    return all(name in value and isinstance(value[name], kind) for name, kind in parts.items())
