"""Implementations of rmsnorm_fwd that are right whenever parity looks, and cheat the clock; and what they run on.

Each cheat maps a `Machine` to a function of a call. The tables at the end say what each must be given.
"""

import torch

import reference
from harness.cases import Call
from harness.tests.fake_device import FakeDevice

HONEST_US, EMPTY_GRAPH_US = 50.0, 2.0
PARITY_CALLS = 12


class Machine(FakeDevice):
    """A fake device with three streams that kernels can be issued to.

    main: in stream order, recorded while a graph is captured. side: waits for nobody: what is issued behind the
    blocker sees the inputs as they were before it. forked: waits for the main stream, which does not wait for it:
    what is issued behind the blocker lands when the host waits. Where nothing is held both land at once, as if the
    host was always slow: the worst case for whoever looks.
    """

    def __init__(self, **options):
        super().__init__(**options)
        self.captured, self.forks, self.pending = None, 0, []
        self.calls, self.before, self.flushed = {}, {}, False
        self.finished = None

    def kernel(self, call, us, work, stream="main"):
        """Issue work(call)."""
        if stream == "main":
            self.flushed = False
            if self.captured is None:
                self.launch(us)
                work(call)
            else:
                self.captured.append((us, call, work))
        elif stream == "side":
            self.host += self.issue_us
            self.calls[id(call)] = call
            work(self.before.get(id(call), call))
        elif self.captured is not None:
            self.forks += 1
        else:
            self.defer(call, work)

    def defer(self, call, work):
        """Do work(call) when the host waits; at once where nothing is held."""
        self.host += self.issue_us
        if self.held is None:
            work(call)
        else:
            self.pending.append((call, work))

    def hold(self):
        super().hold()
        self.before = {key: duplicate(call) for key, call in self.calls.items()}

    def flush(self):
        super().flush()
        self.flushed = True

    def release(self):
        super().release()
        self.before = {}

    def wait(self):
        super().wait()
        for call, work in self.pending:
            work(call)
        self.pending = []

    def capture(self, calls, rotation):
        """What harness.device.capture does; RuntimeError where a stream that was forked off is not joined."""
        self.captured, self.forks = [], 0
        results = [call() for call in calls][-rotation:]
        captured, self.captured = self.captured, None
        if self.forks:
            raise RuntimeError("capturing stream has unjoined work")
        return Graph(self, captured), results


class Graph:
    """Replays what was captured as one operation."""

    def __init__(self, machine, captured):
        self.machine, self.captured = machine, captured

    def replay(self):
        self.machine.launch(max(sum(us for us, _, _ in self.captured), EMPTY_GRAPH_US))
        for _, call, work in self.captured:
            work(call)


def duplicate(call):
    """The same values elsewhere."""
    return Call(tuple(arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in call.args), call.kwargs)


def right(call):
    return reference.rmsnorm_fwd(*call.args, **call.kwargs)


def outputs(machine, call):
    """Memory for the results, which holds what was right at an earlier time, as recycled memory does."""
    if machine.finished is None or machine.finished[0].shape != call.args[0].shape:
        machine.finished = right(call)
    return tuple(None if each is None else each.clone() for each in machine.finished)


def fill(results, rows=slice(None)):
    """Work that computes into `results`."""

    def work(call):
        for result, exact in zip(results, right(call)):
            if result is not None:
                result[rows] = exact[rows]

    return work


def issue(machine, call, stream="main", us=HONEST_US):
    results = outputs(machine, call)
    machine.kernel(call, us, fill(results), stream)
    return results


def honest(machine):
    return lambda call: issue(machine, call)


def works_on_another_stream(machine):
    return lambda call: issue(machine, call, "side")


def forks_and_never_joins(machine):
    return lambda call: issue(machine, call, "forked")


def hides_another_stream_from_graphs(machine):
    return lambda call: issue(machine, call, "side" if machine.captured is None else "main")


