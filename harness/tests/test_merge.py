"""Shards joined: the rows of a whole run, and no two truths."""

import io
import json
import sys

import pytest
from rich.console import Console

from harness import backend_cpu, case_server, folder, rows
from harness.__main__ import main
from harness.merge import contradiction, merge
from harness.options import Options
from harness.place import of_cpu
from harness.progress import Reporter
from harness.rows import RowsError
from harness.runner import Run
from harness.tests.inline_worker import InlineWorker

CASES = ("rmsnorm_fwd 3x16 bf16", "rmsnorm_bwd 2x8 fp32", "rmsnorm_fwd 5x16 bf16", "layernorm_fwd 2x24 fp16")


def timed(**fields):
    column = {"median": 10.0, "ci_low": 9.9, "ci_high": 10.1}
    made = rows.row(**{"status": "OK", "case": "a", "implementation": "optimized", "device": "cuda",
                       "gpu": "NVIDIA H200", "environment": "e", "seed": 0, **fields})
    return made | {"graph_us": fields.get("graph_us", column)}


def wrote(path, *found, samples="", verb="bench"):
    path.mkdir()
    folder.record(path, [{"command": f"python -m harness {verb}", "hash": "e"}])
    writer = rows.Writer(path / "rows.jsonl")
    for row in found:
        writer.write(row)
    writer.close()
    if samples:
        (path / "samples.jsonl").write_text(samples)
    return path


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(backend_cpu, "CAP_S", 0.0)
    monkeypatch.setattr(case_server, "record", lambda index: {"torch": "1"})
    monkeypatch.setattr(sys, "argv", ["harness", "bench"])


def test_shards_together_are_the_whole_run(tmp_path, quick):
    def run(name, **fields):
        options = Options(names=CASES, implementations=("reference",), out=tmp_path / name, **fields)
        assert Run(options, of_cpu(), Reporter(Console(file=io.StringIO())), InlineWorker.start).execute() == 0
        return {rows.identity(row) for row in rows.read(tmp_path / name / "rows.jsonl")}

    whole = run("whole")
    parts = [run(f"part{number}", shard=(number, 3)) for number in (1, 2, 3)]
    assert all(parts) and sum(map(len, parts)) == len(whole)  # the compile report's rows, too
    assert merge(tmp_path / "merged", [tmp_path / f"part{number}" for number in (1, 2, 3)]) == 0
    merged = rows.read(tmp_path / "merged" / "rows.jsonl")
    assert len(merged) == len(whole) and set(map(rows.identity, merged)) == whole
    assert len(folder.describe(tmp_path / "merged")) >= 1
    assert len((tmp_path / "merged" / "samples.jsonl").read_text().splitlines()) == len(CASES)


def test_the_same_row_twice_is_one(tmp_path, capsys):
    one = wrote(tmp_path / "one", timed(), timed(case="b"), samples='{"a": 1}\n{"torn')
    two = wrote(tmp_path / "two", timed(time="later"), samples='{"a": 2}\n')
    assert main(["merge", str(tmp_path / "out"), str(one), str(two)]) == 0
    assert "2 rows of 2 folders in" in capsys.readouterr().out
    assert [row["time"] for row in rows.read(tmp_path / "out" / "rows.jsonl")] == [None, None]
    assert (tmp_path / "out" / "samples.jsonl").read_text() == '{"a": 1}\n{"a": 2}\n'
    assert len(folder.describe(tmp_path / "out")) == 1


def test_of_a_row_that_was_replaced_the_last_is_merged(tmp_path):
    one = wrote(tmp_path / "one", timed(status="TIMEOUT"), timed())
    merge(tmp_path / "out", [one, wrote(tmp_path / "two", timed())])
    assert [row["status"] for row in rows.read(tmp_path / "out" / "rows.jsonl")] == ["OK"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"graph_us": {"median": 11.0, "ci_low": 10.9, "ci_high": 11.1}}, "graph_us 10 and 11, beyond"),
        ({"graph_us": {"median": 11.0, "ci_low": 10.9, "ci_high": 11.1}}, "graph_us 10 and 11, beyond"),
        ({"environment": "f"}, "environment e and f"),
        ({"status": "FAIL_PARITY"}, "status OK and FAIL_PARITY"),
        ({"gpu": "NVIDIA B200"}, "GPU NVIDIA H200 and NVIDIA B200"),
        ({"gpu": None}, "GPU NVIDIA H200 and a CPU"),
        ({"kernel": {"code_digest": "x"}}, "different machine code"),
        ({"graph_us": {"median": 10.15, "ci_low": 10.05, "ci_high": 10.2}}, ""),
        ({"status": "NOISY"}, ""),
        ({"graph_us": None}, ""),
    ],
)
def test_contradictions(fields, why):
    found = [contradiction(one, other) for one, other in ((timed(), timed(**fields)), (timed(**fields), timed()))]
    assert found[0].startswith(why) and bool(found[0]) == bool(why) == bool(found[1])


def test_rows_that_contradict_each_other_are_refused_in_one_sentence(tmp_path, capsys):
    one, two = wrote(tmp_path / "one", timed()), wrote(tmp_path / "two", timed(environment="f"))
    assert main(["merge", str(tmp_path / "out"), str(one), str(two)]) == 1
    said = capsys.readouterr().err
    assert "contradict each other in a, optimized: environment e and f" in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("other", "verb", "words"),
    [
        (timed(case="b", gpu="NVIDIA B200"), "bench", "different devices: NVIDIA B200 and NVIDIA H200"),
        (timed(case="b", gpu=None), "bench", "different devices: NVIDIA H200 and a CPU"),
        (timed(case="b"), "check", "different verbs: bench and check"),
        (timed(case="b"), "bench --profile ci", "different profiles: ci and quick"),
        (timed(case="b"), "bench -k a --profile=full", "different profiles: full and quick"),
        (timed(case="b", seed=1), "bench", "different seeds: 0 and 1"),
    ],
)
def test_folders_of_different_kinds_are_refused(tmp_path, other, verb, words):
    one, two = wrote(tmp_path / "one", timed()), wrote(tmp_path / "two", other, verb=verb)
    with pytest.raises(RowsError, match=words):
        merge(tmp_path / "out", [one, two])


def test_folders_that_are_missing_foreign_or_full_are_refused(tmp_path):
    one = wrote(tmp_path / "one", timed())
    with pytest.raises(RowsError, match="cannot read"):
        merge(tmp_path / "out", [one, tmp_path / "nowhere"])
    foreign = wrote(tmp_path / "foreign")
    (foreign / "rows.jsonl").write_text(json.dumps({"schema": 99}) + "\n")
    with pytest.raises(RowsError, match="schema 99"):
        merge(tmp_path / "out", [one, foreign])
    with pytest.raises(RowsError, match="holds rows already"):
        merge(one, [one])
    (tmp_path / "file").write_text("")
    with pytest.raises(RowsError, match="cannot write"):
        merge(tmp_path / "file" / "out", [one])
