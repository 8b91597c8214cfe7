"""The GPU backend on a device of virtual time: columns, rotation, doubts and failures of implementations."""

from dataclasses import replace

import pytest
import torch

import reference
from harness import backend_gpu
from harness.backend_gpu import Gpu
from harness.cases import Case, Work, family_of
from harness.ceilings import Ceilings
from harness.options import Profile
from harness.subject import Subject
from harness.tests.fake_device import NOMINAL_MHZ, FakeDevice, FakeGraph

CASE = Case("rmsnorm_fwd", (64, 256))
WORK = family_of(CASE.function).work(CASE)


class FakeTelemetry:
    def __init__(self, index):
        self.index = index

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def state(self):
        return {"sm_mhz": 1980, "power_w": None}


@pytest.fixture
def gpu(monkeypatch):
    """A backend whose limit is 40 µs for CASE, all of whose calls take what `launch` is told."""
    backend = Gpu.__new__(Gpu)
    backend.index = 0
    backend.limits, backend.gpu, backend.device = (
        Profile("smoke", 0.1, 0.0, 1, ()),
        "fake",
        FakeDevice(issue_us=10),
    )
    rate = WORK.bytes / 40 / 1e6
    backend.ceilings = Ceilings(rate, rate, rate, 1e9, 0.5)

    def capture(calls, rotation):
        graph = FakeGraph(backend.device, calls, rotation)
        return graph, graph.results

    monkeypatch.setattr(backend_gpu.device, "capture", capture)
    monkeypatch.setattr(backend_gpu, "Telemetry", FakeTelemetry)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return backend


def runs(backend, us, work=lambda call: reference.rmsnorm_fwd(*call.args, **call.kwargs)):
    def run(call):
        backend.device.launch(us)
        return work(call)

    return run


def measure(backend, **functions):
    call = family_of(CASE.function).make(CASE, "cpu", 0)
    subjects = [(Subject(CASE, name), run) for name, run in functions.items()]
    backend.time(CASE, call, subjects)
    return {subject.name: subject for subject, _ in subjects}


def test_columns_are_what_the_function_takes(gpu):
    found = measure(gpu, reference=runs(gpu, 400.0), optimized=runs(gpu, 50.0))
    ours = found["optimized"]
    assert (ours.status, ours.reason) == ("OK", "")
    assert [ours.fields[name]["median"] for name in ("graph_us", "cold_us", "warm_us")] == [50.0, 50.0, 50.0]
    assert ours.fields["graph_us"]["n"] >= 10 and ours.fields["cold_us"]["n"] >= 30
    assert ours.fields["host_us"] == pytest.approx(10.0)
    assert ours.fields["percent_of_limit"] == pytest.approx(80.0)
    assert found["reference"].fields["graph_us"]["median"] == 400.0


def test_inputs_rotate_through_three_times_l2(gpu):
    ours = measure(gpu, optimized=runs(gpu, 50.0))["optimized"]
    inputs = ours.fields["rotation"]["inputs"]
    assert (inputs - 1) * WORK.bytes < 3 * gpu.device.l2_bytes <= inputs * WORK.bytes
    assert ours.fields["rotation"]["calls"] >= 64


def test_slow_function_gets_a_small_graph(gpu):
    slow = measure(gpu, reference=runs(gpu, 30_000.0))["reference"]
    assert slow.fields["rotation"]["calls"] == slow.fields["rotation"]["inputs"]
    assert slow.fields["graph_us"]["median"] == 30_000.0


def test_faster_than_the_limit_is_not_believed(gpu):
    gpu.device.l2_bytes = WORK.bytes // 2
    quick = measure(gpu, optimized=runs(gpu, 30.0))["optimized"]
    assert quick.status == "INVALID" and "limit" in quick.reason


def test_faster_than_the_limit_is_believed_of_what_fits_in_l2(gpu):
    gpu.device.l2_bytes = WORK.bytes * 2
    assert measure(gpu, optimized=runs(gpu, 30.0))["optimized"].status == "OK"


def test_graph_that_repeats_another_result_fails(gpu):
    count = iter(range(10**6))

    def drifts(call):
        y, mu, rsigma = reference.rmsnorm_fwd(*call.args, **call.kwargs)
        return y + next(count), mu, rsigma

    found = measure(gpu, optimized=runs(gpu, 50.0, drifts))["optimized"]
    assert found.status == "FAIL_PARITY" and "replayed" in found.reason


def test_exception_costs_its_own_subject(gpu):
    def crash(call):
        raise RuntimeError("launch failed")

    found = measure(gpu, reference=runs(gpu, 400.0), optimized=crash)
    assert found["optimized"].status == "CRASH" and found["optimized"].reason == "RuntimeError: launch failed"
    assert found["reference"].status == "OK" and found["reference"].fields["graph_us"]


def test_noise_is_remarked(gpu):
    import random

    draw = random.Random(0)
    found = measure(gpu, optimized=lambda call: runs(gpu, draw.choice([50.0, 500.0]))(call))["optimized"]
    assert found.status == "NOISY" and found.fields["cold_us"]["n"] >= 30


