"""A GPU whose clock is a number: what the timing engine and the GPU backend are tested on without one."""

from dataclasses import dataclass

from harness import timing

NOMINAL_MHZ = 1980.0


@dataclass
class Mark:
    """An event; `us` is when the GPU came to it."""

    us: float = 0.0


class FakeDevice:
    """A stream in virtual time, in µs. Calls cost `issue_us` to issue; events are rounded to `tick_us`.

    `mhz(us)` is the SM clock at a moment: what runs at half the nominal one takes twice as long. While the stream is
    held, what is issued waits in `queue`; a full one holds the host until the blocker has ended by its limit.
    """

    l2_bytes = 1 << 16

    def __init__(self, issue_us=5.0, tick_us=0.5, mhz=lambda us: NOMINAL_MHZ, depth=1000):
        self.host, self.gpu, self.tick_us, self.issue_us = 0.0, 0.0, tick_us, issue_us
        self.mhz, self.depth, self.clock = mhz, depth, timing.SmClock()
        self.queue, self.held, self.late, self.stamps = [], None, False, []
        self.flushes = self.queued = self.deepest = 0
        self.broken = ""

    def now(self):
        return self.host / 1e6

    def rest(self, seconds):
        self.host += seconds * 1e6

    def launch(self, us, issue_us=None):
        if self.held is not None and len(self.queue) >= self.depth:
            self._end_hold(self.held + timing.HOLD_LIMIT_US)
        self.host += self.issue_us if issue_us is None else issue_us
        self.queued += 1
        self.deepest = max(self.deepest, self.queued)
        self._issue(us)

    def hold(self):
        self.stamps, self.late = [], False
        self.host += self.issue_us
        self.held = max(self.gpu, self.host)

    def release(self):
        self._end_hold(self.host)

    def overslept(self):
        return self.late

    def stamp(self):
        self._issue("stamp")

    def nothing(self):
        self._issue(0.0)

    def clock_mhz(self):
        return min(self.stamps)

    def flush(self):
        self.flushes += 1
        self.launch(31.0)

    def mark(self):
        self.host += 1.0
        mark = Mark()
        self._issue(mark)
        return mark

    def elapsed_us(self, start, end):
        ticks = [round(mark.us / self.tick_us) for mark in (start, end)]
        return (ticks[1] - ticks[0]) * self.tick_us

    def wait(self):
        if self.broken:
            raise RuntimeError(f"CUDA error: {self.broken}")
        self.host, self.queued = max(self.host, self.gpu), 0

    def _issue(self, work):
        self.queue.append((self.host, work))
        if self.held is None:
            self._drain()

    def _end_hold(self, us):
        if self.held is None:
            return
        limit = self.held + timing.HOLD_LIMIT_US
        self.late = self.late or us >= limit
        self.gpu, self.held = min(us, limit), None
        self.host = max(self.host, self.gpu)
        self.stamps.append(self.mhz(self.gpu))
        self._drain()

    def _drain(self):
        for issued, work in self.queue:
            self.gpu = max(self.gpu, issued)
            if work == "stamp":
                self.stamps.append(self.mhz(self.gpu))
                self.gpu += 50.0
            elif isinstance(work, Mark):
                work.us = self.gpu
            else:
                self.gpu += work * NOMINAL_MHZ / self.mhz(self.gpu)
        self.queue = []


class FakeGraph:
    """What `harness.device.capture` gives: replaying it calls everything again, issued as one operation."""

    def __init__(self, device, calls, rotation):
        self.device, self.calls = device, calls
        self.results = [call() for call in calls][-rotation:]

    def replay(self):
        issue_us, self.device.issue_us = self.device.issue_us, 0.0
        fresh = [call() for call in self.calls][-len(self.results) :]
        self.device.issue_us = issue_us
        for olds, news in zip(self.results, fresh):
            for old, new in zip(olds, news):
                if old is not None:
                    old.copy_(new)
