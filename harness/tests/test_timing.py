"""The timing engine against a device whose clock is a number."""

import math
import random
from math import comb

import pytest

from harness import timing
from harness.tests.fake_device import NOMINAL_MHZ, FakeDevice
from harness.samples import median_interval, settled, speedup, summarize
from harness.timing import Meter, Queue, SmClock, host_us, interleave


@pytest.mark.parametrize(
    ("n", "expected"), [(5, (0, 4)), (6, (0, 5)), (10, (1, 8)), (30, (9, 20)), (100, (39, 60)), (5000, (2430, 2569))]
)
def test_interval_of_the_median_has_the_textbook_ranks(n, expected):
    assert median_interval(n) == expected


@pytest.mark.parametrize("n", [6, 17, 30, 31, 99, 400])
def test_interval_covers_and_is_the_shortest_that_does(n):
    def coverage(low):
        return 1 - 2 * sum(comb(n, k) for k in range(low + 1)) / 2**n

    low, high = median_interval(n)
    assert high == n - 1 - low
    assert coverage(low) >= 0.95 > coverage(low + 1)


def test_summary_of_known_samples():
    found = summarize([float(i) for i in range(1, 102)], dropped=3)
    assert (found.median, found.p20, found.p80, found.min, found.n, found.dropped) == (51, 21, 81, 1, 101, 3)
    assert found.ci_low < 51 < found.ci_high
    assert set(found.to_dict()) == {"median", "p20", "p80", "min", "ci_low", "ci_high", "n", "dropped"}


def test_summary_needs_a_sample():
    with pytest.raises(ValueError, match="no samples"):
        summarize([])


def test_samples_behind_the_blocker_are_the_functions_alone():
    device = FakeDevice()
    samples, dropped = Queue(device, [lambda: device.launch(40.0)] * 20).take()
    assert samples == [40.0] * 20
    assert dropped == 0


def test_flush_lies_outside_the_sample():
    device = FakeDevice()
    samples, _ = Queue(device, [lambda: device.launch(7.0)] * 20, cold=True).take()
    assert device.flushes == 20
    assert samples == [7.0] * 20


def test_batch_that_the_blocker_did_not_outlast_is_dropped_and_halved():
    device = FakeDevice(issue_us=3_000.0)
    queue = Queue(device, [lambda: device.launch(3.0)] * 20)
    samples, dropped = queue.take()
    assert (samples, dropped, queue.starved) == ([3.0] * 10, 20, False)
    assert queue.take() == ([3.0] * 10, 0)


def test_full_launch_queue_is_noticed():
    """The host waits for room, room comes when the blocker's time is up: the samples behind it prove nothing."""
    device = FakeDevice(depth=100)

    def many_kernels():
        for _ in range(20):
            device.launch(2.0)

    samples, dropped = Queue(device, [many_kernels] * 20).take()
    assert dropped and samples and set(samples) == {40.0}


def test_host_that_no_blocker_outlasts_is_reported():
    device = FakeDevice(issue_us=60_000.0)
    queue = Queue(device, [lambda: device.launch(3.0)] * 20)
    samples, dropped = queue.take()
    assert len(samples) == 1 and dropped == 20 + 10 + 5 + 2 and queue.starved


def test_call_that_raises_releases_the_gpu():
    device = FakeDevice()
    with pytest.raises(ZeroDivisionError):
        Queue(device, [lambda: 1 / 0]).take()
    assert device.held is None
    assert Queue(device, [lambda: device.launch(3.0)]).take() == ([3.0], 0)


def slow_between(first_us, last_us, mhz):
    return lambda us: mhz if first_us <= us < last_us else NOMINAL_MHZ


def test_throttled_batches_are_set_apart_and_the_gpu_rests():
    device = FakeDevice(mhz=slow_between(3_000, 6_000, 1200.0))
    one = meter(device, lambda: 50.0, cap_s=10, minimum=100)
    interleave([one])
    assert set(one.samples) == {50.0} and len(one.samples) >= 100
    assert one.slow and min(one.slow) >= 50.0 and max(one.slow) > 50.0
    assert one.timing().dropped == len(one.slow)
    assert one.spent_s > timing.REST_S


def test_few_throttled_samples_are_forgiven_and_many_are_not():
    device = FakeDevice(mhz=slow_between(3_000, 6_000, 1200.0))
    one = meter(device, lambda: 50.0, minimum=600, cap_s=10)
    interleave([one])
    assert one.slow and not timing.throttled([one])
    one.slow *= 5
    assert timing.throttled([one])


def test_gpu_that_never_gets_its_clock_back_ends_by_the_cap():
    device = FakeDevice()
    for _ in range(100):
        device.clock.throttled(NOMINAL_MHZ)
    device.mhz = lambda us: 900.0
    one = meter(device, lambda: 50.0)
    interleave([one])
    assert not one.samples and timing.throttled([one])
    assert one.timing().median == pytest.approx(110.0) and one.timing().n == len(one.slow)


def test_steady_lower_clock_is_the_sessions_own():
    clock = SmClock()
    assert not any(clock.throttled(1500.0) for _ in range(10))
    assert clock.throttled(1300.0) and not clock.throttled(1400.0) and not clock.throttled(None)


def test_speedup_is_that_of_each_replicate():
    drift = [1.0, 1.3, 0.8, 1.1, 0.9]
    found = speedup([400 * d for d in drift], [100 * d for d in drift])
    assert all(found[name] == pytest.approx(4.0) for name in ("median", "ci_low", "ci_high"))
    assert speedup([30.0], [10.0]) == {"median": pytest.approx(3.0), "ci_low": None, "ci_high": None}
    with pytest.raises(ValueError):
        speedup([1.0], [1.0, 2.0])


