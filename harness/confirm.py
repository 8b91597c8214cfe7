"""Whether what was timed is what was right: the timed path once more, on values that it has not seen, in stream order.

Behind the blocker the inputs get other values at the same addresses, the path runs, and its results are copied at
once, all of it issued before any of it runs. So nobody is right by an earlier result, by work on another stream (it
reads the inputs before the blocker lets go, or writes after the copy), or by work put off until somebody waits; and a
function that knows when it is timed meets what it met then: L2 flushed, the stream held.
"""

import copy
from collections.abc import Callable
from statistics import median
from typing import Any

from harness import guards, parity
from harness.cases import Call, Case, family_of
from harness.cases.base import tensors_in
from harness.device import STAMP_NS

CLOCK_TOLERANCE, CLOCK_SHORT, CLOCK_SAMPLES = 0.1, 0.04, 5
FRESH_SEED = 1_000_003  # of values that neither parity nor timing used
LINGER_S = 0.005  # that the stream is held once all is issued: another one then has had the time to read old values


def replayed(case: Case, call: Call, device: Any, replay: Callable[[], Any], results: tuple, *, twin=True,
             times: int = 1) -> str:
    """Why `results`, the memory that `replay()` fills, are wrong for other values of `call`, which it makes `times`
    times; "" if right. `twin`: see harness.parity.check."""
    updated = {tensor.data_ptr() for tensor in family_of(case.function).in_place(call).values()}
    new = [each for each in tensors_in(results) if each.data_ptr() not in updated]

    def run() -> tuple:
        guards.poison(new)
        replay()
        return results

    return _judged(case, call, device, run, twin, times)


def called(case: Case, call: Call, device: Any, run: Callable[[Call], tuple], *, twin=True) -> str:
    """Why `run(call)` is wrong for other values of `call` when it runs as a cold sample does; "" if right."""

    def cold() -> tuple:
        device.flush()
        return run(call)

    return _judged(case, call, device, cold, twin)


def clock(device: Any) -> str:
    """Why the device's events are not to be believed; "" if they are: of a kernel that itself counts nanoseconds, they
    must say what it does, less what they say of a launch alone, and never less than it does. Medians of five: an event
    comes late now and then."""
    launches, counts = [], []
    device.wait()
    device.hold()
    try:
        for _ in range(CLOCK_SAMPLES):
            first = device.mark()
            device.nothing()
            second = device.mark()
            device.stamp()
            launches.append((first, second))
            counts.append((second, device.mark()))
    finally:
        device.release()
    device.wait()
    launch, whole = (median(device.elapsed_us(*pair) for pair in pairs) for pairs in (launches, counts))
    found, counted = min(whole, whole - launch), STAMP_NS / 1e3
    if whole >= (1 - CLOCK_SHORT) * counted and abs(whole - launch - counted) <= CLOCK_TOLERANCE * counted:
        return ""
    return f"events say {found:.1f} µs of a kernel that counts {counted:.1f} µs"


def _judged(case: Case, call: Call, device: Any, run: Callable[[], tuple], twin: bool, times: int = 1) -> str:
    device.wait()  # what a function left running elsewhere may write to memory that is free by now
    family = family_of(case.function)
    fresh = family.make(case, call.tensors()[0].device, FRESH_SEED)
    before = family.in_place(fresh)
    device.wait()
    device.hold()
    try:
        guards.refill(call, fresh)
        copies = copy.deepcopy(run())  # quantized tensors, too
        device.rest(LINGER_S)
    finally:
        device.release()
    device.wait()
    del fresh
    return parity.after(case, call, copies, before, twin=twin, times=times)
