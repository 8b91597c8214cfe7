"""Kernels run by a C++ compiler on the CPU: a program of harness/tests/emulator includes one and tries it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from optimized.jit import KERNELS

EMULATOR = Path(__file__).parent / "emulator"
COMPILER = shutil.which("g++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="g++ was not found")


def emulate(source, defined, folder, kernels=KERNELS, also=EMULATOR, given=()):
    """Exit code and output of a program compiled in `folder`, once, with the macros `defined`: name -> value, and run
    with the arguments `given`. Headers are looked for in `also` first."""
    program = folder / f"emulated{hash((source, kernels, also, *defined.items()))}"
    if not program.exists():
        alone = folder / "alone"
        alone.mkdir(exist_ok=True)
        for kernel in kernels.glob("*.cu"):  # without the headers beside it, which would be found before all others
            (alone / kernel.name).unlink(missing_ok=True)
            (alone / kernel.name).symlink_to(kernel)
        macros = [f"-D{name}={value}" for name, value in defined.items()]
        folders = [f"-I{each}" for each in (alone, also, EMULATOR, kernels)]
        subprocess.run([COMPILER, "-std=c++20", "-O1", "-w", "-Wno-psabi", *folders, *macros, EMULATOR / source, "-o",
                        program], check=True, capture_output=True, text=True)
    done = subprocess.run([program, *given], capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout


def with_mistake(mistake, folder):
    """A copy of the kernels in `folder` with a mistake: (file, what stands there once, what shall)."""
    return with_mistakes([mistake], folder)


def with_mistakes(mistakes, folder):
    """The same with several."""
    kernels = folder / "kernels"
    shutil.copytree(KERNELS, kernels)
    for file, old, new in mistakes:
        text = (kernels / file).read_text()
        assert text.count(old) == 1, old
        (kernels / file).write_text(text.replace(old, new))
    return kernels
