"""The report from rows alone: figures that are not empty, sentences where there is nothing to draw."""

import json

import pytest

from harness import peers, report, rows, table
from harness.origin import provenance
from harness.report import compose, write
from harness.sweeps import sweep
from harness.tests import synthetic

GPU_FIGURES = ("speedup", "percent_of_limit", "products", "time_against_bytes", "error", "against_peers")
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
    count = len(synthetic.gpu_rows())
    checked = sum(row["parity"] is not None for row in synthetic.gpu_rows())
    for words in (f"{count} OK", f"{checked} of {checked} checked rows are right", "Speed-up over reference: 10.6",
                  "copy 4.21", "geometric mean of 62 cases",
                  "Speed-up over cublas: 1.02 × (geometric mean of 85 cases)"):
        assert words in text
    assert "| rmsnorm_fwd 4096x8192 bf16 |" in text
    assert "--case" in text.split("## Measuring one row again")[1]


def test_origin_is_that_of_every_row_and_of_no_other_run():
    def run(name, commit, dirty=False, torch="2.11.0"):
        return {"hash": name, "started": "2026-02-01T00:00:00Z",
                "environment": {"torch": torch, "git": {"commit": commit * 40, "dirty": dirty}}}

    runs = [run("x", "c"), run("a", "a"), run("b", "b", dirty=True), run("a", "a")]
    found = [rows.row(status="OK", environment=name, gpu="NVIDIA H200") for name in "aab"]
    assert provenance(found, runs) == (
        "NVIDIA H200 · 2026-02-01 · torch 2.11.0 · commit aaaaaaaaaa and bbbbbbbbbb-dirty")
    assert provenance(found[:2], runs).endswith("commit aaaaaaaaaa")
    assert provenance([rows.row(status="OK", environment="lost")], runs[:1]).endswith("commit cccccccccc")


def test_figures_depend_on_the_rows_alone(gpu_run, tmp_path):
    compose(synthetic.gpu_rows(), synthetic.RUNS, tmp_path / "plots")
    assert (tmp_path / "plots" / "error.svg").read_bytes() == (gpu_run / "plots" / "error.svg").read_bytes()


def test_cpu_run_shows_what_there_is(tmp_path):
    run = folder(tmp_path / "cpu", synthetic.cpu_rows())
    write(run, None)
    text = (run / "REPORT.md").read_text()
    assert text.startswith("# CPU")
    drawn = {path.stem for path in (run / "plots").glob("*.png")}
    assert drawn == {*CPU_FIGURES, "quantization_accuracy", "pipeline_fusion"}
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


def test_a_row_that_was_replaced_is_not_told(tmp_path):
    found = synthetic.gpu_rows()
    lost = [row | {"status": "CRASH", "reason": "an old story"} for row in found]
    write(folder(tmp_path / "run", lost + found), None)
    text = (tmp_path / "run" / "REPORT.md").read_text()
    assert "an old story" not in text and f"Rows: {len(found)} OK" in text


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


def shown(found, width=100):
    from rich.console import Console

    console = Console(width=width, record=True, quiet=True, file=open("/dev/null", "w"))
    console.quiet = False
    table.show(console, found)
    return console.export_text()


@pytest.mark.parametrize("found", [synthetic.gpu_rows(), synthetic.gpu_rows("smoke"), synthetic.cpu_rows()],
                         ids=["H200", "smoke", "host"])
def test_terminal_table_fits_in_100_columns(found):
    text = shown(found)
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    for row in found:
        if row["kind"] == "case":
            assert f"{row['function']} " in text and f" {row['shape']} " in text


def test_the_terminal_says_once_why_rows_were_left_out():
    cases = synthetic.sweep("smoke")[:3]
    found = [synthetic.gpu_row(case, "optimized", status="SKIPPED", reason="no GPU of that kind", parity=None)
             for case in cases] + [synthetic.gpu_row(cases[0], "reference", status="OOM", reason="needs 8 TB")]
    text = shown(found)
    assert text.count("SKIPPED optimized of 3 cases: no GPU of that kind") == 1
    assert "OOM reference of 1 case: needs 8 TB" in text and "of 3 cases" not in shown(synthetic.gpu_rows("smoke"))


