"""The report's part on norms with quantized outputs."""

import pytest
from matplotlib import image

from harness import peers, plots_norms
from harness.report import compose
from harness.sweeps import sweep
from harness.table import cases
from harness.tests import synthetic


def rows(names=("optimized", "copy")):
    return [synthetic.gpu_row(case, name) for case in sweep("norms") for name in names]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plots")
    return folder, compose(rows(), synthetic.RUNS, folder)


@pytest.mark.parametrize("name", plots_norms.TITLES)
def test_figures_are_drawn(drawn, name):
    folder, text = drawn
    assert image.imread(folder / f"{name}.png")[..., :3].std() > 0.02
    assert f"[![{plots_norms.TITLES[name]}](plots/{name}.png)](plots/{name}.svg)" in text


def test_a_gain_is_the_unfused_time_over_the_fused():
    found = rows(("optimized",))
    for row in found:
        row["graph_us"] = synthetic.timing(30.0 if row["options"].get("path") == "unfused" else 10.0)
    panel = plots_norms.gain(cases(found)).axes[0]
    widths = [bar.get_width() for bar in panel.patches]
    assert len(widths) >= 20 and widths == pytest.approx([3.0] * len(widths))


@pytest.mark.parametrize("turn", (1, -1))
def test_a_gain_is_of_the_path_that_was_asked_for(turn):
    """Where the same was timed by default too, in whatever order; else of the default."""
    found = [row for row in rows(("optimized",)) if not row["options"].get("path", "").endswith("_in_two")]
    for row in found:
        took = {None: 15.0, "unfused": 30.0}.get(row["options"].get("path"), 10.0)
        row["graph_us"] = synthetic.timing(took)
    for kept, gain in ((found, 3.0), ([row for row in found if row["options"].get("path") in (None, "unfused")], 2.0)):
        widths = {round(bar.get_width(), 6) for bar in plots_norms.gain(cases(kept[::turn])).axes[0].patches}
        assert widths == {gain}


def test_rows_without_a_recipe_have_no_such_part(tmp_path):
    found = [synthetic.gpu_row(case, name) for case in sweep("unlisted")[:20] for name in ("optimized", "copy")]
    assert "Norms with quantized outputs" not in compose(found, synthetic.RUNS, tmp_path)


def test_peers_are_found_by_recipe_and_orientation():
    """fp8d and fp8c are delayed and current scaling, rc both orientations; nothing stands beside other options."""
    found = {row["case"]: row for row in rows(("optimized",))}

    def peer(text):
        return peers.best(found[text])

    delayed, both = peer("rmsnorm_fwd 4096x4096 bf16 fp8_delayed"), peer(
        "rmsnorm_fwd 4096x4096 bf16 fp8_delayed orientation=both")
    assert delayed and both and delayed[1] < both[1]
    assert peer("rmsnorm_fwd 4096x4096 bf16 fp8_current")[1] > delayed[1]
    assert peer("rmsnorm_fwd 4096x4096 bf16 mxfp8") is None
    assert peer("rmsnorm_fwd 4096x8192 bf16 fp8_current orientation=columnwise") is None
    assert peer("rmsnorm_fwd 4096x4096 bf16 fp8_current path=unfused") is None
