"""What other libraries reach on a GPU: results/<gpu>/peers.csv (function, shape, peer, microseconds)."""

import csv
import functools

from harness.environment import ROOT, slug

COPY = "copy of the same bytes"


@functools.cache
def load(gpu: str | None) -> dict[tuple[str, str], dict[str, float]]:
    """(function, shape) -> peer -> µs of GPU time per bf16 call; empty where nothing is recorded for the
    GPU."""
    path = ROOT / "results" / slug(gpu or "none") / "peers.csv"
    found: dict[tuple[str, str], dict[str, float]] = {}
    if path.exists():
        with open(path, newline="") as file:
            for line in csv.DictReader(file):
                if line["microseconds"] and line["function"] != COPY:
                    found.setdefault((line["function"], line["shape"]), {})[line["peer"]] = float(
                        line["microseconds"]
                    )
    return found


def key(row: dict) -> tuple[str, str] | None:
    """What a row's function and shape are recorded as, where the row is bf16 without options, and no copy: with FP8
    outputs, rowwise alone or both ways, as function_fp8d (delayed scaling), _fp8c (current), _fp8d_rc, _fp8c_rc."""
    suffix = {"none": "", "fp8_delayed": "_fp8d", "fp8_current": "_fp8c"}.get(row["recipe"])
    sides = {(): "", (("orientation", "both"),): "_rc"}.get(tuple(row["options"].items()))
    recorded = row["dtype"] == "bf16" and row["implementation"] != "copy"
    if not recorded or suffix is None or sides is None or (sides and not suffix):
        return None
    return f"{row['function']}{suffix}{sides}", row["shape"]


def best(row: dict) -> tuple[str, float] | None:
    """The fastest recorded peer (name, µs) of what the row is recorded as."""
    peers = load(row["gpu"]).get(key(row))
    return min(peers.items(), key=lambda item: item[1]) if peers else None