def test_longest_verdict_still_fits():
    cases = [synthetic.sweep("llm")[i] for i in (5, 59)]
    found = [synthetic.gpu_row(case, "optimized", status=status, reason="") for case, status in zip(
        cases, ("COMPILE_ERROR", "HOST_BOUND"))]
    found += [synthetic.gpu_row(case, name) for case in cases for name in ("reference", "copy")]
    text = shown(found)
    lines = [line for line in text.splitlines() if line.startswith(("layernorm", "rmsnorm"))]
    assert max(map(len, lines)) <= 100 and "COMPILE_ERROR" in text and "host-bound" in text


def case_rows(name="rmsnorm_fwd 4096x8192 bf16"):
    return {row["implementation"]: row for row in synthetic.gpu_rows() if row["case"] == name}


def test_a_line_names_whose_figures_it_has_where_they_are_not_the_usual_ones():
    found, made = synthetic.gpu_rows("smoke"), synthetic.cpu_rows()
    copies = [row for row in found if row["implementation"] == "copy"]
    references = [row for row in found if row["implementation"] == "reference"]
    compiled = [row for row in made if row["implementation"] == "compiled"]
    for rows_of, name, verdict in ((copies, "copy", "not checked"), (references, "reference", "ok"),
                                   (compiled, "compiled", "ok")):
        text = shown(rows_of, width=140)
        assert f"bf16 ({name}) " in text and verdict in text and f"bf16 ({name}) " not in shown(found + made, 140)
    for lines, rows_of in ((report._gpu_lines, copies), (report._cpu_lines, compiled)):
        line = lines(table.cases(rows_of))[2]
        assert line.startswith(f"| {rows_of[0]['case']} ({rows_of[0]['implementation']}) |")
    assert report._gpu_lines(table.cases(copies))[2].endswith("| OK, not checked |")
    assert "(" not in report._gpu_lines(table.cases(found))[2].split("|")[1]


def test_a_copy_is_not_held_against_what_computes():
    copy = case_rows()["copy"]
    assert peers.best(case_rows()["optimized"]) and peers.best(copy) is None
    assert table.speedup(copy | {"speedup": {"median": 9.0, "ci_low": 8.9, "ci_high": 9.1}}, None)[0] is None


def test_table_compares_with_copy_reference_and_best_peer():
    of = case_rows()
    ours, copy, reference = (of[name]["graph_us"]["median"] for name in ("optimized", "copy", "reference"))
    cells = [str(cell) for cell in table._gpu_cells(of["optimized"], of, None)]
    assert cells[:3] == ["rmsnorm_fwd", "4096x8192", "bf16"]
    assert cells[4] == "0.4" and cells[7] == f"{ours / copy:.2f}"
    measured = of["optimized"]["speedup"]
    half = 50 * (measured["ci_high"] - measured["ci_low"]) / measured["median"]
    assert half > 0 and cells[8] == f"{reference / ours:.1f}±{half:.1f}%"
    assert cells[9].startswith("quack ") and cells[10] == "ok"


def test_speedup_is_that_of_the_replicates_else_of_the_medians():
    of = case_rows()
    measured = {"median": 9.5, "ci_low": 9.4, "ci_high": 9.7}
    assert table.speedup(of["optimized"] | {"speedup": measured}, of["reference"]) == (9.5, 9.4, 9.7)
    medians = of["reference"]["graph_us"]["median"] / of["optimized"]["graph_us"]["median"]
    alone = of["optimized"] | {"speedup": None, "replicates": None}
    assert table.speedup(alone, of["reference"]) == (medians, None, None)
    assert table.speedup(alone, None) == (None, None, None)
    once = of["optimized"] | {"speedup": measured | {"ci_low": None, "ci_high": None}}
    assert str(table._gpu_cells(once, of, None)[8]) == "9.5"


