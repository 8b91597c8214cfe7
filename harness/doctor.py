"""`doctor`: what this GPU reaches, how far two measurements of one thing differ, and whether its state suits one."""

import json
import os
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness import noise, telemetry
from harness.environment import board
from harness.options import PROFILES
from harness.progress import open_console
from harness.subject import DeviceLost, first_line
from harness.telemetry import Device, attempt

FIT, NOT_FIT = 0, 3
REPLICATES = 5
UNKNOWN_BYTES = 2**64 - 1  # NVML's way not to say how much memory a process holds
SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
"""Reasons that hold clocks down for the health of the board; a power cap is how large products always run."""
CLOCK_SHARE = 0.9  # of the highest SM clock: a GPU that never reaches it under load is held back


def examine(as_json: bool = False) -> int:
    """Measure ceilings and A/A noise while the GPU is watched; print them and a verdict.

    The exit code is 0 where the GPU is fit for measurement, 3 where a figure from it is not to be trusted.
    """
    import torch

    console = open_console()
    if torch.cuda.is_available():
        found = examined(torch)
    else:
        found = {"doubts": [f"PyTorch {torch.__version__} cannot use the GPU."]}
    found["fit"] = not found["doubts"]
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        show(console, found)
    return FIT if found["fit"] else NOT_FIT


def examined(torch: Any) -> dict[str, Any]:
    """What there is to know of the current CUDA device: ceilings, clocks, processes, set-up, noise, and doubts.

    Other processes are looked for before this one has a context: in a container it may not know its own number there.
    """
    from harness.backend_gpu import Gpu

    device = telemetry.device_of()
    found: dict[str, Any] = {"processes": processes(device), "ceilings": None, "noise": []}
    torch.cuda.init()
    device = telemetry.device_of()
    found |= {"gpu": torch.cuda.get_device_name(), "nvml": device is not None, "board": board(device)}
    with telemetry.Telemetry() as watch:
        try:
            backend = Gpu(replace(PROFILES["quick"], replicates=REPLICATES))
            found["ceilings"] = backend.ceilings.to_dict()
            found["noise"] = [each.to_dict() for each in noise.measure(backend)]
        except (RuntimeError, DeviceLost) as error:
            found["error"] = first_line(error)
    found |= {"state": watch.state(), "loaded_mhz": watch.loaded_mhz()}
    return found | {"doubts": doubts(found)}


def processes(device: Device | None) -> list[dict[str, Any]] | None:
    """Other processes with a context on a GPU: {pid, kind, memory_bytes}; None where NVML does not say."""
    listed = {
        kind: device and attempt(lambda kind=kind: list(getattr(device.nvml, f"device_get_{kind}_running_processes_v3")(
            device.handle))) for kind in ("compute", "graphics")
    }
    if all(each is None for each in listed.values()):
        return None
    return [
        {
            "pid": int(each.pid),
            "kind": kind,
            "memory_bytes": None if each.used_gpu_memory in (None, UNKNOWN_BYTES) else int(each.used_gpu_memory),
        }
        for kind, group in listed.items() for each in group or () if each.pid != os.getpid()
    ]


def doubts(found: dict[str, Any]) -> list[str]:
    """What speaks against measuring on a GPU of which `examined` found this, a sentence each; none where it is fit."""
    said = [f"The examination failed: {found['error']}."] if found.get("error") else []
    if not found["nvml"]:
        said.append("NVML does not answer: clocks, throttling and other processes are unknown.")
    for each in found["processes"] or ():
        held = each["memory_bytes"]
        memory = "" if held is None else f" and holds {held / (1 << 20):,.0f} MiB of it"
        said.append(f"Process {each['pid']} uses this GPU for {each['kind']}{memory}.")
    return said + _of_the_board(found) + _of_the_noise(found["noise"])