def test_interval_of_the_speedup_covers_as_often_as_it_says():
    draw, covered = random.Random(1), 0
    for _ in range(400):
        theirs, ours = ([us * math.exp(draw.gauss(0, 0.02)) for _ in range(5)] for us in (300.0, 100.0))
        found = speedup(theirs, ours)
        covered += found["ci_low"] <= 3.0 <= found["ci_high"]
    assert 0.92 <= covered / 400 <= 0.98


def test_queue_never_fills():
    device = FakeDevice()

    def many_kernels():
        for _ in range(20):
            device.launch(2.0)

    Queue(device, [many_kernels] * 20, cold=True).take()
    host_us(device, many_kernels)
    assert device.deepest <= 500


def meter(device, draw, **keywords):
    return Meter(Queue(device, [lambda: device.launch(draw())] * 20), **keywords)


def test_steady_function_stops_at_the_least_number_of_samples():
    device = FakeDevice()
    one = meter(device, lambda: 50.0)
    interleave([one])
    assert one.settled and len(one.samples) == 40


def test_noise_is_measured_until_the_median_is_known():
    device, draw = FakeDevice(tick_us=0.001), random.Random(0)
    one = meter(device, lambda: draw.gauss(100, 3), cap_s=10)
    interleave([one])
    found = one.timing()
    assert found.n > 100
    assert (found.ci_high - found.ci_low) / 2 <= 0.005 * found.median


def test_hopeless_noise_stops_at_the_cap():
    device, draw = FakeDevice(tick_us=0.001), random.Random(0)
    one = meter(device, lambda: draw.uniform(10, 1000), cap_s=0.05)
    interleave([one])
    assert not one.settled and one.done
    assert 0.05 <= one.spent_s < 0.1


def test_cap_never_cuts_the_least_number_of_samples():
    device, draw = FakeDevice(), random.Random(0)
    one = meter(device, lambda: draw.uniform(10, 1000), cap_s=0.0)
    interleave([one])
    assert len(one.samples) >= 30


def test_precision_stops_at_half_an_event_tick():
    assert settled(summarize([2.0] * 15 + [2.5] * 15), tick_us=0.5)
    assert not settled(summarize([2.0] * 15 + [2.5] * 15), tick_us=0.032)


def test_graph_samples_are_divided_and_so_is_the_tick():
    device = FakeDevice()
    one = Meter(Queue(device, [lambda: device.launch(640.0)] * 10), minimum=10, calls_per_sample=64)
    interleave([one])
    assert one.timing().median == 10.0
    assert one.timing().n == 10


def test_implementations_take_turns_there_and_back():
    device, order = FakeDevice(), []

    def named(name):
        return meter(device, lambda: order.append(name) or 50.0)

    interleave([named("a"), named("b")])
    assert [name for name, previous in zip(order, [None, *order]) if name != previous] == ["a", "b", "a"]


def test_failing_meter_is_left_out():
    class Swallow:
        def __enter__(self):
            return self

        def __exit__(self, kind, error, trace):
            return True

    device = FakeDevice()
    broken = meter(device, lambda: 1 / 0)
    fine = meter(device, lambda: 50.0)
    interleave([broken, fine], guard=lambda _: Swallow())
    assert fine.done and not broken.samples


def test_host_cost_is_that_of_issuing_alone():
    device = FakeDevice(issue_us=12.0)
    assert host_us(device, lambda: device.launch(5_000.0)) == pytest.approx(12.0)


def test_short_functions_are_called_back_to_back():
    from harness.device import QUEUED, back_to_back

    assert [back_to_back(us) for us in (1.0, 2.0, 10.0, 19.9, 20.0, 400.0)] == [100, 50, 10, 5, 1, 1]
    assert back_to_back(0.0) <= QUEUED


def test_budget_of_a_row_is_split_over_its_replicates():
    from harness.device import Budget

    assert [Budget(0.1, n).least(30) for n in (1, 5, 10, 7)] == [30, 6, 3, 5]


def test_graph_holds_a_multiple_of_the_rotation_and_few_slow_calls():
    from harness.device import graph_calls

    assert graph_calls(10.0, 1) == 64
    assert graph_calls(10.0, 11) == 66
    assert graph_calls(1_500.0, 1) == 3
    assert graph_calls(1_500.0, 2) == 4
    assert graph_calls(1e9, 2) == 2


@pytest.mark.parametrize("layout", ["contiguous", "strided", "offset", "expanded", "transposed"])
def test_rotating_inputs_have_the_same_values_strides_and_alignment_elsewhere(layout):
    import torch

    from harness import rotation
    from harness.cases import Case, family_of

    case = Case("rmsnorm_bwd", (4, 24), options=(("layout", layout),))
    call = family_of(case.function).make(case, "cpu", 0)
    inputs = rotation.inputs(call, call_bytes=1000, l2_bytes=1000)
    assert len(inputs) == 3
    for one, other in zip(call.tensors(), inputs[1].tensors()):
        assert torch.equal(one, other)
        assert one.stride() == other.stride() and one.storage_offset() == other.storage_offset()
        assert one.data_ptr() != other.data_ptr()


def test_rotation_is_bounded_for_small_and_single_for_large_calls():
    from harness import rotation
    from harness.cases import Call

    nothing = Call((), {})
    assert len(rotation.inputs(nothing, 4, 60 << 20)) == rotation.MOST
    assert len(rotation.inputs(nothing, 1 << 30, 60 << 20)) == 1
