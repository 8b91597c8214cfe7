"""Runs with real worker processes that hang, crash, print and start slowly: no row is lost, and nobody is left."""

import asyncio
import io
import os
import time
from functools import partial

import pytest
from rich.console import Console

from harness import rows, seat, workers
from harness.options import Options
from harness.place import of_cpu
from harness.progress import Reporter
from harness.runner import Run
from harness.tests.fake_server import FakeServer
from harness.workers import WorkerLost, WorkerProcess

CASES = ("rmsnorm_fwd 3x16 bf16", "rmsnorm_bwd 2x8 fp32")
NAMES = ("reference", "compiled", "copy")


@pytest.fixture(autouse=True)
def command_line(monkeypatch):
    monkeypatch.setattr("sys.argv", ["harness", "check"])


async def start_fake(make, limit_s, *, fake):
    return await WorkerProcess.start(fake, limit_s)


def run(out, told=None, start="ok", names=NAMES, **fields):
    """Exit code, (case, implementation) -> row, and what was printed."""
    text, pids = io.StringIO(), out.parent / "pids"
    pids.mkdir(exist_ok=True)
    fake = partial(FakeServer, told, str(pids), start)
    options = Options(verb="check", names=CASES, implementations=names, out=out, **fields)
    code = Run(options, of_cpu(), Reporter(Console(file=text)), partial(start_fake, fake=fake)).execute()
    found = rows.read(out / "rows.jsonl")
    by_name = {(row["case"], row["implementation"]): row for row in found}
    assert len(by_name) == len(found)
    assert not any(alive(int(path.name)) for path in pids.iterdir())
    return code, by_name, text.getvalue()


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def gone(pids, within_s=5.0):
    deadline = time.monotonic() + within_s
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, pids))


def test_what_is_printed_disturbs_nothing(tmp_path):
    code, found, text = run(tmp_path / "run", {"compiled": "garbage"})
    assert code == 0 and len(found) == 6 and {row["status"] for row in found.values()} == {"OK"}
    assert "ordinary words" not in text


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("segfault", "the worker was killed by SIGSEGV"),
        ("exit", "the worker ended with exit code 7"),
        ("abort", "killed by SIGABRT; printed last: a first line | | the last words"),
        ("raise", "ValueError: a mistake of the harness"),
    ],
)
def test_a_crash_costs_the_implementation_that_was_running(tmp_path, action, words):
    code, found, text = run(tmp_path / "run", {"compiled": action})
    assert code == 1 and len(found) == 6
    for (_, name), row in found.items():
        assert row["status"] == ("CRASH" if name == "compiled" else "OK")
    lost = found[CASES[0], "compiled"]
    assert lost["reason"].startswith("parity: ") and words in lost["reason"]
    assert lost["repeat"] == f'python -m harness bench --case "{CASES[0]}" --impl compiled --seed 0'
    assert lost["bytes"] and lost["environment"] == "e" and "CRASH" in text


def test_a_hang_is_ended_and_costs_its_own_row(tmp_path):
    began = time.monotonic()
    code, found, _ = run(tmp_path / "run", {"reference": "hang"}, timeout_s=2.0)
    assert code == 1 and time.monotonic() - began < 60
    for (_, name), row in found.items():
        assert row["status"] == ("TIMEOUT" if name == "reference" else "OK")
    assert found[CASES[0], "reference"]["reason"] == "parity: took longer than 2 s"


def test_a_sticky_error_has_its_row_already(tmp_path):
    code, found, _ = run(tmp_path / "run", {"reference": "sticky"})
    assert code == 1 and len(found) == 6
    assert [row["status"] for row in found.values()] == 2 * ["CRASH", "OK", "OK"]
    assert found[CASES[0], "reference"]["reason"] == ""  # the worker's own row, and no second one


def test_what_all_share_costs_all_that_are_left(tmp_path):
    code, found, _ = run(tmp_path / "run", {"shared": "segfault"})
    assert code == 1 and len(found) == 6
    assert {row["status"] for row in found.values()} == {"CRASH"}
    assert found[CASES[0], "copy"]["reason"].startswith("inputs: ")


