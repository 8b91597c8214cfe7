"""A run on a CPU, with implementations that do as told: every row is kept, nothing fails silently."""

import io
import json
import re
from dataclasses import replace
from unittest import mock

import pytest
import torch
from rich.console import Console

from harness import audit, backend_cpu, case_server, folder, report, rows, runner
from harness.backend_cpu import Cpu
from harness.case_run import CaseRun
from harness.cases import FAMILIES
from harness.implementations import IMPLEMENTATIONS
from harness.options import Options, parse_case
from harness.place import of_cpu
from harness.progress import Reporter
from harness.runner import Run
from harness.tests.inline_worker import InlineWorker

CASES = ("rmsnorm_fwd 3x16 bf16", "rmsnorm_bwd 2x8 fp32")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(backend_cpu, "CAP_S", 0.0)
    monkeypatch.setattr(case_server, "record", lambda index: {"torch": "1"})


@pytest.fixture
def implement(monkeypatch):
    """Replaces what an implementation prepares."""

    def replaced(name, prepare, **fields):
        made = replace(IMPLEMENTATIONS[name], prepare=prepare, available=lambda: None, **fields)
        monkeypatch.setitem(IMPLEMENTATIONS, name, made)

    return replaced


def run(out, verb="check", names=("reference",), cases=CASES, **fields):
    """Exit code, rows and what was printed."""
    text = io.StringIO()
    options = Options(verb=verb, names=cases, implementations=names, out=out, **fields)
    with mock.patch("sys.argv", ["harness", verb]):  # which the run records
        code = Run(options, of_cpu(), Reporter(Console(file=text)), InlineWorker.start).execute()
    return code, rows.read(out / "rows.jsonl"), text.getvalue()


def test_a_shape_that_is_cut_on_a_cpu_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("harness.backend_cpu.ELEMENTS", 8)
    _, found, text = run(tmp_path / "cut")
    assert "Cases are cut to" in text and all(row["case"] not in CASES for row in found)
    monkeypatch.undo()
    assert "Cases are cut to" not in run(tmp_path / "whole")[2]


def test_check_gives_a_row_a_case(tmp_path):
    code, found, text = run(tmp_path / "run")
    assert code == 0
    assert [(row["case"], row["status"]) for row in found] == [(case, "OK") for case in CASES]
    assert all(row["parity"]["ok"] and row["parity"]["seeds"] == 3 and row["bytes"] for row in found)
    assert all(row["audit"]["read_bytes"] == row["read_bytes"] for row in found)
    seconds = [row["seconds"] for row in found]
    assert all(each["inputs"] > 0 < each["parity"] and not each["timing"] for each in seconds)
    assert found[0]["repeat"] == f'python -m harness bench --case "{CASES[0]}" --impl reference --seed 0'
    assert "2 rows in" in text


def test_bench_times_what_is_right_and_compiles_the_kernels(tmp_path):
    code, found, _ = run(tmp_path / "run", verb="bench")
    assert code == 0
    cases = [row for row in found if row["kind"] == "case"]
    assert all(row["warm_us"]["n"] >= 15 and row["graph_us"] is None for row in cases)
    assert all(row["seconds"]["timing"] > 0 for row in cases)
    compiled = [row for row in found if row["kind"] == "compile"]
    assert len(compiled) == 2 and all(row["kernel"]["registers"] > 0 for row in compiled)


def test_wrong_result_is_no_time_and_a_failure(tmp_path, implement):
    implement("compiled", lambda case, call: lambda call: tuple(torch.zeros(1) for _ in range(2)))
    code, found, text = run(tmp_path / "run", "bench", ("reference", "compiled"))
    wrong = [row for row in found if row["implementation"] == "compiled"]
    assert code == 1
    assert wrong[0]["status"] == "FAIL_PARITY" and wrong[0]["reason"] and wrong[0]["warm_us"] is None
    assert "FAIL_PARITY" in text and wrong[0]["repeat"] in text


def test_exception_costs_its_own_row_and_is_told(tmp_path, implement):
    def crash(case, call):
        raise RuntimeError("the kernel is not to be found\nmore")

    implement("compiled", crash)
    code, found, text = run(tmp_path / "run", names=("compiled", "reference"))
    assert code == 1
    assert [row["status"] for row in found[:2]] == ["CRASH", "OK"]
    assert found[0]["reason"] == "RuntimeError: the kernel is not to be found"
    assert "the kernel is not to be found" in text


