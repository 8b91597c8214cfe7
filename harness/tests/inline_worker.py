"""A worker without a process of its own: what it runs can be replaced by a test, and shows its exceptions."""

from harness.workers import WorkerLost


class InlineWorker:
    """Serves in the parent's process; an exception of the server stands for the death of a worker."""

    @classmethod
    async def start(cls, make, limit_s):
        worker = cls()
        try:
            worker.server = make()
            worker.hello = worker.server.hello()
        except Exception as error:
            raise WorkerLost("CRASH", f"start: {error}") from error
        return worker

    async def run(self, request, limit_s):
        steps = [None]
        try:
            for result in self.server.run(request, lambda name, stage: steps.append(name)):
                yield result
        except Exception as error:
            raise WorkerLost("CRASH", str(error), steps[-1]) from error

    async def stop(self):
        pass
