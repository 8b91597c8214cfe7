"""Two runs against each other."""

import io

import pytest
from rich.console import Console

from harness import compare
from harness.sweeps import sweep
from harness.tests.synthetic import gpu_row, gpu_rows, timing


def slower(row, factor):
    column = {name: value * factor if name not in ("n", "dropped") else value
              for name, value in row["graph_us"].items()}
    return row | {"graph_us": column}


@pytest.fixture
def old():
    return [row | {"speedup": {"median": 5.0, "ci_low": None, "ci_high": None}} for row in gpu_rows("smoke")]


def shown(*runs):
    text = io.StringIO()
    compare.show(Console(file=text, width=200), *runs)
    return text.getvalue()


def test_the_same_run_has_not_changed(old):
    found = compare.changes(old, old)
    assert len(found) == len(old) and not any(change.apart for change in found)
    assert all(moved == 0 for change in found for moved in change.changes.values())
    assert compare.unmatched(old, old) == []


def test_a_slower_row_leads_and_its_intervals_are_apart(old):
    new = [slower(row, 1.1) if index == 7 else row for index, row in enumerate(old)]
    found = compare.changes(old, new)
    assert [change.apart for change in found].count(True) == 1
    assert found[7].changes["graph_us"] == pytest.approx(0.1)
    line = next(line for line in shown(old, new).splitlines() if line.startswith(old[7]["case"]))
    assert "+10.0%" in line and "apart" in line


def test_only_rows_over_20_us_are_counted(old):
    short = [row | {"graph_us": timing(10.0)} for row in old[:4]]
    long = [row | {"graph_us": timing(100.0)} for row in old[4:10]]
    new = [slower(row, 1.012) for row in short + long[:2]] + [slower(row, 1.02) for row in long[2:3]] + long[3:]
    found = compare.changes(short + long, new)
    assert compare.within(found, "graph_us", 0.015) == (5, 6)
    assert compare.within(found, "graph_us", 0.01) == (3, 6)


def test_what_speed_ups_are_over_has_none_of_its_own():
    """Of a product that is cuBLAS, which is 1 in every run; a copy computes nothing."""
    over = {"speedup": {"median": 5.0, "ci_low": None, "ci_high": None}}
    old = [gpu_row(case, name) | over for case in sweep("smoke") if case.function in ("linear_fwd", "add")
           for name in ("optimized", "reference", "cublas", "copy")
           if (name == "cublas") <= (case.function == "linear_fwd")]
    counted = {(change.row["function"], change.row["implementation"])
               for change in compare.changes(old, old) if "speedup" in change.changes}
    assert counted == {("linear_fwd", "optimized"), ("linear_fwd", "reference"), ("add", "optimized")}


def test_what_is_missing_or_worse_is_said(old):
    new = [old[0] | {"status": "CRASH"}, *old[2:]]
    said = compare.unmatched(old, new)
    assert said == [f"{old[0]['case']}, {old[0]['implementation']}: OK, now CRASH",
                    f"{old[1]['case']}, {old[1]['implementation']}: only in the old run"]
    assert all(line in shown(old, new) for line in said)


def test_another_gpu_or_environment_is_said(old):
    new = [row | {"gpu": "NVIDIA B200", "environment": "fedcba987654"} for row in old]
    assert compare.differences(old, old) == []
    text = shown(old, new)
    assert "Another GPU: NVIDIA H200; now NVIDIA B200" in text and "Another environment: " in text


def test_a_run_of_a_cpu_is_told_as_one(old):
    new = [row | {"gpu": None, "environment": None} for row in old]
    assert compare.differences(old, new) == [
        "Another GPU: NVIDIA H200; now a CPU", "Another environment: 0123456789ab; now an unknown one"]


def test_a_repeated_row_counts_once_and_as_last_measured(old):
    new = [slower(old[0], 2.0), *old]
    assert compare.changes(old, new)[0].changes["graph_us"] == 0


def test_rows_without_times_do_not_count(old):
    bare = [row | {"graph_us": None, "cold_us": None, "warm_us": None} for row in old]
    assert compare.changes(bare, bare) == []
    text = shown(bare, bare)
    assert "Largest changes of 0 rows: no row was timed in both runs." in text and "speed-up" not in text