def test_a_ratio_to_a_copy_is_the_time_over_the_copys_in_every_table():
    from harness import plots_quantization

    found = [synthetic.gpu_row(case, name) for case in sweep("quantize")[:1] for name in ("optimized", "copy")]
    ours, copy = found[0] | {"graph_us": synthetic.timing(30.0)}, found[1] | {"graph_us": synthetic.timing(20.0)}
    of = {"optimized": ours, "copy": copy}
    assert str(table._gpu_cells(ours, of, None)[7]) == "1.50"
    for lines in (report._gpu_lines({"a": of}), plots_quantization.table({"a": of})):
        heading, _, line = ([cell.strip() for cell in line.split("|")] for line in lines)
        assert line[heading.index("/ copy")].split()[0] == "1.50"
    assert table.ratio(copy, copy) is None


def test_spread_is_half_the_range_of_the_replicates():
    row = case_rows()["optimized"]
    assert table.spread(row | {"replicates": {"graph_us": [99.0, 100.0, 101.0]}}) == pytest.approx(1.0)
    for alone in (None, {}, {"graph_us": [5.0]}, {"warm_us": [1.0, 2.0]}):
        assert table.spread(row | {"replicates": alone}) is None


def test_a_grid_of_hidden_sizes_is_one_line():
    """Where each size has its own number of rows; else a line for each number of rows with the most sizes."""
    from harness import plots

    def lines(name):
        found = (row for row in synthetic.gpu_rows(name) if row["implementation"] == "optimized")
        cases = {row["case"]: {"optimized": row} for row in found}
        panel = plots.percent_of_limit(cases).axes[1]
        return [line for line in panel.lines if len(line.get_xdata()) > 2]

    grid = {case.hidden for case in sweep("hidden")}
    (line,) = lines("hidden")
    assert list(line.get_xdata()) == sorted(grid) and len(lines("llm")) > 1


def test_bars_of_the_speedup_figure_have_the_interval_of_the_replicates():
    from harness import plots

    of = case_rows()
    measured = of["optimized"]["speedup"]
    assert plots._ratio(of["reference"], of["optimized"]) == (
        measured["ci_low"], measured["median"], measured["ci_high"])
    low, middle, high = plots._ratio(of["reference"], of["optimized"] | {"speedup": None})
    assert low < middle < high


@pytest.mark.parametrize(("status", "words"), [
    ("OK", "ok"), ("THROTTLED", "throttled"), ("NOISY", "noisy"), ("HOST_BOUND", "host-bound"),
    ("FAIL_PARITY", "FAIL_PARITY"), ("INVALID", "INVALID"), ("SKIPPED", "SKIPPED"),
])
def test_verdict_tells_doubts_from_failures(status, words):
    assert str(table._verdict(synthetic.gpu_row(synthetic.sweep("smoke")[0], "optimized", status=status))) == words


def test_state_of_the_gpu_is_one_line_of_what_is_known():
    def row(case, **state):
        unknown = dict.fromkeys(("sm_mhz", "memory_mhz", "power_w", "temperature_c", "reasons"))
        return {"kind": "case", "case": case, "gpu_state": unknown | state}

    found = [row("a", sm_mhz=1980, power_w=300.2, reasons=[]), row("a", sm_mhz=1980, power_w=300.2, reasons=[]),
             row("b", sm_mhz=1400, power_w=699.7, temperature_c=60, reasons=["sw_power_cap"])]
    assert table.gpu_state(found) == (
        "SM clock 1,400 to 1,980 MHz; at most 700 W; at most 60 °C; sw_power_cap in 1 of 2 cases")
    assert table.gpu_state([row("a")]) is None
    assert table.gpu_state([{"kind": "case", "case": "a", "gpu_state": None}]) is None


def test_report_says_in_what_state_the_gpu_was(gpu_run):
    text = (gpu_run / "REPORT.md").read_text()
    assert "- GPU while it was measured: SM clock 1,817 to 1,975 MHz; at most 512 W" in text
    assert "product bf16 775, fp8 1,390 TFLOP/s" in text
    line = next(line for line in text.splitlines() if line.startswith("| rmsnorm_fwd 4096x8192 bf16 |"))
    assert [cell.strip() for cell in line.split("|")][3] == "0.4" and " to " in line and "| 1940 | OK |" in line
