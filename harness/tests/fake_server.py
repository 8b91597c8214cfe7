"""A server that misbehaves as told. It needs no PyTorch, so that a worker which runs it starts at once."""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

from harness import rows


def _once(do, marker):
    """Do it the first time only: the marker file tells."""
    if not Path(marker).exists():
        Path(marker).touch()
        do()


def _garbage():
    sys.stdout.buffer.write(b"\x00\xff" * 100_000)
    os.write(1, b"ordinary words\n")


def _talk_and_crash():
    print("a first line\n\nthe last words", flush=True)
    os.abort()


ACTIONS = {
    "ok": lambda: None,
    "hang": lambda: time.sleep(100),
    "hang with the lock": lambda: ctypes.PyDLL(None).sleep(100),  # no other thread of Python runs meanwhile
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "exit": lambda: os._exit(7),
    "abort": _talk_and_crash,
    "garbage": _garbage,
    "nap": lambda: time.sleep(2.5),
    "moment": lambda: time.sleep(0.06),
}


class FakeServer:
    """Runs cases as `told`: implementation -> name of an action, or (name, marker file) of one that is done once.

    "sticky" is an error that makes a row and then costs the process; "raise" one that makes none. "shared" as a key
    is what all implementations have in common, "timing" what is done at the end by the last one. Its process leaves
    its id in the folder `pids`.
    """

    def __init__(self, told=None, pids=None, start="ok", gpu=None, chip=None):
        ACTIONS[start]()
        self.told, self.chip = told or {}, chip
        self.common = {"seed": 0, "environment": "e", "device": "cuda" if gpu else "cpu", "gpu": gpu}
        if pids:
            Path(pids, str(os.getpid())).touch()

    def hello(self):
        return {
            "common": self.common, "environment": {}, "chip": self.chip, "ceilings": None, "summary": None,
            "clocks": None,
        }

    def run(self, request, announce):
        if "shared" in self.told:
            announce("", "inputs")
            self._do("shared")
        for name in request["names"]:
            announce(name, "parity")
            told = self.told.get(name, "ok")
            if told != "sticky":
                self._do(name)
            function, shape, dtype = request["case"].split()
            row = rows.row(
                function=function, implementation=name, shape=shape, dtype=dtype, recipe="none", options={},
                case=request["case"], status="CRASH" if told == "sticky" else "OK", reason="", repeat="",
                **self.common,
            )
            yield row, {"warm_us": [1.0, 2.0]}
            if told == "sticky":
                raise RuntimeError("the device is lost")

    def _do(self, name):
        told = self.told.get(name, "ok")
        if told == "raise":
            raise ValueError("a mistake of the harness")
        if isinstance(told, tuple):
            _once(ACTIONS[told[0]], told[1])
        else:
            ACTIONS[told]()