def test_exhausted_memory_is_typed_and_no_failure(tmp_path, implement):
    def exhaust(call):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 TiB")

    implement("compiled", lambda case, call: exhaust)
    code, found, _ = run(tmp_path / "run", names=("compiled",))
    assert code == 0
    assert {row["status"] for row in found} == {"OOM"}


def test_what_does_not_fit_is_told_before_anything_is_allocated(tmp_path, implement, monkeypatch):
    monkeypatch.setattr(Cpu, "free_bytes", lambda self: 1000)
    made = []
    monkeypatch.setattr(type(FAMILIES["rmsnorm_fwd"]), "make", lambda *arguments: made.append(arguments))
    code, found, _ = run(tmp_path / "run", cases=CASES[:1])
    assert code == 0 and not made and [row["status"] for row in found] == ["OOM"]
    assert re.fullmatch(r"needs about \d\.\d+e-06 GB, and 1e-06 GB are free", found[0]["reason"])


def test_a_model_that_its_tensors_contradict_is_invalid(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "audit", lambda case, call, results: ({"read_bytes": 7, "written_bytes": 0}, "not so"))
    code, found, text = run(tmp_path / "run")
    assert code == 1 and {(row["status"], row["reason"]) for row in found} == {("INVALID", "not so")}
    assert found[0]["audit"]["read_bytes"] == 7 and "INVALID" in text


def test_a_row_that_failed_is_there_before_the_others_are_timed(tmp_path, implement, monkeypatch):
    implement("compiled", lambda case, call: lambda call: tuple(torch.zeros(1) for _ in range(2)))
    seen = []

    def time(self, case, call, runs):
        seen.append([row["status"] for row in rows.read(tmp_path / "run" / "rows.jsonl") if row["kind"] == "case"])
        raise KeyboardInterrupt

    monkeypatch.setattr(Cpu, "time", time)
    code, found, _ = run(tmp_path / "run", "bench", ("reference", "compiled"))
    assert (code, seen) == (130, [["FAIL_PARITY"]])


def test_what_is_lost_while_it_is_timed_is_left_out_and_the_rest_timed_again(tmp_path, implement, monkeypatch):
    implement("compiled", IMPLEMENTATIONS["reference"].prepare)
    monkeypatch.setattr(Cpu, "alive", lambda self: False)
    measure, together = Cpu.time, []

    def time(self, case, call, runs):
        together.append([subject.name for subject, _ in runs])
        for subject, _ in runs:
            with subject.guarded(self):
                if subject.name == "compiled":
                    raise RuntimeError("an illegal memory access")
        measure(self, case, call, runs)

    monkeypatch.setattr(Cpu, "time", time)
    code, found, _ = run(tmp_path / "run", "bench", ("reference", "compiled"), cases=CASES[:1])
    found = {row["implementation"]: row for row in found if row["kind"] == "case"}
    assert together == [["reference", "compiled"], ["reference"]] and len(found) == 2
    assert found["compiled"]["status"] == "CRASH" and found["compiled"]["warm_us"] is None
    assert found["reference"]["status"] == "OK" and found["reference"]["warm_us"]


def test_every_step_is_announced_before_it_begins():
    steps, case = [], parse_case(CASES[0])
    cpu, common = Cpu(), {"seed": 0, "environment": "e"}
    rows_of = CaseRun(case, cpu, common, announce=lambda *step: steps.append(step)).run(["reference", "copy"])
    assert [row["implementation"] for row in rows_of] == ["reference", "copy"]
    begin = [("reference", "inputs"), ("reference", "parity"), ("copy", "inputs"), ("", "timing")]
    assert steps[:4] == begin and set(steps[4:]) == {("reference", "timing"), ("copy", "timing")}


def test_fresh_drops_nothing_of_a_folder_that_holds_no_run(tmp_path):
    (tmp_path / "run" / "plots").mkdir(parents=True)
    mine = [tmp_path / "run" / "plots" / "mine.png", tmp_path / "run" / "REPORT.md"]
    for path in mine:
        path.write_text("mine")
    run(tmp_path / "run", mode="fresh", cases=CASES[:1])
    assert all(path.read_text() == "mine" for path in mine)


def test_fresh_drops_what_the_folder_holds(tmp_path):
    run(tmp_path / "run", "bench")
    report.write(tmp_path / "run", None)
    (tmp_path / "run" / "plots" / "mine.txt").write_text("")
    _, found, _ = run(tmp_path / "run", mode="fresh")
    assert not (tmp_path / "run" / "REPORT.md").exists()
    assert [path.name for path in (tmp_path / "run" / "plots").iterdir()] == ["mine.txt"]
    assert len(found) == 2 and {row["kind"] for row in found} == {"case"}
    assert not (tmp_path / "run" / "samples.jsonl").exists()
    assert len(folder.describe(tmp_path / "run")) == 1


