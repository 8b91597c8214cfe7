"""The doctor's verdict from facts, and the examination of a GPU that is a value."""

import json
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from harness import backend_gpu, noise, telemetry
from harness.doctor import doubts, examine, processes
from harness.noise import Noise
from harness.subject import DeviceLost
from harness.telemetry import Device
from harness.tests.fake_nvml import Gpu, Nvml, NvmlError
from harness.tests.synthetic import H200

FINE = {
    "gpu": "NVIDIA H200", "nvml": True, "processes": [], "ceilings": H200.to_dict(), "loaded_mhz": (1380, 1980),
    "board": {"sm_clock_max_mhz": 1980, "memory_clock_max_mhz": 3201, "power_limit_w": 700.0,
              "power_limit_default_w": 700.0, "ecc": True, "mig": False, "persistence": True},
    "state": {"sm_mhz": 1965, "memory_mhz": 3201, "power_w": 512.3, "temperature_c": 41, "reasons": ["sw_power_cap"]},
    "noise": [],
}
QUIET = Noise(50, "12000x4096", "OK", "", 50.0, 0.4, 0.1, 0.5)


def of(each):
    return each.to_dict()


def test_a_gpu_under_its_usual_load_is_fit():
    assert doubts(FINE | {"noise": [of(QUIET), of(replace(QUIET, class_us=2, status="NOISY", reason="x"))]}) == []


@pytest.mark.parametrize(("changes", "words"), [
    ({"nvml": False}, "NVML does not answer"),
    ({"error": "OutOfMemoryError: CUDA out of memory"}, "The examination failed: OutOfMemoryError"),
    ({"processes": [{"pid": 7, "kind": "compute", "memory_bytes": 512 << 20}]},
     "Process 7 uses this GPU for compute and holds 512 MiB of it."),
    ({"processes": [{"pid": 8, "kind": "graphics", "memory_bytes": None}]}, "Process 8 uses this GPU for graphics."),
    ({"loaded_mhz": (900, 1200)}, "never rose above 1,200 MHz under load, of 1,980"),
    ({"state": FINE["state"] | {"reasons": ["hw_thermal_slowdown", "sw_power_cap"]}},
     "meanwhile: hw_thermal_slowdown."),
    ({"state": FINE["state"] | {"reasons": ["sw_thermal_slowdown"]}}, "sw_thermal_slowdown"),
    ({"board": FINE["board"] | {"power_limit_w": 500.0}}, "limited to 500 W, below the board's 700."),
    ({"board": FINE["board"] | {"mig": True}}, "MIG is on"),
    ({"noise": [of(replace(QUIET, noise_percent=1.34))]}, "at 50 µs differs from itself by up to 1.4 %."),
    ({"noise": [of(replace(QUIET, bias_percent=-0.7))]}, "at 50 µs differs from itself by up to 1.1 %."),
    ({"noise": [of(replace(QUIET, status="THROTTLED", reason="over 10 %"))]}, "at 50 µs is THROTTLED: over 10 %."),
    ({"noise": [of(Noise(50, "1x1", "FAIL_PARITY", "wrong"))]}, "at 50 µs is FAIL_PARITY: wrong."),
])
def test_each_doubt_is_one_sentence(changes, words):
    said = doubts(FINE | changes)
    assert len(said) == 1 and words in said[0] and said[0].endswith(".")


def test_what_is_unknown_is_no_doubt_by_itself():
    unknown = {"board": dict.fromkeys(FINE["board"]), "state": dict.fromkeys(FINE["state"]), "loaded_mhz": None}
    assert doubts(FINE | unknown | {"processes": None}) == []


def process(pid, memory):
    return SimpleNamespace(pid=pid, used_gpu_memory=memory)


def test_processes_of_both_kinds_are_listed():
    gpu = Gpu("GPU-a", device_get_compute_running_processes_v3=[process(11, 1 << 20), process(12, 2**64 - 1),
                                                                 process(os.getpid(), 9)],
              device_get_graphics_running_processes_v3=[process(13, 5)])
    assert processes(Device(Nvml(gpu), gpu)) == [
        {"pid": 11, "kind": "compute", "memory_bytes": 1 << 20},
        {"pid": 12, "kind": "compute", "memory_bytes": None},
        {"pid": 13, "kind": "graphics", "memory_bytes": 5},
    ]