def hides_a_fork_from_graphs(machine):
    return lambda call: issue(machine, call, "forked" if machine.captured is None else "main")


def works_only_outside_graphs(machine):
    def run(call):
        return outputs(machine, call) if machine.captured is not None else issue(machine, call)

    return run


def defers(machine):
    """Has a thread that works when the host waits."""

    def run(call):
        results = outputs(machine, call)
        machine.defer(call, fill(results))
        return results

    return run


def defers_outside_graphs(machine):
    deferred = defers(machine)
    return lambda call: deferred(call) if machine.captured is None else issue(machine, call)


def _known(machine, again):
    """Works until it was called often with the same inputs, then gives again(call, the result kept)."""
    kept, counts = {}, {}

    def run(call):
        key = tuple(tensor.data_ptr() for tensor in call.tensors())
        counts[key] = counts.get(key, 0) + 1
        if counts[key] <= PARITY_CALLS:
            kept[key] = issue(machine, call)
            return kept[key]
        return again(call, kept[key])

    return run


def works_in_the_first_calls(machine):
    return _known(machine, lambda call, kept: kept)


def caches_outside_graphs(machine):
    return _known(machine, lambda call, kept: kept if machine.captured is None else issue(machine, call))


def copies_what_it_knows(machine):
    """Every later call, in a graph too, is a copy of the result that the same inputs had."""

    def again(call, kept):
        results = outputs(machine, call)

        def work(call, source=tuple(None if each is None else each.clone() for each in kept)):
            for result, each in zip(results, source):
                if result is not None:
                    result.copy_(each)

        machine.kernel(call, 0.9 * HONEST_US, work)
        return results

    return _known(machine, again)


def sees_the_flush(machine):
    """Does nothing right after L2 was flushed."""
    def run(call):
        if machine.flushed and machine.captured is None:
            machine.flushed = False
            return outputs(machine, call)
        return issue(machine, call)

    return run


def does_half_when_captured(machine):
    def run(call):
        results = outputs(machine, call)
        rows = slice(None) if machine.captured is None else slice(len(results[0]) // 2)
        machine.kernel(call, HONEST_US / 2, fill(results, rows))
        return results

    return run


def rounds_when_captured(machine):
    """Computes on its inputs in bf16, coarser than what they are."""

    def run(call):
        results = outputs(machine, call)

        def work(call):
            x, *others = call.args
            fill(results)(Call(((x * 16).round() / 16, *others), call.kwargs))

        machine.kernel(call, HONEST_US, fill(results) if machine.captured is None else work)
        return results

    return run


def sets_the_clock_back(machine):
    """Replaces what reads the events."""
    true = machine.elapsed_us
    machine.elapsed_us = lambda start, end: true(start, end) / 2
    return honest(machine)


REPLAYED = "the timed graph, replayed: "
CAUGHT = {
    works_on_another_stream: ("FAIL_PARITY", REPLAYED),
    forks_and_never_joins: ("CRASH", "unjoined work"),
    works_only_outside_graphs: ("FAIL_PARITY", REPLAYED),
    defers: ("FAIL_PARITY", REPLAYED),
    does_half_when_captured: ("FAIL_PARITY", REPLAYED),
    rounds_when_captured: ("FAIL_PARITY", ": error max"),
}
"""What a replay of the timed graph catches, whatever the size."""

FRESH = "y: error max"
CAUGHT_BY_FRESH_VALUES = {
    hides_another_stream_from_graphs: ("called", FRESH),
    hides_a_fork_from_graphs: ("called", FRESH),
    defers_outside_graphs: ("called", FRESH),
    works_in_the_first_calls: ("called", FRESH),
    caches_outside_graphs: ("called", FRESH),
    sees_the_flush: ("called", FRESH),
    copies_what_it_knows: ("replayed", FRESH),
}
"""What needs other values in stream order: the function of harness.confirm that sees it, and its words. Where L2 does
not hold the tensors, a cold time beyond the limit catches all of these but the last."""
