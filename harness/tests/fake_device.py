"""A GPU whose clock is a number: what the timing engine and the GPU backend are tested on without one."""

from harness import timing


class FakeDevice:
    """A stream in virtual time. Calls cost `issue_us` to issue; events are rounded to `tick_us`."""

    l2_bytes = 1 << 16

    def __init__(self, issue_us=5.0, tick_us=0.5):
        self.host, self.gpu, self.tick_us, self.issue_us = 0.0, 0.0, tick_us, issue_us
        self.flushes = self.queued = self.deepest = 0

    def now(self):
        return self.host / 1e6

    def launch(self, us, issue_us=None):
        self.host += self.issue_us if issue_us is None else issue_us
        self.gpu = max(self.gpu, self.host) + us
        self.queued += 1
        self.deepest = max(self.deepest, self.queued)

    def hold(self, us):
        self.launch(min(us, timing.HOLD_LIMIT_US))

    def flush(self):
        self.flushes += 1
        self.launch(31.0)

    def mark(self):
        self.host += 1.0
        return max(self.gpu, self.host)

    def passed(self, mark):
        return mark <= self.host

    def elapsed_us(self, start, end):
        ticks = [round(mark / self.tick_us) for mark in (start, end)]
        return (ticks[1] - ticks[0]) * self.tick_us

    def wait(self):
        self.host, self.queued = max(self.host, self.gpu), 0


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
