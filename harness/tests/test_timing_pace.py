"""How meters that are compared take turns on a GPU that was throttled."""

from harness import timing
from harness.tests.fake_device import FakeDevice
from harness.tests.test_timing import meter, slow_between


def turns(device, pace):
    """Whose batches a column of two functions takes, with the rests between them."""
    order = []
    device.rest = lambda seconds: order.append("rest")
    meters = [meter(device, lambda name=name: order.append(name) or 50.0, minimum=100, cap_s=10) for name in "ab"]
    timing.interleave(meters, pace=pace)
    samples = len(meters[0].queue.calls)
    found = []
    while order:
        count = 1 if order[0] == "rest" else samples
        found.append(order[0])
        del order[:count]
    return found


def test_nobody_gets_a_head_start():
    """Once one was throttled the GPU rests before every batch, whoever's it is, in the columns that follow, too."""
    device, pace = FakeDevice(mhz=slow_between(3_000, 6_000, 1200.0)), timing.Pace()
    first, later = turns(device, pace), turns(device, pace)
    slow = first.index("rest")
    assert 0 < slow < len(first) - 2
    for rested in (first[slow:], later):
        assert set(rested[::2]) == {"rest"} and set(rested[1::2]) == {"a", "b"}


def test_a_gpu_that_keeps_its_clock_does_not_rest():
    assert set(turns(FakeDevice(), timing.Pace())) == {"a", "b"}
