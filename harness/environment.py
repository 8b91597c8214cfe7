"""The environment record: what a result depends on besides the code. What cannot be found out is null."""

import hashlib
import json
import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from harness import telemetry
from harness.telemetry import attempt

ROOT = Path(__file__).resolve().parent.parent


def slug(gpu: str) -> str:
    """The folder name of a GPU: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


def record(index: int = 0) -> dict[str, Any]:
    """The environment of this process: packages, host, git, and CUDA's device `index` where there is one."""
    import torch

    nvml = telemetry.library()
    return {
        "gpu": _gpu(torch, index) if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "driver": attempt(lambda: nvml.system_get_driver_version()),
        "cuda_driver": attempt(lambda: _dotted(nvml.system_get_cuda_driver_version_v2())),
        "nvrtc": attempt(_nvrtc),
        "cuda_python": _version("cuda-python") or _version("cuda-bindings"),
        "cuda_core": _version("cuda-core"),
        "triton": _version("triton"),
        "python": platform.python_version(),
        "host": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "system": platform.system(),
            "release": platform.release(),
        },
        "git": _git(),
    }


def digest(environment: dict[str, Any]) -> str:
    """Twelve hexadecimal digits that name this environment. Clocks and the date are not part of it."""
    return hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()[:12]


def _gpu(torch: Any, index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    return {
        "name": properties.name,
        "arch": f"sm_{properties.major}{properties.minor}",
        "sms": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        "count": torch.cuda.device_count(),
    } | board(telemetry.device_of(index))


def board(device: telemetry.Device | None) -> dict[str, Any]:
    """What NVML says of how a GPU is set up: limits of power (W) and clocks (MHz), ECC, MIG, persistence."""
    answers = {
        "power_limit_w": lambda: device.ask("device_get_enforced_power_limit") / 1000,
        "power_limit_default_w": lambda: device.ask("device_get_power_management_default_limit") / 1000,
        "sm_clock_max_mhz": lambda: device.clock_mhz("device_get_max_clock_info", "CLOCK_SM"),
        "memory_clock_max_mhz": lambda: device.clock_mhz("device_get_max_clock_info", "CLOCK_MEM"),
        "ecc": lambda: bool(device.ask("device_get_ecc_mode")[0]),
        "mig": lambda: bool(device.ask("device_get_mig_mode")[0]),
        "persistence": lambda: bool(device.nvml.device_get_persistence_mode(device.handle)),
    }
    return {name: attempt(find) for name, find in answers.items()}


def clocks(index: int = 0) -> dict[str, Any] | None:
    """Clocks (MHz), power (W), temperature (°C) of CUDA's device `index` now and what holds its clocks back, each null
    where NVML does not say; None where it knows no such device."""
    device = telemetry.device_of(index)
    return device and telemetry.summary([telemetry.sample(device)])


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _nvrtc() -> str:
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    return f"{major}.{minor}"


def _version(package: str) -> str | None:
    return attempt(lambda: metadata.version(package))


def _cpu() -> str:
    found = attempt(lambda: re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())[1])
    return found or platform.processor() or platform.machine()


def _git() -> dict[str, Any] | None:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    return attempt(
        lambda: {
            "commit": git("rev-parse", "HEAD"),
            "dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
        }
    )
