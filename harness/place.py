"""Where a run measures: the GPUs of this machine, or its CPU. Asks NVML and never CUDA."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from harness import case_server
from harness.options import Options, UsageError


@dataclass(frozen=True)
class Place:
    """`name` is the `device` of its rows, `indices` those of the devices that are used. `make(index)` gives the
    backend of one of them, in a worker."""

    name: str
    indices: tuple[int, ...]
    make: Callable[[int], Any]


def of_cpu() -> Place:
    """This machine's CPU."""
    return Place("cpu", (0,), case_server.cpu)


def of_gpus(options: Options, visible: list[tuple[int, str, str]]) -> Place:
    """The GPUs that are asked for, of those `visible` as telemetry.visible_devices lists them; the first if none is.

    Raises UsageError for one that is not there, and for GPUs that differ.
    """
    names = {index: name for index, _, name in visible}
    wanted = options.devices or (min(names),)
    for index in wanted:
        if index not in names:
            raise UsageError(f"--devices {index}: there is no such GPU; there are: {', '.join(map(str, names))}")
    if len({names[index] for index in wanted}) > 1:
        raise UsageError(f"--devices: {' and '.join(f'{names[index]} ({index})' for index in wanted)} differ")
    return Place("cuda", wanted, partial(case_server.gpu, options.limits))