def test_processes_that_nvml_does_not_list_are_unknown_and_not_none():
    failing = NvmlError("No Permission")
    gpu = Gpu("GPU-a", device_get_compute_running_processes_v3=failing,
              device_get_graphics_running_processes_v3=failing)
    assert processes(Device(Nvml(gpu), gpu)) is None and processes(None) is None
    gpu = Gpu("GPU-a", device_get_graphics_running_processes_v3=failing)
    assert processes(Device(Nvml(gpu), gpu)) == []


def test_processes_of_the_real_bindings_are_lists():
    nvml = pytest.importorskip("cuda.bindings.nvml")
    for count in (0, 1, 3):
        listed = nvml.ProcessInfo(count)
        gpu = Gpu("GPU-a", device_get_compute_running_processes_v3=listed)
        assert len(processes(Device(Nvml(gpu), gpu))) == count


@pytest.fixture
def machine(monkeypatch):
    """A machine with one GPU, as NVML, PyTorch and the backend show it; the function puts its parts in place."""

    def put(gpu=Gpu("GPU-a"), measured=(QUIET,), make=lambda limits: SimpleNamespace(ceilings=H200)):
        monkeypatch.setattr(telemetry, "library", lambda: gpu and Nvml(gpu))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "init", lambda: None)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
        monkeypatch.setattr(backend_gpu, "Gpu", make)
        monkeypatch.setattr(noise, "measure", lambda backend: list(measured))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return put


def test_examination_of_a_fit_gpu(machine, capsys):
    machine()
    assert examine() == 0
    out = capsys.readouterr().out
    for words in ("NVIDIA H200", "4.21 TB/s", "775 TFLOP/s", "unavailable", "0.032 µs",
                  "1,980 to 1,980 MHz, of 1,980 MHz", "350 W, of 700 W", "41 °C", "ECC", "12000x4096", "0.40",
                  "Fit for measurement."):
        assert words in out
    assert max(map(len, out.splitlines())) <= 100


def test_examination_as_json(machine, capsys):
    machine(Gpu("GPU-a", device_get_compute_running_processes_v3=[process(4711, 3 << 20)]))
    assert examine(as_json=True) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["fit"] is False
    assert found["doubts"] == ["Process 4711 uses this GPU for compute and holds 3 MiB of it."]
    assert found["ceilings"] == H200.to_dict() and found["noise"][0]["noise_percent"] == 0.4
    assert found["loaded_mhz"] == [1980, 1980] and found["board"]["ecc"] is True


def test_five_replicates_are_taken_for_the_noise(machine, capsys):
    asked = []
    machine(make=lambda limits: asked.append(limits) or SimpleNamespace(ceilings=H200))
    examine()
    assert [limits.replicates for limits in asked] == [5]


@pytest.mark.parametrize("error", [RuntimeError("CUDA out of memory"), DeviceLost("rmsnorm_fwd, optimized: gone")])
def test_a_gpu_that_cannot_be_examined_is_not_fit(machine, capsys, error):
    def make(limits):
        raise error

    machine(make=make)
    assert examine() == 3
    out = capsys.readouterr().out
    assert f"- The examination failed: {type(error).__name__}: {error}." in out and "4.21" not in out


def test_without_nvml_nothing_can_be_trusted(machine, capsys):
    machine(gpu=None)
    assert examine() == 3
    out = capsys.readouterr().out
    assert "4.21 TB/s" in out and "other processes" in out and "- NVML does not answer" in out


def test_doubts_are_listed_below_the_verdict(machine, capsys):
    machine(Gpu("GPU-a", device_get_current_clocks_event_reasons=0x48, instances=None),
            [replace(QUIET, noise_percent=9.0)])
    assert examine() == 3
    verdict = capsys.readouterr().out.split("not to be trusted now:")[1].strip().splitlines()
    assert [line[:2] for line in verdict] == ["- ", "- "]
    assert "hw_slowdown, hw_thermal_slowdown" in verdict[0] and "up to 9.1 %" in verdict[1]


def test_pytorch_without_a_gpu_is_said_and_not_fit(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert examine() == 3 and "cannot use the GPU" in capsys.readouterr().out
    assert examine(as_json=True) == 3
    assert json.loads(capsys.readouterr().out)["fit"] is False


@pytest.mark.gpu
def test_this_gpu_is_examined(capsys):
    code = examine(as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert code == (0 if found["fit"] else 3)
    assert "error" not in found and len(found["noise"]) == len(noise.CLASSES_US)
    assert all(each["noise_percent"] is not None for each in found["noise"])
