"""Where the rows of a run come from: device, dates, versions and commits, all that any of them was measured with."""

from typing import Any


def provenance(found: list[dict[str, Any]], runs: list[dict[str, Any]]) -> str:
    """Device, date and versions in one line, those of every environment that a row was measured in."""
    used = used_by(found, runs)
    dates = _each((run.get("started") or "")[:10] for run in used)
    if not dates and found:
        dates = _each([(found[0]["time"] or "")[:10]])
    hosts = _each(run.get("environment", {}).get("host", {}).get("cpu") for run in used)
    where = device(found) if any(row["gpu"] for row in found) or not hosts else f"CPU: {' and '.join(hosts)}"
    return " · ".join([where, *([" and ".join(dates)] if dates else []), *versions(used)])


def used_by(found: list[dict[str, Any]], runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries of a folder's environment.json that its rows name; the last one where they name none."""
    hashes = {row["environment"] for row in found}
    return [run for run in runs if run.get("hash") in hashes] or runs[-1:]


def versions(runs: list[dict[str, Any]]) -> list[str]:
    """What the runs ran with: "torch 2.11.0", "commit 0123456789 and 9876543210-dirty"; nothing where none says."""
    environments = [run.get("environment", {}) for run in runs]
    named = {name: _each(environment.get(key) for environment in environments)
             for name, key in (("torch", "torch"), ("NVRTC", "nvrtc"), ("driver", "driver"))}
    named["commit"] = _each(_commit(environment.get("git") or {}) for environment in environments)
    return [f"{name} {' and '.join(values)}" for name, values in named.items() if values]


def device(found: list[dict[str, Any]]) -> str:
    """The GPUs that the rows come from, or CPU."""
    gpus = sorted({row["gpu"] for row in found if row["gpu"]})
    return ", ".join(gpus) or "CPU"


def _commit(git: dict[str, Any]) -> str | None:
    return git.get("commit") and git["commit"][:10] + ("-dirty" if git.get("dirty") else "")


def _each(values: Any) -> list[str]:
    """Each value once, in order, without what is missing."""
    return list(dict.fromkeys(filter(None, values)))