def test_host_that_starves_the_gpu_is_remarked(gpu):
    gpu.device.issue_us = 60_000.0
    assert measure(gpu, optimized=runs(gpu, 50.0))["optimized"].status == "HOST_BOUND"


def test_function_shorter_than_its_host_cost_is_flagged_and_keeps_its_verdict(gpu):
    gpu.device.l2_bytes = 2 * WORK.bytes
    gpu.device.issue_us = 30.0
    found = measure(gpu, reference=runs(gpu, 400.0), optimized=runs(gpu, 40.0))
    assert [found[name].fields["host_bound"] for name in ("reference", "optimized")] == [False, True]
    assert found["optimized"].status == "OK"


def test_short_function_has_several_calls_in_a_warm_sample(gpu):
    gpu.device.l2_bytes = 2 * WORK.bytes
    ours = measure(gpu, optimized=runs(gpu, 3.1))["optimized"]
    assert ours.fields["warm_us"]["median"] == pytest.approx(3.1, rel=0.01)
    assert ours.fields["cold_us"]["median"] == pytest.approx(3.1, abs=gpu.device.tick_us)


def test_replicates_are_pooled_and_kept_apart(gpu):
    gpu.limits = replace(gpu.limits, replicates=5)
    found = measure(gpu, reference=runs(gpu, 400.0), optimized=runs(gpu, 50.0))
    ours = found["optimized"]
    assert ours.fields["replicates"] == {name: [50.0] * 5 for name in ("graph_us", "cold_us", "warm_us")}
    assert {name: len(samples) for name, samples in ours.samples.items()} == {
        name: ours.fields[name]["n"] for name in ours.samples
    }
    assert ours.fields["cold_us"]["n"] >= 30 and ours.fields["graph_us"]["n"] >= 10
    assert ours.fields["gpu_state"] == {"sm_mhz": 1980, "power_w": None}


def test_replicates_begin_with_the_one_that_the_last_has_ended_with(gpu, monkeypatch):
    gpu.limits, orders, replicate = replace(gpu.limits, replicates=3), [], gpu._replicate
    monkeypatch.setattr(gpu, "_replicate", lambda timed, pace: (
        orders.append([one.subject.name for one in timed]), replicate(timed, pace)))
    measure(gpu, reference=runs(gpu, 400.0), optimized=runs(gpu, 50.0))
    assert orders == [["reference", "optimized"], ["optimized", "reference"], ["reference", "optimized"]]


def test_process_is_warmed_up_by_reading_for_as_long_as_the_profile_says(gpu):
    gpu._warm_up(0.3)
    assert 0.3 <= gpu.device.now() < 0.302 and gpu.device.flushes > 9000
    assert gpu.device.deepest <= 20


def test_throttled_gpu_is_remarked(gpu):
    for _ in range(50):
        gpu.device.clock.throttled(NOMINAL_MHZ)
    gpu.device.mhz = lambda us: 0.7 * NOMINAL_MHZ
    found = measure(gpu, optimized=runs(gpu, 50.0))["optimized"]
    assert found.status == "THROTTLED" and "SM clock" in found.reason
    assert found.fields["cold_us"]["median"] == pytest.approx(50.0 / 0.7, rel=0.01)


def test_failure_in_a_later_replicate_costs_its_own_subject(gpu):
    gpu.limits = replace(gpu.limits, replicates=3)
    calls = iter(range(10**9))

    def fails_late(call):
        if next(calls) > 500:
            raise RuntimeError("launch failed")
        return runs(gpu, 50.0)(call)

    found = measure(gpu, reference=runs(gpu, 400.0), optimized=fails_late)
    assert found["optimized"].status == "CRASH" and found["reference"].status == "OK"
    assert "replicates" not in found["optimized"].fields
    assert len(found["reference"].fields["replicates"]["graph_us"]) == 3


def test_copy_is_measured_against_its_own_work_and_has_no_result_to_check(gpu):
    gpu.ceilings = Ceilings(1.0, 1.0, 0.5, 1e9, 0.5)
    copy = measure(gpu, copy=runs(gpu, 50.0, lambda call: (torch.zeros(1),)))["copy"]
    half = WORK.bytes // 2
    assert copy.status == "OK"
    assert copy.fields["percent_of_limit"] == pytest.approx(gpu.ceilings.percent(Work(half, half, 0), 50.0))


def test_limit_is_the_slower_of_bytes_and_products():
    ceilings = Ceilings(4.0, 4.0, 2.0, 500.0, 0.5)
    assert ceilings.limit_us(Work(4_000_000, 2_000_000, 0)) == pytest.approx(2.0)
    assert ceilings.limit_us(Work(4, 2, 5_000_000_000)) == pytest.approx(10.0)
    assert ceilings.percent(Work(4_000_000, 2_000_000, 0), 4.0) == pytest.approx(50.0)
