"""The example trains, its curves agree, and it says so where they do not."""

import sys
import subprocess

import pytest

import reference
from harness import __main__ as command_line
from harness.environment import ROOT
from harness.examples import residual_block


def test_it_runs_from_the_command_line():
    done = subprocess.run([sys.executable, "-m", "harness", "example", "residual_block", "--table", "reference",
                           "--steps", "60"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["steps", "reference", "torch"] and len(lines) == 6
    first, last = (float(line.split()[1]) for line in (lines[2], lines[4]))
    assert last < 0.9 * first and lines[-1].startswith("The losses agree: at most 0.0")


@pytest.mark.parametrize("recipe", ["fp8_delayed", "mxfp8"])
def test_it_learns_with_a_recipe(recipe):
    losses = residual_block.train(reference, steps=20, recipe=residual_block.RECIPES[recipe])
    assert losses[-1] < 0.95 * losses[0]


def test_curves_that_differ_are_told_apart():
    same, distance = residual_block.agree({"one": [4.0] * 40, "two": [4.0] * 20 + [3.8] * 20}, 0.02)
    assert not same and distance == pytest.approx(0.05)
    assert residual_block.agree({"one": [4.0] * 40, "two": [4.0] * 20 + [3.97] * 20}, 0.02)[0]


def test_one_step_cannot_fall():
    assert residual_block.run(steps=1, tables="reference") == 0


def test_wrong_arguments(capsys):
    assert command_line.main(["example", "residual_block", "--steps", "0"]) == 2
    assert "--steps 0 is not at least 1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command_line.main(["example", "another"])


def test_a_table_that_does_not_run_here_is_told(capsys, monkeypatch):
    monkeypatch.setattr(residual_block.torch.cuda, "is_available", lambda: False)
    assert command_line.main(["example", "residual_block", "--table", "optimized"]) == 1
    assert "needs a CUDA GPU" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", list(residual_block.RECIPES))
def test_both_tables_learn_alike(recipe, capsys):
    import optimized
    from harness.tests.gpu import compile_ahead_of
    compile_ahead_of(lambda: residual_block.train(optimized, steps=2, recipe=residual_block.RECIPES[recipe],
                                                  device="cuda"))
    assert residual_block.run(steps=40, recipe=recipe) == 0, capsys.readouterr().out
