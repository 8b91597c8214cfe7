"""The report from rows alone: figures that are not empty, sentences where there is nothing to draw."""

import json

import pytest

from harness import report, rows, table
from harness.report import compose, write
from harness.tests import synthetic

GPU_FIGURES = ("speedup", "percent_of_limit", "time_against_bytes", "error", "against_peers")
CPU_FIGURES = ("cpu_time", "cpu_error", "kernels")


def folder(path, found, runs=synthetic.RUNS):
    path.mkdir()
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    (path / "environment.json").write_text(json.dumps({"runs": runs}))
    return path


@pytest.fixture(scope="module")
def gpu_run(tmp_path_factory):
    run = folder(tmp_path_factory.mktemp("report") / "gpu", synthetic.gpu_rows())
    assert write(run, None) == 0
    return run


@pytest.mark.parametrize("name", GPU_FIGURES)
def test_gpu_figures_are_drawn(gpu_run, name):
    from matplotlib import image

    picture = image.imread(gpu_run / "plots" / f"{name}.png")
    assert picture[..., :3].std() > 0.02, "not a blank page"
    assert "<svg" in (gpu_run / "plots" / f"{name}.svg").read_text()[:600]
    assert f"(plots/{name}.png)" in (gpu_run / "REPORT.md").read_text()


def test_report_leads_with_the_numbers(gpu_run):
    text = (gpu_run / "REPORT.md").read_text()
    assert text.startswith("# NVIDIA H200: parity and speed")
    assert "2026-01-31 · torch 2.11.0+cu130 · NVRTC 13.0 · driver 580.0 · commit aaaaaaaaaa" in text
    for words in ("180 OK", "120 of 120 checked rows are right", "geometric mean of 60 cases", "copy 4.21"):
        assert words in text
    assert "| rmsnorm_fwd 4096x8192 bf16 |" in text
    assert "--case" in text.split("## Measuring one row again")[1]


def test_figures_depend_on_the_rows_alone(gpu_run, tmp_path):
    compose(synthetic.gpu_rows(), synthetic.RUNS, tmp_path / "plots")
    assert (tmp_path / "plots" / "error.svg").read_bytes() == (gpu_run / "plots" / "error.svg").read_bytes()


def test_cpu_run_shows_what_there_is(tmp_path):
    run = folder(tmp_path / "cpu", synthetic.cpu_rows())
    write(run, None)
    text = (run / "REPORT.md").read_text()
    assert text.startswith("# CPU")
    assert sorted(path.stem for path in (run / "plots").glob("*.png")) == sorted(CPU_FIGURES)
    assert all(f"(plots/{name}.png)" in text for name in CPU_FIGURES)


def test_nothing_to_draw_is_a_sentence(tmp_path):
    case = synthetic.sweep("smoke")[0]
    failed = synthetic.gpu_row(
        case,
        "optimized",
        status="CRASH",
        reason="RuntimeError: gone",
        parity=None,
        graph_us=None,
        cold_us=None,
        percent_of_limit=None,
    )
    text = compose([failed], [], tmp_path / "plots")
    assert not (tmp_path / "plots").exists()
    for name in GPU_FIGURES:
        assert report.ABSENT[name] in text
    assert "CRASH: layernorm_fwd 4096x4096 bf16, optimized: RuntimeError: gone" in text


def test_run_without_rows_is_a_sentence(tmp_path):
    run = folder(tmp_path / "empty", [], [])
    write(run, tmp_path / "out")
    assert "no rows" in (tmp_path / "out" / "REPORT.md").read_text()


def test_missing_run_is_one_sentence(tmp_path):
    with pytest.raises(rows.RowsError, match="does not exist"):
        write(tmp_path / "nowhere", None)


def test_target_that_cannot_be_written_is_one_sentence(gpu_run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(rows.RowsError, match="cannot write"):
        write(gpu_run, tmp_path / "file")


@pytest.mark.parametrize("found", [synthetic.gpu_rows(), synthetic.cpu_rows()], ids=["H200", "host"])
def test_terminal_table_fits_in_110_columns(found):
    from rich.console import Console

    console = Console(width=110, record=True, quiet=True, file=open("/dev/null", "w"))
    console.quiet = False
    table.show(console, found)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 110
    assert "…" not in text
    for row in found:
        if row["kind"] == "case":
            assert f"{row['function']} " in text and f" {row['shape']} " in text


def test_table_compares_with_copy_reference_and_best_peer():
    found = [row for row in synthetic.gpu_rows() if row["case"] == "rmsnorm_fwd 4096x8192 bf16"]
    of = table.cases(found)["rmsnorm_fwd 4096x8192 bf16"]
    ours, copy, reference = (of[name]["graph_us"]["median"] for name in ("optimized", "copy", "reference"))
    cells = [str(cell) for cell in table._gpu_cells(of["optimized"], of, None)]
    assert cells[:3] == ["rmsnorm_fwd", "4096x8192", "bf16"]
    assert cells[6:8] == [f"{copy / ours:.2f}", f"{reference / ours:.1f}"]
    assert cells[8].startswith("quack ") and cells[9] == "ok"
