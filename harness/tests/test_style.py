"""How figures look: nothing is cut off."""

import pytest

from harness import style

NAMES = [f"torch 2.{n}.0 eager, separate ops" for n in range(9)]


def inside(artist, figure):
    """Whether all that is drawn of something is on the page."""
    box = artist.get_window_extent()
    return box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 + 1 and box.y1 <= figure.bbox.y1 + 1


@pytest.fixture
def kept(monkeypatch):
    """Figures stay open after they were saved."""
    monkeypatch.setattr(style.plt, "close", lambda figure: None)
    yield
    monkeypatch.undo()
    style.plt.close("all")


@pytest.mark.parametrize("count", (1, 4, 9))
@pytest.mark.parametrize("width", (3.0, 5.2))
def test_a_legend_is_on_the_page_and_above_the_panels(count, width, kept, tmp_path):
    figure, (panel,) = style.panels(1, width=width)
    for name in NAMES[:count]:
        panel.plot([1, 2], label=name)
    style.legend(figure, [panel])
    style.save(figure, tmp_path, "a", "Title", "NVIDIA H200")
    (made,) = figure.legends
    assert len(made.get_texts()) == count and inside(made, figure)
    assert made.get_window_extent().y0 >= panel.get_window_extent().y1
    assert panel.get_window_extent().height > 1.8 * figure.dpi


def test_a_long_origin_takes_more_lines_instead_of_running_off_the_page(kept, tmp_path):
    figure, (panel,) = style.panels(1)
    style.save(figure, tmp_path, "a", "Title", " · ".join(f"commit {n:010}" for n in range(12)))
    foot = figure.texts[-1]
    assert inside(foot, figure) and foot.get_text().count("\n") >= 1
    assert foot.get_window_extent().y1 <= panel.xaxis.get_tightbbox().y0