def test_a_crash_that_does_not_come_again_costs_one_row(tmp_path):
    told = {"shared": ("segfault", str(tmp_path / "marker"))}
    _, found, _ = run(tmp_path / "run", told)
    assert [row["status"] for row in found.values()] == 3 * ["CRASH"] + 3 * ["OK"]


def test_workers_that_never_start_end_the_run_in_one_sentence(tmp_path):
    code, found, text = run(tmp_path / "run", start="exit")
    assert (code, found) == (1, {})
    assert text.count("No worker stays alive, tried 3 times in a row: start: the worker ended with exit code 7") == 1
    assert "cases left: 2" in text and len(list((tmp_path / "pids").iterdir())) == 0


def test_a_worker_that_does_not_start_in_time_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(seat, "START_S", 0.3)
    code, _, text = run(tmp_path / "run", start="hang")
    assert code == 1 and "start: took longer than 0.3 s" in text


def test_a_slow_start_is_waited_for(tmp_path):
    code, found, _ = run(tmp_path / "run", start="nap", timeout_s=2.0)
    assert code == 0 and len(found) == 6


def test_rows_of_another_gpu_are_refused_when_its_name_is_known(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    rows.Writer(out / "rows.jsonl").write(rows.row(status="OK", gpu="NVIDIA B200", device="cuda"))
    with pytest.raises(rows.RowsError, match="holds rows of NVIDIA B200: a CPU cannot go on with them"):
        run(out, mode="resume")


def test_samples_lie_beside_the_rows(tmp_path):
    run(tmp_path / "run")
    samples = (tmp_path / "run" / "samples.jsonl").read_text().splitlines()
    assert len(samples) == 6 and '"samples_us": {"warm_us": [1.0, 2.0]}' in samples[0] and CASES[0] in samples[0]


def test_rerun_failed_replaces_what_failed_and_keeps_the_rest(tmp_path):
    told = {"compiled": ("segfault", str(tmp_path / "marker"))}
    run(tmp_path / "run", told)
    text, lines = io.StringIO(), (tmp_path / "run" / "rows.jsonl").read_text().splitlines()
    options = Options(verb="check", names=CASES, implementations=NAMES, out=tmp_path / "run", mode="rerun")
    fake = partial(FakeServer, told)
    code = Run(options, of_cpu(), Reporter(Console(file=text)), partial(start_fake, fake=fake)).execute()
    after = rows.read(tmp_path / "run" / "rows.jsonl")
    assert code == 0 and len(lines) == 6 and len(after) == 9  # the case of the failed row, whole
    assert {row["case"] for row in after[6:]} == {CASES[0]}
    standing = rows.latest(after)
    assert len(standing) == 6 and {row["status"] for row in standing} == {"OK"}
    assert "6 rows in" in text.getvalue() and "CRASH" not in text.getvalue()


def test_a_worker_goes_with_those_that_it_started(tmp_path):
    async def started_and_stopped():
        worker = await WorkerProcess.start(partial(FakeServer, pids=str(tmp_path)), 10)
        await worker.stop()
        await worker.stop()

    asyncio.run(started_and_stopped())
    assert gone([int(path.name) for path in tmp_path.iterdir()])


def test_a_request_that_is_not_understood_ends_the_worker(tmp_path):
    async def ask():
        worker = await WorkerProcess.start(FakeServer, 10)
        try:
            return [result async for result in worker.run({"names": 5}, 10)]
        finally:
            await worker.stop()

    with pytest.raises(WorkerLost, match="TypeError") as lost:
        asyncio.run(ask())
    assert lost.value.culprit is None and lost.value.status == "CRASH"


def test_a_process_that_cannot_be_killed_does_not_stop_the_run(monkeypatch):
    async def ask():
        monkeypatch.setattr(workers, "END_S", 0.1)
        worker = await WorkerProcess.start(FakeServer, 10)
        monkeypatch.setattr(os, "killpg", lambda group, sign: None)
        await worker.stop()
        monkeypatch.undo()
        await worker.stop()

    asyncio.run(ask())
