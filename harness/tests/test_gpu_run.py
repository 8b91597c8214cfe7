"""Runs on a GPU: what a row holds, what the parent never does, two devices, a kernel that takes the GPU away."""

import io
import subprocess
import sys
from functools import partial

import pytest
from rich.console import Console

from harness import folder, rows
from harness.environment import ROOT
from harness.options import Options
from harness.place import Place, of_gpus
from harness.progress import Reporter
from harness.runner import Run
from harness.tests import bad_gpu
from harness.telemetry import visible_devices

pytestmark = pytest.mark.gpu
CASES = ("rmsnorm_fwd 64x512 bf16", "rmsnorm_bwd 64x512 bf16")


def run(out, place, names, **fields):
    """Exit code, and (case, implementation) -> row."""
    options = Options(names=CASES, implementations=names, out=out, **fields)
    code = Run(options, place, Reporter(Console(file=io.StringIO()))).execute()
    found = rows.read(out / "rows.jsonl")
    assert len(set(map(rows.identity, found))) == len(found)
    return code, {(row["case"], row["implementation"]): row for row in found}


@pytest.mark.parametrize(("harm", "status"), [("assert", "CRASH"), ("sleep", "TIMEOUT")])
def test_a_kernel_that_takes_the_gpu_away_costs_its_own_rows(tmp_path, harm, status):
    place = Place("cuda", (0,), partial(bad_gpu.make, harm))
    code, found = run(tmp_path / "run", place, ("reference", "compiled", "optimized"), timeout_s=20.0)
    assert code == 1 and len(found) == 6
    for (_, name), row in found.items():
        assert row["status"] == status if name == "compiled" else row["graph_us"], row["reason"]


@pytest.mark.skipif(len(visible_devices()) < 2, reason="needs two GPUs; NVML shows fewer")
def test_two_gpus_share_one_run(tmp_path):
    place = of_gpus(Options(devices=(0, 1)), visible_devices())
    code, found = run(tmp_path / "run", place, ("reference", "optimized"))
    assert code == 0 and len(found) == 4
    assert {entry["device_index"] for entry in folder.describe(tmp_path / "run")} == {0, 1}


def test_what_does_not_fit_allocates_nothing(tmp_path):
    options = Options(names=("rmsnorm_fwd 4194304x65536 bf16",), implementations=("optimized",), out=tmp_path / "run")
    place = of_gpus(Options(), visible_devices())
    assert Run(options, place, Reporter(Console(file=io.StringIO()))).execute() == 0
    (row,) = rows.read(tmp_path / "run" / "rows.jsonl")
    assert row["status"] == "OOM" and "GB are free" in row["reason"] and row["seconds"]["inputs"] == 0


def test_real_gpu_run(tmp_path):
    names = ("reference", "optimized", "copy")
    options = Options(names=("rmsnorm_fwd 4096x4096 bf16",), implementations=names, out=tmp_path / "run")
    place = of_gpus(options, visible_devices())
    assert Run(options, place, Reporter(Console(file=io.StringIO()))).execute() == 0
    found = {row["implementation"]: row for row in rows.read(tmp_path / "run" / "rows.jsonl")}
    ours = found["optimized"]
    assert ours["status"] in ("OK", "NOISY") and ours["parity"]["ok"]
    assert 10 < ours["graph_us"]["median"] < ours["reference_us"]
    assert 5 < ours["percent_of_limit"] <= 105
    assert ours["kernel"]["registers"] and ours["host_us"] and ours["cold_us"]["n"] >= 30
    assert ours["rotation"]["inputs"] > 1 and ours["rotation"]["calls"] >= 64


def test_the_parent_of_a_real_gpu_run_has_no_cuda(tmp_path):
    """Not even the driver is initialized there: asked for its context, it says that it is not (error 3)."""
    script = (
        "import sys, torch\n"
        "from harness.__main__ import main\n"
        "from cuda.bindings import driver\n"
        "code = main(sys.argv[1:])\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert int(driver.cuCtxGetCurrent()[0]) == 3, 'the driver was initialized'\n"
        "sys.exit(code)\n"
    )
    words = ["bench", "--case", "rmsnorm_fwd 64x512 bf16", "--out", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-c", script, *words], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
