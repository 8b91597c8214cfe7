"""What a run shows while it goes on."""

import io

import pytest
from rich.console import Console

from harness.progress import Reporter


@pytest.mark.parametrize("width", (60, 80, 120))
def test_a_long_name_is_cut_and_not_the_figures(width):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    reporter = Reporter(console)
    reporter.start(30, 20.0)
    reporter.begin("rmsnorm_fwd 64x512 bf16")
    reporter.finish("rmsnorm_fwd 64x512 bf16", [], 10.0)
    reporter.begin("layernorm_bwd 33x1023 fp32 layout=expanded zero_centered_gamma=True")
    reporter.stop()
    assert " 1/30 cases " in console.file.getvalue() and " 0:00 left l" in console.file.getvalue()


def test_time_left_is_that_of_the_steps_and_not_of_what_came_before(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("harness.progress.time.monotonic", lambda: now[0])
    text = io.StringIO()
    reporter = Reporter(Console(file=text))
    reporter.start(10, 100.0)
    now[0] = 50.0
    reporter.begin("first")
    now[0] = 60.0
    reporter.finish("first", [], 10.0)
    assert "1:30 left" in text.getvalue()
