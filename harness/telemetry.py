"""What NVML says of a GPU: which ones a process sees, and the state of one while something runs on it.

Nothing here creates a CUDA context, so that a process which must not have one may ask as well. What NVML does not
say, or what there is no NVML for, is None, never 0.
"""

import functools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any, NamedTuple

PERIOD_S = 0.05  # between samples: 20 Hz
PATIENCE_S = 2.0  # for the last sample of a driver that hangs
IDLE = 0x1
REASONS = {
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Bits of NVML's clock-event reasons, without that of an idle GPU -> names."""


def attempt(find: Callable[[], Any]) -> Any:
    """What `find` returns, or None where it raises: a figure that is unavailable is null, never 0."""
    try:
        return find()
    except Exception:  # noqa: BLE001 - drivers raise their own types
        return None


@functools.cache
def library() -> Any:
    """`cuda.bindings.nvml`, initialized once in this process; None where it or the driver is missing."""

    def find() -> Any:
        from cuda.bindings import nvml

        nvml.init_v2()
        return nvml

    return attempt(find)


class Device(NamedTuple):
    """A whole GPU as NVML knows it."""

    nvml: Any
    handle: Any

    def ask(self, function: str, *arguments: Any) -> Any:
        """The answer of one of NVML's functions of a device; None where it is missing or fails."""
        return attempt(lambda: getattr(self.nvml, function)(self.handle, *arguments))

    def clock_mhz(self, function: str, kind: str) -> int | None:
        """A clock in MHz, by a function that takes a member of NVML's ClockType; None where it is unknown."""
        return attempt(lambda: getattr(self.nvml, function)(self.handle, getattr(self.nvml.ClockType, kind)))


def device_of(index: int = 0) -> Device | None:
    """The GPU that is CUDA's device `index` in this process, or that holds it where that is a MIG instance.

    Found by its UUID, which CUDA itself gives where it already runs, else `visible_devices`.
    """
    nvml = library()
    for uuid in _uuids(index):
        handle = attempt(lambda uuid=uuid: nvml.device_get_handle_by_uuid(uuid))
        if handle is not None and uuid.startswith("MIG-"):
            handle = attempt(lambda handle=handle: nvml.device_get_device_handle_from_mig_device_handle(handle))
        if handle is not None:
            return Device(nvml, handle)
    return None


def _uuids(index: int) -> list[str]:
    """The names that CUDA's device `index` may have in NVML."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        bare = attempt(lambda: torch.cuda.get_device_properties(index).uuid)
        return [f"GPU-{bare}", f"MIG-{bare}"] if bare else []
    return [uuid for number, uuid, _ in visible_devices() if number == index]


def visible_devices() -> list[tuple[int, str, str]]:
    """(index, UUID, name) of the devices that CUDA will show this process, without asking CUDA.

    By the rules of CUDA_VISIBLE_DEVICES and of MIG: a process sees one MIG instance at most, and then no whole GPU.
    NVML counts in the order of the bus. So does CUDA where all GPUs are alike; where they differ, only with
    CUDA_DEVICE_ORDER=PCI_BUS_ID. Empty where there is no NVML. Sources: CUDA C++ Programming Guide, environment
    variables; NVIDIA Multi-Instance GPU User Guide, CUDA device enumeration.
    """
    nvml = library()
    count = nvml and attempt(lambda: nvml.device_get_count_v2())
    boards = [attempt(lambda i=i: nvml.device_get_handle_by_index_v2(i)) for i in range(count or 0)]
    parts = {_uuid(nvml, board) or f"lost {i}": _parts(nvml, board) for i, board in enumerate(boards)}
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = [part for uuid in (parts if wanted is None else picked(wanted, parts)) for part in parts.get(uuid, [uuid])]
    seen = [uuid for uuid in seen if uuid.startswith("MIG-")][:1] or seen
    return [(index, uuid, _name(nvml, uuid)) for index, uuid in enumerate(seen)]


def picked(wanted: str, parts: dict[str, list[str]]) -> list[str]:
    """The UUIDs that a value of CUDA_VISIBLE_DEVICES chooses, in its order.

    `parts` maps each GPU, in order, to what CUDA sees of it: itself, its MIG instances, or nothing. The list holds
    indices of GPUs or beginnings of UUIDs; it ends before the first entry that is not exactly one device; a device
    that is there twice leaves none.
    """
    boards, by_name = list(parts), wanted.startswith(("GPU-", "MIG-"))
    names = {*boards, *(part for group in parts.values() for part in group)}
    chosen: list[str] = []
    for word in wanted.split(","):
        if by_name:
            matches = [name for name in names if word.startswith(("GPU-", "MIG-")) and name.startswith(word)]
        else:
            number = re.match(r"\s*\+?(\d+)", word)
            matches = boards[int(number[1]) :][:1] if number else []
        if len(matches) != 1 or matches[0].startswith("lost"):
            break
        if matches[0] in chosen:
            return []
        chosen += matches
    return chosen


def _uuid(nvml: Any, handle: Any) -> str | None:
    return attempt(lambda: nvml.device_get_uuid(handle))


def _name(nvml: Any, uuid: str) -> str:
    return attempt(lambda: nvml.device_get_name(nvml.device_get_handle_by_uuid(uuid))) or ""


def _parts(nvml: Any, board: Any) -> list[str]:
    """What CUDA sees of a GPU: itself, its instances where MIG is on, nothing where it does not answer."""
    mode = attempt(lambda: nvml.device_get_mig_mode(board))
    if not mode or not mode[0]:
        return list(filter(None, [_uuid(nvml, board)]))
    count = attempt(lambda: nvml.device_get_max_mig_device_count(board)) or 0
    handles = (attempt(lambda i=i: nvml.device_get_mig_device_handle_by_index(board, i)) for i in range(count))
    return [uuid for handle in handles if handle is not None and (uuid := _uuid(nvml, handle))]


class Sample(NamedTuple):
    """The state of a GPU at one moment; `reasons` are bits of what holds its clocks back, see REASONS."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    reasons: int | None = None


def sample(device: Device | None) -> Sample:
    """The state of a GPU now, each part None where NVML does not say."""
    if device is None:
        return Sample()
    power = device.ask("device_get_power_usage")
    sensor = attempt(lambda: device.nvml.TemperatureSensors.TEMPERATURE_GPU)
    return Sample(
        device.clock_mhz("device_get_clock_info", "CLOCK_SM"),
        device.clock_mhz("device_get_clock_info", "CLOCK_MEM"),
        None if power is None else power / 1000,
        device.ask("device_get_temperature_v", sensor),
        device.ask("device_get_current_clocks_event_reasons"),
    )


def reason_names(bits: int) -> list[str]:
    """Names of the reasons in a mask, sorted, an idle GPU left out; a bit without a name as its value."""
    each = (1 << place for place in range(bits.bit_length()))
    return sorted(REASONS.get(bit, hex(bit)) for bit in each if bits & bit and bit != IDLE)


def summary(samples: Iterable[Sample]) -> dict[str, Any]:
    """`gpu_state` of a row: medians of clocks (MHz), power (W) and temperature (°C), and `reasons`, the names of all
    that were seen; each None where no sample says."""
    columns = dict(zip(Sample._fields, zip(*samples, strict=True))) or dict.fromkeys(Sample._fields, ())
    known = {name: [value for value in column if value is not None] for name, column in columns.items()}
    reasons = known.pop("reasons")
    state = {name: median(column) if column else None for name, column in known.items()}
    return state | {"reasons": reason_names(functools.reduce(int.__or__, reasons)) if reasons else None}


class Telemetry:
    """Samples the state of CUDA's device `index` at 20 Hz, in a thread of its own, from enter to exit.

    At least one sample is taken. A GPU that does not answer costs nothing but the figures.
    """

    def __init__(self, index: int = 0):
        self.index = index
        self.samples: list[Sample] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Telemetry":
        device = device_of(self.index)
        self._stop.clear()
        self._thread = threading.Thread(target=self._watch, args=(device,), daemon=True, name="telemetry")
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)

    def _watch(self, device: Device | None) -> None:
        while True:
            self.samples.append(sample(device))
            if device is None or self._stop.wait(PERIOD_S):
                return

    def state(self) -> dict[str, Any]:
        """The summary of all samples so far: `gpu_state` of a row."""
        return summary(self.samples)

    def loaded_mhz(self) -> tuple[int, int] | None:
        """Lowest and highest SM clock of the samples in which the GPU was not idle; None where there are none."""
        clocks = [each.sm_mhz for each in self.samples if each.sm_mhz and not (each.reasons or 0) & IDLE]
        return (min(clocks), max(clocks)) if clocks else None
