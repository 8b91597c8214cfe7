"""Kernels run by a C++ compiler on the CPU: a program of harness/tests/emulator includes one and tries it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from optimized.jit import KERNELS

EMULATOR = Path(__file__).parent / "emulator"
COMPILER = shutil.which("g++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="g++ was not found")


def emulate(source, defined, folder, kernels=KERNELS, also=EMULATOR):
    """Exit code and output of a program compiled in `folder` with the macros `defined`: name -> value. Headers are
    looked for in `also` first."""
    program = folder / "emulated"
    macros = [f"-D{name}={value}" for name, value in defined.items()]
    folders = [f"-I{each}" for each in (also, EMULATOR, kernels)]
    subprocess.run([COMPILER, "-std=c++20", "-O1", "-w", *folders, *macros, EMULATOR / source, "-o", program],
                   check=True, capture_output=True, text=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout


def with_mistake(mistake, folder):
    """A copy of the kernels in `folder` with a mistake: (file, what stands there once, what shall)."""
    file, old, new = mistake
    kernels = folder / "kernels"
    shutil.copytree(KERNELS, kernels)
    text = (kernels / file).read_text()
    assert text.count(old) == 1
    (kernels / file).write_text(text.replace(old, new))
    return kernels