def _of_the_board(found: dict[str, Any]) -> list[str]:
    board, said = found["board"], []
    slowed = [name for name in found["state"]["reasons"] or () if name in SLOWDOWNS]
    if slowed:
        said.append(f"The driver slowed its clocks down meanwhile: {', '.join(slowed)}.")
    most, loaded = board["sm_clock_max_mhz"], found["loaded_mhz"]
    if most and loaded and loaded[1] < CLOCK_SHARE * most:
        said.append(f"Its SM clock never rose above {loaded[1]:,} MHz under load, of {most:,} that it has.")
    limit, usual = board["power_limit_w"], board["power_limit_default_w"]
    if limit and usual and limit < usual:
        said.append(f"Its power is limited to {limit:,.0f} W, below the board's {usual:,.0f}.")
    if board["mig"]:
        said.append("MIG is on: SMs, L2 and memory are shared out, and no figure compares with those of a whole GPU.")
    return said


def _of_the_noise(measured: list[dict[str, Any]]) -> list[str]:
    said = []
    for each in measured:
        what = f"The A/A run at {each['class_us']:g} µs"
        if each["status"] not in ("OK", "NOISY"):
            said.append(f"{what} is {each['status']}: {each['reason']}.")
        elif not each["bearable"]:
            said.append(f"{what} differs from itself by up to {each['floor_percent']:.1f} %.")
    return said


def show(console: Console, found: dict[str, Any]) -> None:
    """Print the figures, then the verdict with its doubts."""
    if "gpu" in found:
        table = Table(title=found["gpu"], title_justify="left", title_style="bold", box=None, show_header=False)
        for name, value in lines(found):
            table.add_row(name, value)
        console.print(table, "")
        if found["noise"]:
            console.print(noise_table(found["noise"]), "")
    if found["fit"]:
        console.print(Text("Fit for measurement.", style="green"))
        return
    console.print(Text("Figures from this GPU are not to be trusted now:", style="red"))
    for doubt in found["doubts"]:
        console.print(f"- {doubt}", markup=False, soft_wrap=True)


def lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    """(name, value in words) of each figure; "unavailable" where it is null."""
    rates, board, state = found["ceilings"] or {}, found["board"], found["state"]
    others = found["processes"]
    loaded = found["loaded_mhz"] and "{:,} to {:,} MHz".format(*found["loaded_mhz"])
    return [
        *((name, _words(rates.get(f"{name}_tbs"), "{:.2f} TB/s")) for name in ("copy", "read", "write")),
        *((f"{name} product", _words(rates.get(f"{key}_tflops"), "{:,.0f} TFLOP/s"))
          for name, key in (("bf16", "product"), ("fp16", "fp16"), ("fp8", "fp8"))),
        ("event tick", _words(rates.get("tick_us"), "{:.3f} µs")),
        ("SM clock under load", f"{_words(loaded)}, of {_words(board['sm_clock_max_mhz'], '{:,} MHz')}"),
        ("memory clock", _words(state["memory_mhz"], "{:,.0f} MHz")),
        ("power", f"{_words(state['power_w'], '{:,.0f} W')}, of {_words(board['power_limit_w'], '{:,.0f} W')}"),
        ("temperature", _words(state["temperature_c"], "{:.0f} °C")),
        ("clocks held back by", _listed(state["reasons"])),
        ("other processes", _listed(others and [f"{each['pid']} ({each['kind']})" for each in others])),
        *((name, _words({True: "on", False: "off"}.get(board[key])))
          for name, key in (("ECC", "ecc"), ("MIG", "mig"), ("persistence", "persistence"))),
    ]


def noise_table(measured: list[dict[str, Any]]) -> Table:
    """One line a size class: its time, and the figures of `harness.noise.Noise`."""
    title = f"A/A: rmsnorm_fwd against itself, {REPLICATES} replicates"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in ("class µs", "shape", "µs", "noise ± %", "mean %", "floor %", "largest %", "status"):
        table.add_column(name, justify="left" if name in ("shape", "status") else "right", no_wrap=True)
    for each in measured:
        figures = [_words(each[name], "{:.2f}") for name in (
            "time_us", "noise_percent", "bias_percent", "floor_percent", "largest_percent")]
        table.add_row(f"{each['class_us']:g}", each["shape"], *figures, each["status"])
    return table


def _words(value: Any, form: str = "{}") -> str:
    return "unavailable" if value is None else form.format(value)


def _listed(names: list[str] | None) -> str:
    return "unavailable" if names is None else ", ".join(names) or "none"
