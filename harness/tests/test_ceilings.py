"""Ceilings: the limit that they set to some work, what is stored of them, and how a product is measured."""

import json
import time
from dataclasses import replace

import pytest
import torch

from harness import ceilings
from harness.cases import Work
from harness.ceilings import Ceilings, product_tflops, recorded
from harness.environment import ROOT

H200 = Ceilings(4.0, 4.2, 4.3, 800.0, 0.032, fp16_tflops=790.0, fp8_tflops=1400.0)


@pytest.mark.parametrize(("operands", "rate"), [("bf16", 800), ("fp16", 790), ("fp8", 1400), ("fp32", 800)])
def test_limit_of_a_product_is_that_of_its_operands(operands, rate):
    assert H200.limit_us(Work(4, 4, 8_000_000_000, operands)) == pytest.approx(8000 / rate)


def test_limit_of_a_product_that_was_not_measured_is_that_of_bf16():
    chip = replace(H200, fp8_tflops=None)
    assert chip.limit_us(Work(0, 0, 8_000_000_000, "fp8")) == pytest.approx(10.0)


def test_limit_is_the_slower_of_bytes_and_flops():
    assert H200.limit_us(Work(4_200_000, 8_600_000, 800)) == pytest.approx(3.0)
    assert Work(1, 1, 1).operands == "bf16"


def test_in_words_and_short():
    words = str(H200)
    assert words == "copy 4.00, read 4.20, write 4.30 TB/s; product bf16 800, fp16 790, fp8 1,400 TFLOP/s"
    assert str(replace(H200, fp16_tflops=None, fp8_tflops=None)).endswith("; product bf16 800 TFLOP/s")


@pytest.mark.parametrize(("changes", "whole"), [
    ({}, True), ({"fp8_tflops": None}, True), ({"copy_tbs": None}, False), ({"product_tflops": "fast"}, False),
    ({"fp8_tflops": "fast"}, False), ({"fp4_tflops": 1.0}, False),
])
def test_a_record_has_every_number_but_those_that_a_chip_may_lack(changes, whole):
    assert recorded(json.loads(json.dumps(H200.to_dict() | changes))) == whole


def test_a_record_of_before_some_product_was_measured_is_still_read():
    older = {name: value for name, value in H200.to_dict().items() if name not in ("fp16_tflops", "fp8_tflops")}
    assert recorded(older) and Ceilings(**older).fp8_tflops is None
    assert not recorded({name: older[name] for name in list(older)[1:]})
    for path in ROOT.glob("results/*/*/environment.json"):
        assert all(recorded(run["ceilings"]) for run in json.loads(path.read_text())["runs"] if run["ceilings"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_product_is_that_of_its_operands_and_the_best_size_counts(monkeypatch, dtype):
    outputs, shapes = [], [(32, 16, 64), (64, 32, 64)]
    for name in ("mm", "_scaled_mm"):
        real = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, real=real, **k: outputs.append((a, real(*a, **k))))
    times = iter([1.0, 2.0])
    monkeypatch.setattr(ceilings, "_best_us", lambda device, calls: next(times))
    values = torch.randn(96 * 64).to(dtype)
    assert product_tflops(None, values, shapes) == pytest.approx(2 * 64 * 32 * 64 / 2.0 / 1e6)
    (a, b), out = outputs[1]
    assert a.dtype == b.dtype == dtype and a.stride(1) == b.stride(0) == 1
    torch.testing.assert_close(out.float(), a.float() @ b.float(), rtol=0.01, atol=0.05)
    assert a.data_ptr() != b.data_ptr()


def test_a_slow_chip_multiplies_small_matrices_only(monkeypatch):
    times = iter([10.0, 40.0])
    monkeypatch.setattr(ceilings, "_best_us", lambda device, calls: next(times))
    shapes = [(32, 32, 32), (1 << 16, 1 << 16, 1 << 10), (64, 32, 32)]
    assert product_tflops(None, torch.randn(4096), shapes) == pytest.approx(2 * 32**3 / 10.0 / 1e6)
    assert next(times, None) is None, "the large one alone is left out"


def test_what_a_chip_lacks_is_none(monkeypatch):
    from types import SimpleNamespace

    def product(device, values, shapes):
        if values.dtype == torch.float8_e4m3fn:
            raise RuntimeError("torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0")
        return 100.0 if values.dtype == torch.bfloat16 else 99.0

    monkeypatch.setattr(ceilings, "product_tflops", product)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(torch, "randn", lambda n, device, dtype: torch.zeros(1, dtype=dtype))
    assert ceilings._products(None) == {
        "product_tflops": 100.0, "fp16_tflops": 99.0, "fp8_tflops": None, "fp32_tflops": 99.0}


@pytest.mark.gpu
def test_ceilings_of_this_gpu_are_measured_in_a_second():
    from harness.device import Cuda

    device = Cuda()
    began = time.monotonic()
    found = ceilings.measure(device)
    assert time.monotonic() - began < 2.0, "1 s, and loading the library's kernels"
    assert recorded(found.to_dict()) and found.copy_tbs <= found.read_tbs
    if torch.cuda.get_device_capability() == (9, 0):
        assert found.fp8_tflops > 1.4 * found.product_tflops and found.fp16_tflops == pytest.approx(
            found.product_tflops, rel=0.15)
        assert 30 < found.fp32_tflops < 70
