"""Workers as the parent sees them: start one, let it answer, learn what it was at when it was lost, end it."""

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from typing import Any

from harness.environment import ROOT
from harness.worker import HEADER, frame

START_S = 180.0  # for imports from a slow disk, warm-up and ceilings
END_S = 10.0  # for a killed process to be gone: longer means that it hangs in a driver
WORDS = 300  # characters of what a lost worker had printed last


class WorkerLost(Exception):
    """A worker ended, or gave no sign of life.

    `status` is CRASH or TIMEOUT, `culprit` what it had announced last: a name, "" for what all names share, or None
    where it had announced nothing since the request.
    """

    def __init__(self, status: str, reason: str, culprit: Any = None):
        super().__init__(reason)
        self.status, self.reason, self.culprit = status, reason, culprit


class WorkerProcess:
    """A process of its own group that runs `harness.worker`; `hello` is what its server said first."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._printed, self._socket, self._writer = tempfile.TemporaryFile(), ours, None
        self._step: tuple[Any, str] = (None, "start")
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.worker", str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            )

    @classmethod
    async def start(cls, make: Callable[[], Any], limit_s: float) -> "WorkerProcess":
        """A worker whose server is what `make`, which must be picklable, returns there.

        Raises WorkerLost when it has not said hello within `limit_s`.
        """
        worker = cls()
        try:
            worker._reader, worker._writer = await asyncio.open_connection(sock=worker._socket)
            worker._writer.write(frame(make))
            _, worker.hello = await worker._receive(limit_s)
        except BaseException:
            await worker.stop()
            raise
        return worker

    async def run(self, request: Any, limit_s: float) -> AsyncIterator[Any]:
        """The server's results for a request. Raises WorkerLost when a step takes longer than `limit_s`."""
        self._step = (None, "start")
        self._writer.write(frame(request))
        while (message := await self._receive(limit_s))[0] != "done":
            if message[0] == "stage":
                self._step = message[1:]
            else:
                yield message[1]

    async def stop(self) -> None:
        """End the process, with all that it started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it was gone already
        await self._ended()
        (self._writer or self._socket).close()
        self._printed.close()

    async def _receive(self, limit_s: float) -> tuple:
        try:
            async with asyncio.timeout(limit_s):
                (length,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
                return pickle.loads(await self._reader.readexactly(length))
        except TimeoutError:
            status, reason = "TIMEOUT", f"took longer than {limit_s:g} s"
        except (asyncio.IncompleteReadError, ConnectionError):
            status, reason = "CRASH", _ending(await self._ended())
        culprit, stage = self._step
        words = self._last_words()
        raise WorkerLost(status, f"{stage}: {reason}" + (f"; printed last: {words}" if words else ""), culprit)

    async def _ended(self) -> int | None:
        """The exit code, None where the process is not gone after END_S."""
        deadline = asyncio.get_running_loop().time() + END_S
        while self._process.poll() is None and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        return self._process.returncode

    def _last_words(self) -> str:
        """The end of what the worker printed, as one line."""
        descriptor = self._printed.fileno()
        start = max(0, os.fstat(descriptor).st_size - 4 * WORDS)
        text = os.pread(descriptor, 4 * WORDS, start).decode(errors="replace")
        text = "".join(letter if letter.isprintable() else " " for letter in text.replace("\n", " | "))
        return " ".join(text.split()).strip(" |")[-WORDS:]


def _ending(code: int | None) -> str:
    if code is None:
        return "the worker closed its connection"
    if code >= 0:
        return f"the worker ended with exit code {code}"
    names = {sign.value: sign.name for sign in signal.Signals}
    return f"the worker was killed by {names.get(-code, f'signal {-code}')}"
