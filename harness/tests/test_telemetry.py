"""What NVML says, by an NVML that is missing, fails, lacks functions, or whose clocks change."""

import subprocess
import sys
import threading
import time

import pytest

from harness import telemetry
from harness.environment import ROOT
from harness.telemetry import Sample, Telemetry, device_of, reason_names, sample, summary, visible_devices
from harness.tests.fake_nvml import Gpu, Nvml, NvmlError

NOTHING = {"sm_mhz": None, "memory_mhz": None, "power_w": None, "temperature_c": None, "reasons": None}


@pytest.fixture
def install(monkeypatch):
    """A function that puts an NVML (or None) in place, and a value of CUDA_VISIBLE_DEVICES."""

    def put(nvml, visible=None):
        monkeypatch.setattr(telemetry, "library", lambda: nvml)
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return put


def uuids():
    return [uuid for _, uuid, _ in visible_devices()]


FOUR = Nvml(Gpu("GPU-aa11"), Gpu("GPU-aa22"), Gpu("GPU-bb33"), Gpu("GPU-cc44", name="NVIDIA T4"))


@pytest.mark.parametrize(("visible", "chosen"), [
    (None, "aa11 aa22 bb33 cc44"),
    ("", ""),
    ("0", "aa11"),
    ("2,0", "bb33 aa11"),
    (" 1, +3", "aa22 cc44"),
    ("1gpu,3x", "aa22 cc44"),
    ("-1", ""),
    ("0,-1,2", "aa11"),
    ("1,4,2", "aa22"),
    ("0,9999999999999", "aa11"),
    ("1,1", ""),
    ("1,2,1", ""),
    ("NoDevFiles", ""),
    ("GPU-bb33", "bb33"),
    ("GPU-b", "bb33"),
    ("GPU-a", ""),
    ("GPU-c,GPU-aa2", "cc44 aa22"),
    ("GPU-bb33,GPU-dd,GPU-cc44", "bb33"),
    ("GPU-bb33,GPU-bb33", ""),
    ("GPU-bb33,GPU-b", ""),
    ("GPU-bb33,1", "bb33"),
    ("1,GPU-bb33", "aa22"),
    ("MIG-0", ""),
])
def test_visible_devices_are_those_that_cuda_shows(install, visible, chosen):
    install(FOUR, visible)
    assert uuids() == [f"GPU-{each}" for each in chosen.split()]


def test_visible_devices_are_numbered_and_named(install):
    install(FOUR, "3,0")
    assert visible_devices() == [(0, "GPU-cc44", "NVIDIA T4"), (1, "GPU-aa11", "NVIDIA H200")]


MIG = Nvml(Gpu("GPU-a"), Gpu("GPU-b", instances=("MIG-b0", "MIG-b1")), Gpu("GPU-c", instances=()))


@pytest.mark.parametrize(("visible", "chosen"), [
    (None, ["MIG-b0"]),
    ("0", ["GPU-a"]),
    ("1", ["MIG-b0"]),
    ("2", []),
    ("0,1", ["MIG-b0"]),
    ("MIG-b1", ["MIG-b1"]),
    ("MIG-b1,MIG-b0", ["MIG-b1"]),
    ("MIG-b", []),
    ("GPU-b", ["MIG-b0"]),
])
def test_a_process_sees_one_instance_at_most_and_then_no_whole_gpu(install, visible, chosen):
    install(MIG, visible)
    assert uuids() == chosen


def test_device_of_an_instance_is_the_gpu_that_holds_it(install):
    install(MIG, "MIG-b1")
    assert visible_devices() == [(0, "MIG-b1", "NVIDIA H200 MIG 1g")]
    assert device_of(0).handle is MIG.gpus[1]


def test_device_follows_the_order_of_the_visible_ones(install):
    install(FOUR, "2,GPU-aa")
    assert device_of(0).handle is FOUR.gpus[2]
    assert device_of(1) is None and device_of(-1) is None


def test_device_is_found_by_the_uuid_that_cuda_gives(install, monkeypatch):
    import torch
    from types import SimpleNamespace

    install(MIG, "0")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for bare, gpu in (("a", 0), ("b1", 1)):
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, bare=bare: SimpleNamespace(uuid=bare))
        assert device_of(0).handle is MIG.gpus[gpu]


def test_a_lost_gpu_keeps_its_number_and_is_not_seen(install):
    lost = Nvml(Gpu("GPU-a"), Gpu(None), Gpu("GPU-c"))
    for visible, chosen in ((None, ["GPU-a", "GPU-c"]), ("2", ["GPU-c"]), ("0,1,2", ["GPU-a"])):
        install(lost, visible)
        assert uuids() == chosen


def test_without_nvml_everything_is_null(install):
    install(None)
    assert visible_devices() == [] and device_of(0) is None
    with Telemetry() as watch:
        pass
    assert watch.state() == NOTHING and watch.loaded_mhz() is None


def test_nvml_that_fails_at_everything_is_null(install):
    broken = Nvml(Gpu("GPU-a", **{name: NvmlError("Unknown") for name in Gpu("").answers}))
    install(broken)
    with Telemetry() as watch:
        pass
    assert watch.samples and watch.state() == NOTHING
    install(Nvml(Gpu("GPU-a"), missing=("device_get_count_v2",)))
    assert visible_devices() == []


