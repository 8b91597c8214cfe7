"""A worker process: builds a server, says hello, then answers one request after the other.

It talks through a socket of its own, so that nothing that is printed in it gets in between. Messages are pickles behind
their length: the first request is the function that makes the server, the others go to `server.run`. Answers are
("hello", …), ("stage", name, stage) when a step begins, ("result", …) and ("done",). A worker whose parent is gone
ends, with all processes that it started.
"""

import ctypes
import os
import pickle
import queue
import signal
import socket
import struct
import sys
import threading
import traceback
from typing import Any, BinaryIO

HEADER = struct.Struct("<Q")
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


def frame(message: Any) -> bytes:
    """A message as it goes through the socket."""
    body = pickle.dumps(message)
    return HEADER.pack(len(body)) + body


def main(descriptor: int, parent: int) -> None:
    """Serve the socket `descriptor` for the process `parent`, until that closes it. Does not return."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to answer
    _end_with(parent)
    os.set_inheritable(descriptor, False)  # its end must be seen when this process ends, not a later one
    channel, requests = socket.socket(fileno=descriptor), queue.SimpleQueue()
    threading.Thread(target=_listen, args=(channel.makefile("rb"), requests), daemon=True).start()

    def send(*message: Any) -> None:
        channel.sendall(frame(message))

    try:
        server = pickle.loads(requests.get())()
        send("hello", server.hello())
        while True:
            request = pickle.loads(requests.get())
            for result in server.run(request, lambda *step: send("stage", *step)):
                send("result", result)
            send("done")
    except BaseException:  # noqa: BLE001 - told, and then the end, without the destructors of a lost device
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _listen(stream: BinaryIO, requests: queue.SimpleQueue) -> None:
    """Queue the bytes of every request; at the end of the stream, end this process and those that it started."""
    while len(head := stream.read(HEADER.size)) == HEADER.size:
        requests.put(stream.read(*HEADER.unpack(head)))
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _end_with(parent: int) -> None:
    """Let the system kill this process with its parent: a call that hangs may keep every thread from noticing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
