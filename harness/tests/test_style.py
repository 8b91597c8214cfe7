"""How figures look: nothing is cut off, and what differs looks different."""

import pytest

from harness import plots_cpu, style
from harness.table import cases
from harness.tests import synthetic

NAMES = [f"torch 2.{n}.0 eager, separate ops" for n in range(9)]


def inside(artist, figure):
    """Whether all that is drawn of something is on the page."""
    box = artist.get_window_extent()
    return box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 + 1 and box.y1 <= figure.bbox.y1 + 1


@pytest.fixture
def saved(monkeypatch, tmp_path):
    """Saves a figure, and lays it out again as it was drawn."""
    close = style.plt.close
    monkeypatch.setattr(style.plt, "close", lambda figure: None)

    def save(figure, origin):
        style.save(figure, tmp_path, "a", "Title", origin)
        figure.set_dpi(150)
        figure.canvas.draw()

    yield save
    close("all")


@pytest.mark.parametrize("count", (1, 4, 9))
@pytest.mark.parametrize("width", (3.0, 5.2))
def test_a_legend_is_on_the_page_and_above_the_panels(count, width, saved):
    figure, (panel,) = style.panels(1, width=width)
    for name in NAMES[:count]:
        panel.plot([1, 2], label=name)
    style.legend(figure, [panel])
    saved(figure, "NVIDIA H200")
    (made,) = figure.legends
    assert len(made.get_texts()) == count and inside(made, figure)
    assert made.get_window_extent().y0 >= panel.get_window_extent().y1
    assert panel.get_window_extent().height > 1.8 * figure.dpi


def test_a_long_origin_takes_more_lines_instead_of_running_off_the_page(saved):
    figure, (panel,) = style.panels(1)
    saved(figure, " · ".join(f"commit {n:010}" for n in range(12)) + 12 * " and 0123456789")
    foot = figure.texts[-1]
    assert inside(foot, figure) and foot.get_text().count("\n") >= 1
    assert foot.get_window_extent().y1 <= panel.xaxis.get_tightbbox().y0


def test_no_two_of_many_series_look_alike():
    looks = [tuple(style.look(index).values()) for index in range(len(style.COLOURS) * len(style.MARKERS))]
    assert len(set(looks)) == len(looks)


@pytest.mark.parametrize(("low", "high"), [
    (0.97, 1.08), (1, 1), (0.85, 1.3), (3.2, 4.6), (1.02, 1.45), (7.2, 9.4), (0.5, 6), (2, 60), (5, 2000), (1, 1e6)])
def test_a_log_axis_has_several_ticks_in_its_range(low, high):
    figure, (panel,) = style.panels(1)
    style.plain_log(panel, "y", low, high)
    ticks, (bottom, top) = panel.get_yticks(), panel.get_ylim()
    assert 2 <= len(ticks) <= 12 and bottom <= min(ticks) and max(ticks) <= top
    assert len({label.get_text() for label in panel.get_yticklabels()}) == len(ticks)
    style.plt.close(figure)


def test_times_of_a_cpu_are_on_a_log_axis_with_whole_names(saved):
    figure = plots_cpu.time(cases(synthetic.cpu_rows()))
    saved(figure, "CPU")
    (panel,) = figure.axes
    assert panel.get_xscale() == "log" and all(inside(label, figure) for label in panel.get_yticklabels())
    drawn = {line.get_label(): len(line.get_xdata()) for line in panel.lines}
    assert drawn["reference"] == len(panel.get_yticks()) and 0 < drawn["torch.compile"] < drawn["reference"]