def test_what_is_missing_is_null_and_the_rest_is_there(install):
    install(Nvml(Gpu("GPU-a"), missing=("device_get_power_usage", "device_get_current_clocks_event_reasons")))
    assert sample(device_of(0)) == Sample(1980, 3201, None, 41, None)
    assert summary([sample(device_of(0))]) == {
        "sm_mhz": 1980, "memory_mhz": 3201, "power_w": None, "temperature_c": 41, "reasons": None,
    }


def test_state_is_medians_and_every_reason_seen():
    found = summary([Sample(1980, 3201, 300.0, 40, 0x1), Sample(1500, None, 690.0, 44, 0x4), Sample(reasons=0x48)])
    assert found == {
        "sm_mhz": 1740, "memory_mhz": 3201, "power_w": 495.0, "temperature_c": 42,
        "reasons": ["hw_slowdown", "hw_thermal_slowdown", "sw_power_cap"],
    }
    assert summary([]) == NOTHING
    assert summary([Sample(reasons=0)])["reasons"] == []


def test_reasons_have_names_and_new_ones_their_bit():
    assert reason_names(0) == reason_names(0x1) == []
    assert reason_names(0x1 | 0x2 | 1 << 40) == [hex(1 << 40), "applications_clocks_setting"]


def test_reasons_are_the_bits_of_nvml():
    nvml = pytest.importorskip("cuda.bindings.nvml")
    names = {
        member.name.split("_REASON_")[1].lower(): member.value for member in nvml.ClocksEventReasons if member.value
    }
    assert names.pop("gpu_idle") == telemetry.IDLE
    assert names == {name: bit for bit, name in telemetry.REASONS.items()}


def test_functions_asked_for_are_in_nvml():
    nvml = pytest.importorskip("cuda.bindings.nvml")
    asked = {name for name in [*Gpu("").answers, *vars(Nvml)] if name.startswith(("device_get_", "system_get_"))}
    assert {name for name in asked if not hasattr(nvml, name)} == set()


def test_samples_follow_the_clocks_until_the_end(install):
    clocks = iter([1980, 1200, *[1500] * 1000])
    gpu = Gpu("GPU-a", device_get_clock_info=lambda kind: next(clocks) if kind == "SM" else 3201)
    install(Nvml(gpu))
    began = time.monotonic()
    with Telemetry() as watch:
        time.sleep(0.25)
    taken = len(watch.samples)
    assert 2 <= taken <= 2 + 20 * (time.monotonic() - began), "20 Hz, or fewer on a busy host"
    assert watch.loaded_mhz() == (1200, 1980)
    time.sleep(0.1)
    assert len(watch.samples) == taken
    assert not any(thread.name == "telemetry" for thread in threading.enumerate())


def test_clocks_of_an_idle_gpu_are_not_those_under_load():
    watch = Telemetry()
    watch.samples = [Sample(sm_mhz=345, reasons=0x1), Sample(sm_mhz=1900, reasons=0x4), Sample(sm_mhz=1980)]
    assert watch.loaded_mhz() == (1900, 1980)


def test_a_driver_that_hangs_does_not_hang_the_run(install, monkeypatch):
    hang = threading.Event()
    monkeypatch.setattr(telemetry, "PATIENCE_S", 0.05)
    install(Nvml(Gpu("GPU-a", device_get_power_usage=lambda: hang.wait(5))))
    began = time.monotonic()
    with Telemetry() as watch:
        pass
    assert time.monotonic() - began < 2 and watch.state() == NOTHING
    hang.set()


def test_an_exception_inside_passes_and_the_thread_ends(install):
    install(FOUR)
    with pytest.raises(ZeroDivisionError), Telemetry():
        1 / 0
    assert not any(thread.name == "telemetry" for thread in threading.enumerate())


def test_asking_neither_imports_torch_nor_starts_cuda():
    words = ("import sys; from harness.telemetry import *; visible_devices(); device_of(0); "
             "assert 'torch' not in sys.modules")
    subprocess.run([sys.executable, "-c", words], cwd=ROOT, check=True, timeout=60)


@pytest.mark.gpu
def test_devices_without_cuda_are_those_with_it():
    import torch

    if telemetry.library() is None:
        pytest.skip("this machine has no NVML")
    seen = [
        (index, str(torch.cuda.get_device_properties(index).uuid), torch.cuda.get_device_name(index))
        for index in range(torch.cuda.device_count())
    ]
    assert [(index, uuid.split("-", 1)[1], name) for index, uuid, name in visible_devices()] == seen


@pytest.mark.gpu
def test_state_of_this_gpu_under_load():
    import torch

    if telemetry.library() is None:
        pytest.skip("this machine has no NVML")
    a = torch.randn(4096, 4096, device="cuda")
    with Telemetry() as watch:
        began = time.monotonic()
        while time.monotonic() - began < 0.5:
            torch.mm(a, a)
            torch.cuda.synchronize()
    state = watch.state()
    assert len(watch.samples) >= 5 and None not in state.values()
    assert 200 < state["sm_mhz"] < 4000 and 20 < state["power_w"] < 2000 and watch.loaded_mhz()
