"""The environment record: what a result depends on besides the code. What cannot be found out is null."""

import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def attempt(find: Callable[[], Any]) -> Any:
    """What `find` returns, or None where it raises: a figure that is unavailable is null, never 0."""
    try:
        return find()
    except Exception:  # noqa: BLE001 - drivers raise their own types
        return None


def slug(gpu: str) -> str:
    """The folder name of a GPU: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


def record() -> dict[str, Any]:
    """The environment of this process: packages, host, git, and the GPU where there is one."""
    import torch

    gpu = torch.cuda.is_available()
    return {
        "gpu": _gpu(torch) if gpu else None,
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "driver": _nvml_driver(),
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


def _gpu(torch: Any) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "arch": f"sm_{properties.major}{properties.minor}",
        "sms": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        "count": torch.cuda.device_count(),
    } | _nvml()


def _nvml() -> dict[str, Any]:
    names = ("power_limit_w", "sm_clock_max_mhz", "memory_clock_max_mhz", "ecc", "mig")
    nvml, handle = attempt(_nvml_handle) or (None, None)
    if nvml is None:
        return dict.fromkeys(names)
    clock = nvml.ClockType
    found = (
        attempt(lambda: nvml.device_get_enforced_power_limit(handle) / 1000),
        attempt(lambda: nvml.device_get_max_clock_info(handle, clock.CLOCK_SM)),
        attempt(lambda: nvml.device_get_max_clock_info(handle, clock.CLOCK_MEM)),
        attempt(lambda: bool(nvml.device_get_ecc_mode(handle)[0])),
        attempt(lambda: bool(nvml.device_get_mig_mode(handle)[0])),
    )
    return dict(zip(names, found))


def _nvml_handle() -> tuple[Any, Any]:
    import torch
    from cuda.bindings import nvml

    nvml.init_v2()
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    return nvml, nvml.device_get_handle_by_uuid(uuid)


def clocks() -> dict[str, Any] | None:
    """Clocks (MHz), power (W) and temperature (°C) of the GPU now, each null where NVML does not say."""
    found = attempt(_nvml_handle)
    if found is None:
        return None
    nvml, handle = found
    return {
        "sm_mhz": attempt(lambda: nvml.device_get_clock_info(handle, nvml.ClockType.CLOCK_SM)),
        "memory_mhz": attempt(lambda: nvml.device_get_clock_info(handle, nvml.ClockType.CLOCK_MEM)),
        "power_w": attempt(lambda: nvml.device_get_power_usage(handle) / 1000),
        "temperature_c": attempt(
            lambda: nvml.device_get_temperature_v(handle, nvml.TemperatureSensors.TEMPERATURE_GPU)
        ),
    }


def _nvml_driver() -> str | None:
    def find() -> str:
        from cuda.bindings import nvml

        nvml.init_v2()
        return nvml.system_get_driver_version()

    return attempt(find)


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
