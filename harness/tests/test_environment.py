"""The environment record: complete, and null where nobody says."""

from types import SimpleNamespace

import pytest
import torch

from harness import environment, telemetry
from harness.environment import board, clocks, digest, record
from harness.telemetry import Device
from harness.tests.fake_nvml import Gpu, Nvml, NvmlError

H200 = {
    "power_limit_w": 700.0, "power_limit_default_w": 700.0, "sm_clock_max_mhz": 1980, "memory_clock_max_mhz": 3201,
    "ecc": True, "mig": False, "persistence": True,
}


@pytest.fixture
def install(monkeypatch):
    def put(nvml):
        monkeypatch.setattr(telemetry, "library", lambda: nvml)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return put


def test_board_is_what_nvml_says():
    gpu = Gpu("GPU-a")
    assert board(Device(Nvml(gpu), gpu)) == H200
    capped = Gpu("GPU-b", instances=(), device_get_enforced_power_limit=500_000, device_get_ecc_mode=(0, 1))
    assert board(Device(Nvml(capped), capped)) == H200 | {"power_limit_w": 500.0, "ecc": False, "mig": True}


@pytest.mark.parametrize("name", H200)
def test_what_fails_is_null_and_the_rest_is_there(name):
    failing = {
        "power_limit_w": "device_get_enforced_power_limit",
        "power_limit_default_w": "device_get_power_management_default_limit",
        "ecc": "device_get_ecc_mode", "mig": "device_get_mig_mode", "persistence": "device_get_persistence_mode",
    }.get(name, "device_get_max_clock_info")
    clocks_too = {"sm_clock_max_mhz", "memory_clock_max_mhz"} if failing == "device_get_max_clock_info" else {name}
    gpu = Gpu("GPU-a", **{failing: NvmlError("Not Supported")})
    assert board(Device(Nvml(gpu), gpu)) == H200 | dict.fromkeys(clocks_too)
    gpu = Gpu("GPU-a")
    assert board(Device(Nvml(gpu, missing=(failing,)), gpu)) == H200 | dict.fromkeys(clocks_too)


def test_without_nvml_the_board_is_unknown():
    assert board(None) == dict.fromkeys(H200)


def test_clocks_are_those_of_the_moment(install):
    install(Nvml(Gpu("GPU-a", device_get_current_clocks_event_reasons=0x4)))
    assert clocks() == {
        "sm_mhz": 1980, "memory_mhz": 3201, "power_w": 350.0, "temperature_c": 41, "reasons": ["sw_power_cap"],
    }
    assert clocks(1) is None
    install(None)
    assert clocks() is None


def test_record_of_a_gpu(install, monkeypatch):
    properties = SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, total_memory=1 << 37, L2_cache_size=60 << 20,
        uuid="a",
    )
    install(Nvml(Gpu("GPU-b"), Gpu("GPU-a", device_get_enforced_power_limit=650_000)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    found = record(1)
    assert (found["driver"], found["cuda_driver"]) == ("580.159.04", "13.1")
    assert found["gpu"] == H200 | {
        "name": "NVIDIA H200", "arch": "sm_90", "sms": 132, "memory_bytes": 1 << 37, "l2_bytes": 60 << 20, "count": 2,
        "power_limit_w": 650.0,
    }


def test_record_without_a_gpu_says_so(install, monkeypatch):
    install(None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(environment, "ROOT", "/nowhere")
    found = record()
    assert [found[name] for name in ("gpu", "driver", "cuda_driver", "git")] == [None] * 4
    assert found["torch"] and found["host"]["cores"]


def test_digest_names_the_record():
    one = {"driver": "580", "gpu": {"ecc": True}}
    assert digest(one) == digest({"gpu": {"ecc": True}, "driver": "580"}) != digest(one | {"driver": "581"})
    assert len(digest(one)) == 12
