"""Rows on the disk: strict, whole, and there when they are said to be."""

import json
import math
import os

import pytest

from harness import rows
from harness.folder import RunFolder, describe
from harness.rows import RowsError, Writer, identity, read, row


def some(**fields):
    return row(
        function="rmsnorm_fwd", implementation="optimized", shape="4x8", dtype="bf16", status="OK", **fields
    )


def test_row_has_every_field_and_only_those():
    assert list(some()) == list(rows.FIELDS)
    with pytest.raises(KeyError, match="colour"):
        some(colour="red")
    with pytest.raises(ValueError, match="FINE"):
        row(status="FINE")


def test_written_row_is_read_back(tmp_path):
    writer = Writer(tmp_path / "rows.jsonl")
    writer.write(some(seed=1))
    writer.write(some(seed=2))
    assert [found["seed"] for found in read(tmp_path / "rows.jsonl")] == [1, 2]


def test_row_is_synced_before_write_returns(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append((tmp_path / "rows.jsonl").read_text()))
    Writer(tmp_path / "rows.jsonl").write(some())
    assert len(synced) == 1 and synced[0].endswith("\n")


def test_json_is_strict(tmp_path):
    Writer(tmp_path / "rows.jsonl").write(some(parity={"errors": {"y": {"max": math.nan, "rms": math.inf}}}))
    text = (tmp_path / "rows.jsonl").read_text()

    def refuse(constant):
        raise AssertionError(constant)

    found = json.loads(text, parse_constant=refuse)
    assert found["parity"]["errors"]["y"] == {"max": None, "rms": None}


@pytest.mark.parametrize("torn", ['{"schema": 2, "ki', "\x00\x00\x00", '{"schema": 2}'])
def test_torn_last_line_is_ignored_and_cut_off(tmp_path, torn):
    path = tmp_path / "rows.jsonl"
    Writer(path).write(some(seed=1))
    with open(path, "a") as file:
        file.write(torn)
    assert len(read(path)) == 1
    Writer(path).write(some(seed=2))
    assert [found["seed"] for found in read(path)] == [1, 2]


def test_foreign_line_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "rows.jsonl"
    Writer(path).write(some())
    with open(path, "a") as file:
        file.write("hello\n")
    with pytest.raises(RowsError, match="line 2: not a result row; without this line the rest can be read"):
        read(path)
    path.write_text("[" * 100_000 + "\n")
    with pytest.raises(RowsError, match="line 1: not a result row"):
        read(path)


@pytest.mark.parametrize("damage", [
    {"warm_us": 3}, {"warm_us": {}}, {"parity": "ok"}, {"parity": {"ok": True}}, {"kind": "box"},
    {"status": "FINE"}, {"case": 5}, {"percent_of_limit": "97"}, {"warm_us": {"median": 1.0}},
    {"graph_us": {"median": None, "ci_low": 1.0, "ci_high": 1.0}}, {"speedup": {"median": 1.0}}, {"gpu_state": {}},
    {"parity": {"ok": True, "errors": {"y": 0.1}}}, {"parity": {"ok": True, "errors": None}},
    {"kind": "compile", "status": "OK", "kernel": None},
    {"kind": "compile", "status": "OK", "kernel": {"registers": 1}},
], ids=str)
def test_damaged_row_is_an_error_that_names_it(tmp_path, damage):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(some()) + "\n" + json.dumps(some() | damage) + "\n")
    with pytest.raises(RowsError, match="line 2: a damaged result row; without this line the rest can be read"):
        read(path)


def test_row_without_a_field_is_an_error(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"schema": 2}\n')
    with pytest.raises(RowsError, match="line 1: a damaged result row"):
        read(path)


def test_row_of_an_earlier_schema_has_null_for_what_came_later(tmp_path):
    path, older = tmp_path / "rows.jsonl", some(seed=1) | {"schema": 1}
    path.write_text(json.dumps({name: value for name, value in older.items() if name not in rows.ADDED[2]}) + "\n")
    assert read(path) == [some(seed=1)]


def test_other_schema_is_an_error(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"schema": 99}\n')
    with pytest.raises(RowsError, match="schema 99"):
        read(path)


def test_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(RowsError, match="No such file"):
        read(tmp_path / "rows.jsonl")


def test_full_disk_is_one_sentence():
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    writer = Writer.__new__(Writer)
    writer.path, writer._file = "/dev/full", open("/dev/full", "wb")
    with pytest.raises(RowsError, match="cannot write /dev/full: No space left"):
        writer.write(some())
    writer.close()


def test_identity_is_what_a_row_is_about():
    assert identity(some(seed=1)) == identity(some(seed=1) | {"status": "CRASH", "graph_us": {}})
    assert identity(some(seed=1)) != identity(some(seed=2))


def test_folder_refuses_to_mix_runs_and_resumes_when_asked(tmp_path):
    first = RunFolder(tmp_path / "run")
    first.write(some(seed=1))
    first.close()
    with pytest.raises(RowsError, match="--resume"):
        RunFolder(tmp_path / "run")
    again = RunFolder(tmp_path / "run", mode="resume")
    assert again.known.stands(some(seed=1)) and not again.known.stands(some(seed=2))


def test_environment_entries_accumulate(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.describe({"hash": "a"})
    run.describe({"hash": "b", "clocks": math.nan})
    assert describe(tmp_path / "run") == [{"hash": "a"}, {"hash": "b", "clocks": None}]


@pytest.mark.parametrize("text", [
    "{", "[]", '{"runs": 5}', '{"runs": [1]}', '{"runs": [{"environment": 3}]}', '{"runs": [{"ceilings": {"a": 1}}]}',
    '{"runs": [{"environment": {"host": 3}}]}', '{"runs": ' + "[" * 100_000,
], ids=lambda text: text[:40])
def test_damaged_environment_is_one_sentence(tmp_path, text):
    (tmp_path / "environment.json").write_text(text)
    with pytest.raises(RowsError, match="environment"):
        describe(tmp_path)


def test_file_in_the_place_of_the_folder_is_one_sentence(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(RowsError, match="cannot write"):
        RunFolder(tmp_path / "run")


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A folder of runs in the place of the project's."""
    monkeypatch.setattr("harness.folder.RUNS", tmp_path / "runs")
    monkeypatch.setattr("harness.folder.LATEST", tmp_path / "runs" / "latest")
    return tmp_path / "runs"


def test_resuming_with_no_run_yet_begins_one(runs):
    first = RunFolder(None, mode="resume")
    first.write(some(seed=1))
    first.close()
    assert (runs / "latest").is_symlink() and RunFolder(None, mode="resume").known.stands(some(seed=1))
    assert RunFolder(None).path != first.path


def test_runs_of_one_second_have_folders_of_their_own(runs, monkeypatch):
    monkeypatch.setattr("time.strftime", lambda *_: "now")
    assert [RunFolder(None).path.name for _ in range(3)] == ["now", "now-1", "now-2"]


def test_folder_in_the_place_of_the_link_is_one_sentence(runs):
    (runs / "latest").mkdir(parents=True)
    with pytest.raises(RowsError, match="cannot make .*latest a link"):
        RunFolder(None)
    assert not list(runs.glob(".latest*"))
