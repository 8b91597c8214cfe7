"""The report's part on quantization: what is lost, what it costs, and a table of both."""

from matplotlib import image
import pytest

from harness import plots_quantization as quantization
from harness import style
from harness.report import compose
from harness.sweeps import llm
from harness.table import cases
from harness.tests import synthetic

PARITY = {
    "ok": True, "reason": "",
    "errors": {"output": {"max": 0.06, "rms": 0.01, "reference_max": 0.06, "reference_rms": 0.01}},
    "counts": {"output": {"codes": 8, "code_mismatches": 1, "scales": 4, "scale_mismatches": 2, "padding": 3},
               "amax": {"amax_mismatches": 4}},
    "quantization": {"output": {"rowwise": {"max": 0.06, "rms": 0.01, "snr_db": 31.5, "flushed": 0.0},
                                "columnwise": {"max": 0.05, "rms": 0.02, "snr_db": 30.5, "flushed": 0.015}}},
}


def rows(**changes):
    quantized = [case for case in llm() if case.recipe != "none"]
    return [synthetic.gpu_row(case, name, **({} if name == "copy" else {"parity": PARITY}) | changes)
            for case in quantized for name in synthetic.SPEED]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plots")
    return folder, compose(rows(), synthetic.RUNS, folder)


@pytest.mark.parametrize("name", quantization.TITLES)
def test_figures_are_drawn(drawn, name):
    folder, text = drawn
    assert image.imread(folder / f"{name}.png")[..., :3].std() > 0.02
    assert f"[![{quantization.TITLES[name]}](plots/{name}.png)](plots/{name}.svg)" in text


def test_the_table_has_time_loss_and_mismatches(drawn):
    _, text = drawn
    name = "quantize 8192x4096 bf16 mxfp8 orientation=both"
    line = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells[1] == "optimized" and cells[4:] == ["30.5", "0.060", "0.0200", "1.50%", "10", "OK"]
    assert float(cells[3]) > 0.9


def test_a_copy_of_what_crosses_the_pins_stands_beside():
    grouped = cases(rows())
    names = {recipe: f"quantize 8192x4096 bf16 {recipe}" for recipe in ("fp8_delayed", "fp8_current")}
    ratios = {recipe: quantization._over_copy(grouped[name]["optimized"], grouped[name]["copy"])
              for recipe, name in names.items()}
    assert ratios["fp8_delayed"][0] == ratios["fp8_delayed"][1]
    assert ratios["fp8_current"][1] == pytest.approx(ratios["fp8_current"][0] * 3 / 5, rel=1e-6)


def test_norms_alone_have_no_such_part(tmp_path):
    assert quantization.section(cases(synthetic.gpu_rows("smoke")), tmp_path, "origin") == []


def test_figures_of_norms_are_left_out_where_there_are_none(drawn):
    _, text = drawn
    assert "## Time against bytes" in text and "## Speed-up" not in text and "was checked against" not in text


def test_options_are_words_on_an_axis():
    name = "quantize 64x32 bf16 nvfp4 orientation=both stochastic_rounding=True with_rht=True"
    assert style.short(name) == "quantize 64x32 bf16 nvfp4 both stochastic rht"
    assert style.short("rmsnorm_fwd 64x32 bf16 gamma_dtype=fp32") == "rmsnorm_fwd 64x32 bf16 gamma_dtype=fp32"


def test_rows_that_were_only_checked_or_failed_are_told(tmp_path):
    failed = rows(graph_us=None, status="CRASH", parity=None)[:3]
    text = "\n".join(quantization.section(cases(failed), tmp_path, "origin"))
    assert "| optimized |  |  |  |  |  |  |  | CRASH |" in text
    assert (tmp_path / "quantization_accuracy.png").exists() and not (tmp_path / "quantization_time.png").exists()


def test_accuracy_is_that_of_the_formats():
    found = {(distribution, recipe): (size, snr_db) for distribution, recipe, size, snr_db in quantization.accuracies()}
    assert len(found) == 3 * 7
    for distribution in quantization.DISTRIBUTIONS:
        assert found[distribution, "MXFP8 E4M3"] == pytest.approx((1.03125, 31.5), abs=0.5)
        assert found[distribution, "NVFP4"] == pytest.approx((0.5625, 20.5), abs=0.6)
        assert found[distribution, "NVFP4, stochastic"][1] < found[distribution, "NVFP4"][1] - 2
        assert found[distribution, "FP8 E5M2, current scaling"][1] == pytest.approx(25.5, abs=0.5)
