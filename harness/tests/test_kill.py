"""kill -9 and polite signals at any moment: finished rows stay, nobody is left, --resume ends with the same rows."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import rows, table
from harness.environment import ROOT
from harness.tests.test_workers import alive, gone

CASES = [f"rmsnorm_fwd {n}x16 bf16" for n in range(1, 25)]
NAMES = ("reference", "copy")

# One process imports everything, then becomes a run for each folder and action that it reads.
NURSERY = """
import io, os, sys
from functools import partial
from pathlib import Path
from rich.console import Console
from harness.options import Options
from harness.place import of_cpu
from harness.progress import Reporter
from harness.runner import Run
from harness.tests.fake_server import FakeServer
from harness.workers import WorkerProcess

cases, names = tuple(sys.argv[1].split(",")), tuple(sys.argv[2].split(","))
sys.argv[1:] = ["check"]
print("ready", flush=True)
for line in sys.stdin:
    out, action = line.rstrip().split("|")
    pids = Path(out, "pids")
    pids.mkdir(exist_ok=True)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        (pids / str(os.getpid())).touch()
        fake = partial(FakeServer, dict.fromkeys(names, action), str(pids))
        start = lambda make, limit_s: WorkerProcess.start(fake, limit_s)
        options = Options(verb="check", names=cases, implementations=names, out=Path(out), mode="resume")
        os._exit(Run(options, of_cpu(), Reporter(Console(file=io.StringIO())), start).execute())
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def nursery():
    """Begins a run that resumes in a folder; returns its process id and a function that waits for its exit code."""
    command = [sys.executable, "-c", NURSERY, ",".join(CASES), ",".join(NAMES)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"

    def begin(folder, action="ok"):
        process.stdin.write(f"{folder}|{action}\n")
        process.stdin.flush()
        return int(process.stdout.readline()), lambda: int(process.stdout.readline())

    yield begin
    process.stdin.close()
    process.wait(10)


def everybody(folder):
    return [int(path.name) for path in (folder / "pids").iterdir()]


def wait_for(condition, within_s=20.0):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def identities(folder):
    path = folder / "rows.jsonl"
    return [rows.identity(row) for row in rows.read(path)] if path.exists() else []


def kill(parent, folder, everyone):
    """SIGKILL to the parent alone, or to its process group and the workers' at once."""
    for pid in everybody(folder) if everyone else [parent]:
        try:
            os.killpg(pid, signal.SIGKILL) if everyone else os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # ended by itself


def test_killed_at_ten_moments_and_resumed_it_has_the_rows_of_an_uninterrupted_run(tmp_path, nursery):
    chance, sizes = random.Random(7), [0]
    for attempt in range(10):
        parent, wait = nursery(tmp_path, "moment")
        if attempt > 2:  # the first three are killed while they start, the others behind a row of their own
            wait_for(lambda: len(identities(tmp_path)) > sizes[-1])
        time.sleep(chance.uniform(0.0, 0.25))
        kill(parent, tmp_path, everyone=attempt % 2)
        assert wait() == -signal.SIGKILL
        assert gone(everybody(tmp_path))
        sizes.append(len(identities(tmp_path)))
    assert sizes == sorted(sizes) and 7 <= sizes[-1] < len(CASES) * len(NAMES)
    _, wait = nursery(tmp_path)
    assert wait() == 0
    found = identities(tmp_path)
    assert len(found) == len(set(found)) == len(CASES) * len(NAMES)


@pytest.mark.parametrize("action", ["hang", "hang with the lock"])
def test_a_worker_that_hangs_goes_with_its_parent(tmp_path, nursery, action):
    parent, wait = nursery(tmp_path, action)
    wait_for(lambda: len(everybody(tmp_path)) == 2)
    os.kill(parent, signal.SIGKILL)
    assert wait() == -signal.SIGKILL
    assert gone(everybody(tmp_path))


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_signal_ends_a_hanging_worker_at_once(tmp_path, nursery, sign):
    parent, wait = nursery(tmp_path, "hang with the lock")
    wait_for(lambda: len(everybody(tmp_path)) == 2)
    began = time.monotonic()
    os.kill(parent, sign)
    assert wait() == 130 and time.monotonic() - began < 10
    assert gone(everybody(tmp_path))


def test_two_runs_cannot_write_to_one_folder(tmp_path, nursery):
    parent, wait = nursery(tmp_path, "hang")
    wait_for(lambda: len(everybody(tmp_path)) == 2)
    words = ["check", "--case", CASES[0], "--out", str(tmp_path), "--resume"]
    done = subprocess.run([sys.executable, "-m", "harness", *words], cwd=ROOT, capture_output=True, text=True,
                          env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    os.kill(parent, signal.SIGKILL)
    wait()
    assert done.returncode == 1 and "is being written by another run" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_real_run_whose_parent_is_killed_leaves_nobody_and_goes_on(tmp_path):
    out, words = tmp_path / "run", ["--case", "rmsnorm_fwd 3x16 bf16", "--case", "layernorm_bwd 5x24 fp32"]
    command = [sys.executable, "-m", "harness", "check", *words, "--out", str(out)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, env=environment)
    wait_for(lambda: (out / "environment.json").exists(), 60)
    workers = children(process.pid)
    assert workers and all(map(alive, workers))
    process.kill()
    process.wait()
    assert gone(workers)
    done = subprocess.run([*command, "--resume"], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and len(set(identities(out))) == len(identities(out)) == 2


def children(pid):
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_a_real_run(tmp_path, sign):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "harness", "check", "--sweep", "edge", "--out", str(out)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment)
    written = out / "rows.jsonl"
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and not (written.exists() and written.stat().st_size):
        time.sleep(0.1)
    process.send_signal(sign)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    found = rows.read(out / "rows.jsonl")
    assert found and f"{table.counted(len(found), 'row')} in {out}/rows.jsonl" in text
    assert "--resume" in text


def test_killed_run_keeps_its_rows(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    script = (
        "from pathlib import Path; import os, signal; from harness.rows import Writer, row\n"
        f"writer = Writer(Path({str(out)!r}) / 'rows.jsonl')\n"
        "for seed in range(3): writer.write(row(status='OK', seed=seed))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False)
    assert [json.loads(line)["seed"] for line in (out / "rows.jsonl").open()] == [0, 1, 2]
