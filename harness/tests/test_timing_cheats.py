"""Each cheat of timing_cheats.py passes parity, and is caught by what its table says."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from harness import backend_gpu, confirm, device, guards, parity
from harness.cases import Case, family_of
from harness.options import PROFILES
from harness.subject import Subject
from harness.tests import timing_cheats as cheats
from harness.tests.test_backend_gpu import gpu  # noqa: F401 - a fixture

CASE = Case("rmsnorm_fwd", (8, 64))
WORK = family_of(CASE.function).work(CASE)
LIMIT_US = 0.8 * cheats.HONEST_US
EVERY = (*cheats.CAUGHT, *cheats.CAUGHT_BY_FRESH_VALUES, cheats.sets_the_clock_back)


def by_name(cheat):
    return getattr(cheat, "__name__", None)


@pytest.fixture
def backend(gpu, monkeypatch):  # noqa: F811
    """The GPU backend on a machine whose L2 holds the tensors of a call; `honest` reaches 80 % of its limit."""
    rate = WORK.bytes / LIMIT_US / 1e6
    gpu.ceilings = replace(gpu.ceilings, copy_tbs=rate, read_tbs=rate, write_tbs=rate)
    gpu.device = cheats.Machine(issue_us=10)
    gpu.device.l2_bytes = 2 * WORK.bytes
    monkeypatch.setattr(backend_gpu.device, "capture", gpu.device.capture)
    return gpu


def timed(backend, cheat):
    subject = Subject(CASE, "optimized")
    backend.time(CASE, family_of(CASE.function).make(CASE, "cpu", 0), [(subject, cheat(backend.device))])
    return subject


def confirmed(cheat):
    """What harness.confirm says of a function that was called often: (of the call, of the replay)."""
    machine, call = cheats.Machine(issue_us=10), family_of(CASE.function).make(CASE, "cpu", 0)
    run = cheat(machine)
    for _ in range(2 * cheats.PARITY_CALLS):
        run(call)
    graph, results = machine.capture([partial(run, call)] * 3, 1)
    return (confirm.called(CASE, call, machine, run),
            confirm.replayed(CASE, call, machine, graph.replay, results[-1]))


def test_the_honest_are_believed(backend):
    found = timed(backend, cheats.honest)
    assert (found.status, found.reason) == ("OK", "")
    assert found.fields["graph_us"]["median"] == found.fields["cold_us"]["median"] == cheats.HONEST_US
    assert confirmed(cheats.honest) == ("", "")


@pytest.mark.parametrize("cheat", EVERY, ids=by_name)
def test_parity_alone_does_not_see_it(cheat):
    found = parity.check(CASE, cheat(cheats.Machine()), "cpu", adversarial=False)
    assert found.ok, found.reason


@pytest.mark.parametrize("cheat", cheats.CAUGHT, ids=by_name)
def test_the_graph_replayed_shows_it(backend, cheat):
    found = timed(backend, cheat)
    status, words = cheats.CAUGHT[cheat]
    assert found.status == status and words in found.reason


@pytest.mark.parametrize("cheat", cheats.CAUGHT_BY_FRESH_VALUES, ids=by_name)
def test_fresh_values_in_stream_order_show_it(cheat):
    where, words = cheats.CAUGHT_BY_FRESH_VALUES[cheat]
    reason = dict(zip(("called", "replayed"), confirmed(cheat)))[where]
    assert reason.startswith(words)


def test_an_event_that_comes_late_once_is_no_lie():
    machine = cheats.Machine()
    true, late = machine.elapsed_us, iter([5.1, 0.0, 5.1, 0.0, 0.0] * 2)
    machine.elapsed_us = lambda start, end: true(start, end) + next(late)
    assert confirm.clock(machine) == ""


@pytest.mark.parametrize("launch_us", [2.0, 6.0, 12.0])
def test_a_launch_takes_its_time(launch_us):
    machine = cheats.Machine()
    true = machine.elapsed_us
    machine.elapsed_us = lambda start, end: true(start, end) + launch_us
    assert confirm.clock(machine) == ""


@pytest.mark.parametrize("factor", [0.5, 0.8, 0.95, 1.25, 2.0])
def test_a_clock_that_lies_is_found_out(factor):
    machine = cheats.Machine()
    assert confirm.clock(machine) == ""
    true = machine.elapsed_us
    machine.elapsed_us = lambda start, end: factor * true(start, end)
    assert confirm.clock(machine) == f"events say {factor * 50:.1f} µs of a kernel that counts 50.0 µs"


def test_a_clock_that_takes_something_off_is_found_out():
    machine = cheats.Machine()
    true = machine.elapsed_us
    machine.elapsed_us = lambda start, end: true(start, end) - 3.0
    assert confirm.clock(machine) == "events say 47.0 µs of a kernel that counts 50.0 µs"


@pytest.mark.parametrize("cheat", cheats.CAUGHT_BY_FRESH_VALUES, ids=by_name)
def test_the_backend_shows_it(backend, cheat):
    assert timed(backend, cheat).status == "FAIL_PARITY"


def test_the_backend_shows_a_clock_that_was_set_back(backend):
    found = timed(backend, cheats.sets_the_clock_back)
    assert found.status == "INVALID" and "events say" in found.reason


FASTER_THAN_THE_LIMIT = [
    cheat for cheat in (cheats.works_on_another_stream, cheats.sets_the_clock_back, *cheats.CAUGHT_BY_FRESH_VALUES)
    if cheat is not cheats.copies_what_it_knows
]


@pytest.mark.parametrize("cheat", FASTER_THAN_THE_LIMIT, ids=by_name)
def test_faster_than_the_limit_is_not_believed_of_what_l2_does_not_hold(backend, cheat):
    backend.device.l2_bytes = WORK.bytes // 2
    found = timed(backend, cheat)
    assert found.status == "INVALID" and "limit" in found.reason


def on_another_stream(cycles=0, forks=False, joins=False):
    """rmsnorm_fwd on a stream of its own, after as many cycles of sleep. Of another priority: streams of the same one
    may share a queue of the GPU, in which it would wait its turn and be right."""
    stream = torch.cuda.Stream(priority=-1)

    def run(call):
        results = tuple(None if each is None else torch.empty_like(each) for each in cheats.right(call))
        if forks:
            guards.poison(results)
            stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(cycles)
            for result, exact in zip(results, cheats.right(call)):
                if result is not None:
                    result.copy_(exact)
        if joins:
            torch.cuda.current_stream().wait_stream(stream)
        return results

    return run


@pytest.fixture
def cuda():
    """The device, and inputs of the case on it. They are there before another stream writes where their makers were."""
    made = device.Cuda(), family_of(CASE.function).make(CASE, "cuda", 0)
    torch.cuda.synchronize()
    yield made
    torch.cuda.synchronize()


@pytest.mark.gpu
def test_a_gpu_that_is_not_waited_for_fails_parity(cuda):
    assert parity.check(CASE, on_another_stream(forks=True, joins=True), "cuda", adversarial=False).ok
    late = parity.check(CASE, on_another_stream(cycles=100_000_000, forks=True), "cuda", adversarial=False)
    assert not late.ok and late.reason.startswith("y: ")


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"forks": True, "cycles": 200_000}], ids=["side", "forked"])
def test_fresh_values_in_stream_order_show_another_stream_on_a_gpu(cuda, options):
    here, call = cuda
    for run, right in ((cheats.right, True), (on_another_stream(forks=True, joins=True), True),
                       (on_another_stream(**options), False)):
        for _ in range(3):
            run(call)  # what is allocated for the first time may wait
        assert (confirm.called(CASE, call, here, run) == "") == right


@pytest.mark.gpu
def test_fresh_values_show_what_a_graph_remembers(cuda):
    here, call = cuda
    known = cheats.right(call)

    def copy(call):
        return tuple(None if each is None else each.clone() for each in known)

    for run, right in ((cheats.right, True), (copy, False)):
        graph, results = device.capture([partial(run, call)] * 3, 1)
        assert (confirm.replayed(CASE, call, here, graph.replay, results[-1]) == "") == right


@pytest.mark.gpu
def test_the_events_of_a_gpu_are_believed(cuda, monkeypatch):
    here, _ = cuda
    assert confirm.clock(here) == ""
    true = torch.cuda.Event.elapsed_time
    monkeypatch.setattr(torch.cuda.Event, "elapsed_time", lambda start, end: true(start, end) / 2)
    assert "events say" in confirm.clock(here)


@pytest.mark.gpu
def test_another_stream_is_not_timed_on_a_gpu():
    found = Subject(CASE, "optimized")
    call = family_of(CASE.function).make(CASE, "cuda", 0)
    backend_gpu.Gpu(PROFILES["quick"]).time(CASE, call, [(found, on_another_stream())])
    assert found.status in ("FAIL_PARITY", "CRASH")
