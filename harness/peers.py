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


def best(row: dict) -> tuple[str, float] | None:
    """The fastest recorded peer (name, µs) of a row's function and shape, where the row is plain bf16."""
    if row["dtype"] != "bf16" or row["recipe"] != "none" or row["options"]:
        return None
    peers = load(row["gpu"]).get((row["function"], row["shape"]))
    return min(peers.items(), key=lambda item: item[1]) if peers else None
