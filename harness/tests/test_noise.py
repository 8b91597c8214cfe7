"""The A/A noise: its statistics on numbers whose answer is known, and the engine's own on a device of virtual time."""

import math
import random
from dataclasses import replace

import pytest

from harness import noise
from harness.implementations import Implementation
from harness.noise import Noise, case_of, spread
from harness.tests.fake_device import NOMINAL_MHZ
from harness.tests.test_backend_gpu import gpu, runs  # noqa: F401 - `gpu` is a fixture

SIGMA = 0.01


def test_equal_medians_have_no_noise():
    assert spread([10.0] * 5, [10.0] * 5) == {
        "time_us": 10.0, "noise_percent": 0.0, "bias_percent": 0.0, "largest_percent": 0.0,
    }


def test_spread_is_the_textbook_interval():
    logs = [0.01, -0.01, 0.02, -0.02, 0.0]
    found = spread([100 * math.exp(each) for each in logs], [100.0] * 5)
    deviation = math.sqrt(sum(each**2 for each in logs) / 4)
    assert found["noise_percent"] == pytest.approx(100 * 2.776 * deviation / math.sqrt(5))
    assert found["bias_percent"] == pytest.approx(0.0, abs=1e-9)
    assert found["largest_percent"] == pytest.approx(2.0)


def test_a_difference_that_is_always_there_is_bias_and_no_noise():
    found = spread([102.0] * 5, [100.0] * 5)
    assert found["bias_percent"] == pytest.approx(100 * math.log(1.02))
    assert found["noise_percent"] == pytest.approx(0.0, abs=1e-9)


def test_a_and_b_change_places_without_changing_the_noise():
    a, b = [10.0, 10.2, 9.9, 10.1, 10.3], [10.1, 10.0, 10.2, 9.8, 10.0]
    one, other = spread(a, b), spread(b, a)
    assert one["noise_percent"] == pytest.approx(other["noise_percent"])
    assert one["bias_percent"] == pytest.approx(-other["bias_percent"])
    assert one["largest_percent"] == pytest.approx(other["largest_percent"])


def test_the_interval_covers_no_difference_nineteen_times_of_twenty():
    draw = random.Random(0)

    def covers():
        a, b = ([100 * math.exp(draw.gauss(0, SIGMA)) for _ in range(5)] for _ in "ab")
        found = spread(a, b)
        return abs(found["bias_percent"]) <= found["noise_percent"]

    assert sum(covers() for _ in range(2000)) / 2000 == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0]), ([1.0, 2.0], [1.0, 2.0, 3.0])])
def test_too_few_or_unpaired_replicates_are_an_error(a, b):
    with pytest.raises(ValueError):
        spread(a, b)


def test_classes_take_what_their_names_say():
    for class_us in noise.CLASSES_US[1:]:
        case = case_of(class_us, copy_tbs=4.1)
        moved = noise.BYTES * case.rows * case.hidden / 4.1e6
        assert noise.LEAST_US + moved == pytest.approx(class_us, rel=0.01)
    assert case_of(2, 4.1).rows == noise.LEAST_ROWS


@pytest.mark.parametrize(("class_us", "percent", "bias", "bearable"), [
    (2, 2.9, 0.0, True), (10, 3.1, 0.0, False), (50, 0.9, 0.0, True), (50, 1.1, 0.0, False), (250, None, None, False),
    (50, 0.5, 0.4, True), (50, 0.5, 0.6, False), (50, 0.0, -1.1, False),
])
def test_what_is_bearable(class_us, percent, bias, bearable):
    """A difference that every replicate has is one, too, though the interval around it is narrow."""
    assert Noise(class_us, "16x4096", "OK", "", noise_percent=percent, bias_percent=bias).bearable == bearable


class Backend:
    """Gives every subject of a pair the medians that `replicates` draws; may fail, or doubt one of them."""

    name = "cpu"

    def __init__(self, replicates, status="OK"):
        from harness.tests.synthetic import H200

        self.ceilings, self.replicates, self.status, self.asked = H200, replicates, status, []

    def alive(self):
        return True

    def time(self, case, call, runs):
        self.asked.append((case, [subject.name for subject, _ in runs]))
        assert len({id(run) for _, run in runs}) == 1, "one kernel, not two"
        for subject, run in runs:
            subject.fields["replicates"] = {"graph_us": self.replicates(), "cold_us": []}
        if self.status == "CRASH":
            raise RuntimeError("launch failed")
        runs[-1][0].remark(self.status, "because") if self.status != "OK" else None


@pytest.fixture
def small(monkeypatch):
    """Two classes of a few rows, on a CPU, by the reference."""
    monkeypatch.setattr(noise, "CLASSES_US", (2, 50))
    monkeypatch.setattr(noise, "HIDDEN", 64)
    monkeypatch.setattr(noise, "case_of", lambda class_us, _: case_of(class_us, 1e-4))
    monkeypatch.setitem(noise.IMPLEMENTATIONS, "optimized", noise.IMPLEMENTATIONS["reference"])


def test_each_class_is_one_kernel_measured_as_two(small):
    draw = random.Random(1)
    backend = Backend(lambda: [50 * math.exp(draw.gauss(0, SIGMA)) for _ in range(5)])
    found = noise.measure(backend)
    assert [each.class_us for each in found] == [2, 50]
    assert [names for _, names in backend.asked] == [["optimized", "optimized"]] * 2
    assert all(0.2 < each.noise_percent < 5 and each.status == "OK" for each in found)


def test_a_doubt_is_kept_beside_the_figures(small):
    found = noise.measure(Backend(lambda: [50.0] * 5, "THROTTLED"))
    assert {(each.status, each.reason, each.noise_percent) for each in found} == {("THROTTLED", "because", 0.0)}


def test_a_failure_has_a_reason_and_no_figures(small):
    found = noise.measure(Backend(lambda: [50.0] * 5, "CRASH"))
    assert {(each.status, each.reason, each.noise_percent) for each in found} == {
        ("CRASH", "RuntimeError: launch failed", None)}


def test_the_engine_itself_gives_the_medians(small, gpu, monkeypatch):
    """On a device whose clock drifts by 5 % and whose calls jitter by 1 %: the drift falls on both alike."""
    draw = random.Random(2)
    gpu.name, gpu.limits = "cpu", replace(gpu.limits, replicates=5)
    gpu.ceilings = replace(gpu.ceilings, read_tbs=1e6, write_tbs=1e6)
    gpu.device.mhz = lambda us: NOMINAL_MHZ * (1 + 0.05 * math.sin(us / 2e6))
    run = runs(gpu, 50.0)

    def jittered(call):
        gpu.device.launch(abs(draw.gauss(0, 0.5)))
        return run(call)

    prepared = Implementation("optimized", lambda: None, lambda case, call: jittered)
    monkeypatch.setitem(noise.IMPLEMENTATIONS, "optimized", prepared)
    for each in noise.measure(gpu):
        assert each.status in ("OK", "NOISY"), each.reason
        assert each.time_us == pytest.approx(50, rel=0.06)
        assert 0 < each.noise_percent < 1.0 and abs(each.bias_percent) < 1.0