def test_the_kernels_of_a_resumed_run_are_complete(tmp_path):
    _, whole, _ = run(tmp_path / "run", "bench")
    cases = [row for row in whole if row["kind"] == "case"]
    (tmp_path / "run" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in cases))
    _, found, _ = run(tmp_path / "run", "bench", mode="resume")
    assert sorted(map(rows.identity, found)) == sorted(map(rows.identity, whole))


def test_unavailable_implementation_is_skipped_with_its_reason(tmp_path, monkeypatch):
    gone = replace(IMPLEMENTATIONS["optimized"], available=lambda: "no GPU of that kind")
    monkeypatch.setitem(IMPLEMENTATIONS, "optimized", gone)
    code, found, _ = run(tmp_path / "run", names=("optimized",))
    assert code == 0
    assert {(row["status"], row["reason"]) for row in found} == {("SKIPPED", "no GPU of that kind")}


def test_lost_device_costs_its_row_and_a_fresh_worker_does_the_others(tmp_path, implement, monkeypatch):
    def crash(case, call):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    implement("compiled", crash)
    monkeypatch.setattr(Cpu, "alive", lambda self: False)
    started = []
    monkeypatch.setattr(case_server, "clocks", started.append)
    code, found, _ = run(tmp_path / "run", names=("compiled", "reference"))
    assert code == 1
    assert [(row["implementation"], row["status"]) for row in found] == 2 * [("compiled", "CRASH"), ("reference", "OK")]
    assert "illegal memory access" in found[0]["reason"] and len(started) == 3


def test_resume_measures_only_what_is_missing(tmp_path, implement):
    run(tmp_path / "run")
    kept = (tmp_path / "run" / "rows.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "run" / "rows.jsonl").write_bytes(kept[0] + kept[1][:20])
    calls = []
    reference = IMPLEMENTATIONS["reference"].prepare
    implement("reference", lambda case, call: calls.append(case.name) or reference(case, call))
    code, found, _ = run(tmp_path / "run", mode="resume")
    assert code == 0
    assert calls == [CASES[1]]
    assert [row["case"] for row in found] == list(CASES)


def test_a_resumed_run_says_where_the_rows_that_are_there_come_from(tmp_path, monkeypatch):
    def environment(commit):
        monkeypatch.setattr(case_server, "record", lambda index: {"git": {"commit": commit * 40, "dirty": False}})

    environment("a")
    run(tmp_path / "run", cases=CASES[:1])
    assert "Rows that are there" not in run(tmp_path / "run", mode="fresh", cases=CASES[:1])[2]
    environment("b")
    text = run(tmp_path / "run", mode="resume")[2]
    assert "Rows that are there stay, measured with commit aaaaaaaaaa;" in " ".join(text.split())


def test_spent_budget_says_what_is_left(tmp_path):
    code, found, text = run(tmp_path / "run", budget_s=0.0)
    assert (code, found) == (1, [])
    assert "cases left: 2" in text and "--resume" in text and "Nothing was measured" in text


def test_a_budget_that_sufficed_for_some_is_no_failure(tmp_path, monkeypatch):
    spent = iter((False, True))
    monkeypatch.setattr(Run, "_spent", lambda self: next(spent))
    code, found, text = run(tmp_path / "run")
    assert (code, len(found)) == (0, 1) and "cases left: 1" in text and "Nothing was measured" not in text


def test_a_share_without_cases_is_told(tmp_path):
    code, found, text = run(tmp_path / "run", shard=(3, 3))
    assert (code, found) == (0, []) and "Share 3/3 has no case" in text
    assert "has no case" not in run(tmp_path / "other", shard=(2, 3))[2]


def test_ctrl_c_keeps_every_finished_row(tmp_path, implement):
    reference = IMPLEMENTATIONS["reference"].prepare

    def interrupted(case, call):
        if case.name == CASES[1]:
            raise KeyboardInterrupt
        return reference(case, call)

    implement("reference", interrupted)
    code, found, text = run(tmp_path / "run")
    assert code == 130
    assert [row["case"] for row in found] == [CASES[0]]
    assert "Interrupted, cases left: 1" in text and "1 row in" in text


@pytest.mark.parametrize(
    "words", (["bench", "--out", "/x/y", "-k", "a b"], ["bench", "--out=/x/y", "-k", "a b"], ["bench", "-k", "a b"])
)
def test_a_record_does_not_say_where_its_rows_went(words):
    assert runner.asked(words) == "python -m harness bench -k 'a b'"
