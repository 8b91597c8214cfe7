"""What the README promises, the Makefile makes and the constraints leave open."""

import re
import shlex
import subprocess
import sys
import tomllib

import pytest

from harness.tests.project import ROOT, text


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", text("README.md"), re.M | re.S)


COMMANDS = [line.split(" #")[0].strip() for block in blocks("sh") for line in block.splitlines()]
COMMANDS += re.findall(r"`(make [^`]+)`", text("README.md"))
HARNESS = [command for command in COMMANDS if command.startswith("python -m harness")]


def run(*arguments):
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_readme_shows_commands():
    assert {"make bench", "make test"} <= set(COMMANDS) and HARNESS and blocks("python")


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("make")])
def test_make_commands(command):
    """The recipe is printed, not run."""
    run(*shlex.split(command), "--dry-run", f"PYTHON={sys.executable}")


def test_make_passes_arguments_on():
    shown = run("make", "--no-print-directory", "--dry-run", "bench", "PYTHON=some-python", 'ARGS=-k "rms norm"')
    assert shown.strip() == 'some-python -m harness bench --profile quick -k "rms norm" --report'


@pytest.mark.parametrize("command", HARNESS)
def test_harness_commands(command):
    arguments = shlex.split(command)[3:]
    if arguments[0] == "bench":
        arguments.append("--dry-run")
    if arguments[0] in ("report", "tune"):
        arguments.append("--help")
    assert run(sys.executable, "-m", "harness", *arguments).strip()


def test_python_examples_run_one_after_another(capsys):
    held = {}
    for code in blocks("python"):
        exec(compile(code, "README.md", "exec"), held)
    assert held["back"].shape == held["x"].shape and held["back"].dtype == held["x"].dtype
    assert "MXFP8Tensor(shape=(4096, 8192)" in capsys.readouterr().out


def test_ci_runs_the_readme_and_nothing_else():
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
    commands = [line for line in text(".ci/run").splitlines() if line and line[0] != "#"]
    assert commands[:2] == ["set -euo pipefail", 'cd "$(dirname "$0")/.."']
    assert commands[2:] and set(commands[2:]) <= set(COMMANDS)


def test_constraints_pin_exactly_and_leave_nvidia_to_torch():
    pins = [line for line in text("constraints.txt").splitlines() if line and line[0] != "#"]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[\w.]+", pin) for pin in pins)
    names = {re.sub(r"[_.]", "-", pin.split("==")[0].lower()) for pin in pins}
    assert "torch==2.13.0" in pins and len(names) == len(pins)
    assert [name for name in names if name.startswith(("nvidia", "cuda-toolkit", "triton"))] == []
    project = tomllib.loads(text("pyproject.toml"))["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["test"]
    direct = {re.match(r"[A-Za-z0-9-_]+", line)[0].lower().replace("_", "-") for line in wanted}
    assert {name for name in direct - names if not name.startswith("nvidia-")} == set()


def test_every_kernel_file_is_packaged():
    data = tomllib.loads(text("pyproject.toml"))["tool"]["setuptools"]["package-data"]["optimized"]
    sources = {p for p in (ROOT / "optimized").rglob("*") if p.suffix in (".cu", ".cuh")}
    assert sources == {p for pattern in data for p in (ROOT / "optimized").glob(pattern)}
