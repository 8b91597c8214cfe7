"""The README's examples run as they stand."""

import re

from harness.tests.project import ROOT


def test_examples_of_python_run_one_after_another(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    held = {}
    for block in blocks:
        exec(block, held)
    assert held["back"].shape == held["x"].shape and held["back"].dtype == held["x"].dtype
    assert "MXFP8Tensor(shape=(4096, 8192)" in capsys.readouterr().out
