"""The comparison with NVBench: on a virtual clock with an NVBench of our own, and on a GPU with NVIDIA's."""

import csv
import json
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import cuda
import pytest

from harness import nvbench, nvbench_kernels
from harness.tests.fake_device import FakeDevice, FakeGraph
from harness.tests.project import ROOT

STREAM = 1234
SETTERS = [
    f"set_{name}" for name in
    ("name", "stopping_criterion", "criterion_param_int64", "min_samples", "batch_target_time")]
TIMES_US = {"copy 8x8": 4.0, "product 8x8": 150.0}


def summary(tag, value, kind="float64"):
    """As NVBench writes it."""
    return {"tag": tag, "name": "x", "data": [{"name": "value", "type": kind, "value": value}]}


class FakeNvbench:
    """Runs what is registered, and reports `factor` times what it launched on the device, in seconds. It goes on
    after an exception, as NVBench does."""

    def __init__(self, device, factor=1.0):
        self.device, self.factor, self.registered = device, factor, []

    def register(self, run):
        benchmark = Mock(spec=SETTERS)
        self.registered.append((benchmark, run))
        return benchmark

    def run_all_benchmarks(self, argv):
        found = []
        for benchmark, run in self.registered:
            state = SimpleNamespace(summaries=[], exec=lambda launch, batched: state.summaries.extend(
                self._measured(launch, batched)))
            skipped = False
            try:
                run(state)
            except Exception:
                skipped = True
            found.append({"name": benchmark.set_name.call_args[0][0], "states": [
                {"name": "Device=0", "summaries": state.summaries or None, "is_skipped": skipped}]})
        with open(argv[argv.index("--json") + 1], "w") as file:
            json.dump({"benchmarks": found}, file)

    def _measured(self, launch, batched):
        before = self.device.launched_us
        launch(SimpleNamespace(get_stream=lambda: SimpleNamespace(addressof=lambda: STREAM)))
        us = (self.device.launched_us - before) * self.factor
        names = ["nv/cold/time/gpu/median", *(["nv/batch/time/gpu/mean"] if batched else [])]
        return [summary("nv/cold/sample_size", "10", "int64"), *(summary(name, us / 1e6) for name in names)]


class Device(FakeDevice):
    """Adds up what was launched. On STREAM while `on` is in force, and only one thing may be waited for: nothing."""

    launched_us, stream = 0.0, 0

    def launch(self, us, issue_us=None):
        self.launched_us += us
        super().launch(us, issue_us)

    def wait(self):
        assert self.stream == 0, "waiting behind NVBench's blocker never ends"
        super().wait()

    @contextmanager
    def on(self, stream):
        before, self.stream = self.stream, stream
        yield
        self.stream = before


@pytest.fixture
def device():
    return Device(tick_us=0.01)


@pytest.fixture
def engine(device):
    def capture(calls, rotation):
        graph = FakeGraph(device, calls, rotation)
        return graph, graph.results

    return nvbench.Engine(device, device, capture, device.on)


def kernels(device, streams=None, turns=3):
    def make(us):
        def call():
            if streams is not None:
                streams.append(device.stream)
            device.launch(us)
            return ()

        return nvbench.Kernel(1000, [call] * turns)

    return {name: partial(make, us) for name, us in TIMES_US.items()}


def test_the_same_calls_take_the_same_time(device, engine):
    rows = nvbench.compare(FakeNvbench(device), engine, kernels(device))
    assert [row["kernel"] for row in rows] == list(TIMES_US)
    for row, us in zip(rows, TIMES_US.values()):
        assert row["bytes"] == 1000
        for column in ("nvbench_cold", "ours_cold", "nvbench_batch", "ours_batch", "ours_graph", "ours_read_flush"):
            assert row[f"{column}_us"] == pytest.approx(us, rel=2e-3)
        assert row["cold_ratio"] == pytest.approx(1, abs=5e-3) and row["batch_ratio"] == pytest.approx(1, abs=5e-3)
    assert nvbench.disagreements(rows) == []


@pytest.mark.parametrize(("factor", "count"), [(1.02, 0), (0.98, 0), (1.04, 4), (0.96, 4), (float("nan"), 4)])
def test_more_than_three_percent_apart_is_said(device, engine, factor, count):
    rows = nvbench.compare(FakeNvbench(device, factor), engine, kernels(device))
    assert len(nvbench.disagreements(rows)) == count


def test_calls_go_to_the_stream_of_nvbench(device, engine):
    streams = []
    nvbench.compare(FakeNvbench(device), engine, kernels(device, streams))
    assert set(streams) == {0, STREAM} and device.stream == 0


def test_a_batch_is_a_graph_of_a_millisecond(engine, device):
    def calls(us, turns=1):
        return engine.graph([lambda: device.launch(us) or ()] * turns)[1]

    assert (calls(150.0), calls(4.0), calls(0.1), calls(5000.0, turns=3)) == (7, 250, nvbench.MOST_CALLS, 3)


def test_an_exception_of_a_kernel_is_the_reason(device, engine):
    def broken():
        raise ValueError("no such shape")

    with pytest.raises(nvbench.Failed, match="broken: ValueError: no such shape"):
        nvbench.compare(FakeNvbench(device), engine, kernels(device) | {"broken": broken})


def test_a_figure_that_is_not_there_is_missed(device, engine):
    bench = FakeNvbench(device)
    bench._measured = lambda launch, batched: [summary("nv/cold/time/gpu/mean", 1.0)]
    with pytest.raises(nvbench.Failed, match="NVBench reported no nv/cold/time/gpu/median"):
        nvbench.compare(bench, engine, kernels(device))


def test_an_nvbench_that_does_not_start_is_reported(device, engine):
    bench = FakeNvbench(device)
    bench.run_all_benchmarks = lambda argv: 1 / 0
    with pytest.raises(nvbench.Failed, match="NVBench: division by zero"):
        nvbench.compare(bench, engine, kernels(device))


def test_figures_are_numbers_with_a_value():
    state = {"summaries": [summary("a", 1.5), summary("b", "7", "int64"), summary("c", None)]}
    report = {"benchmarks": [{"name": "one", "states": [state]}, {"name": "two", "states": [{"summaries": None}]}]}
    assert nvbench.figures(report) == {"one": {"a": 1.5}, "two": {}}


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (0.9, 1)])
def test_the_command_prints_and_writes(engine, factor, code, tmp_path, capsys, monkeypatch):
    fake = FakeNvbench(engine.device, factor)
    monkeypatch.setattr(nvbench, "missing", lambda: "")
    monkeypatch.setitem(sys.modules, "cuda.bench", fake)
    monkeypatch.setattr(cuda, "bench", fake, raising=False)
    monkeypatch.setattr(nvbench_kernels, "engine", lambda: engine)
    monkeypatch.setattr(nvbench_kernels, "kernels", lambda: kernels(engine.device))
    out = tmp_path / "new" / "nvbench.csv"
    assert nvbench.main(["--out", str(out)]) == code
    rows = list(csv.DictReader(out.open()))
    assert [row["kernel"] for row in rows] == list(TIMES_US) and float(rows[0]["ours_cold_us"]) == 4.0
    shown = capsys.readouterr().out
    assert ("All 4 ratios are within 3%." in shown) == (code == 0)
    assert ("copy 8x8, cold: 4.00 µs here, 3.60 in NVBench" in shown) == (code == 1)


def test_what_is_missing_is_said(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert nvbench.main([]) == 3
    assert capsys.readouterr().err == "harness.nvbench: no CUDA GPU was found\n"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(nvbench.importlib.util, "find_spec", lambda name: None)
    assert nvbench.main([]) == 3
    assert "cuda-bench is not installed" in capsys.readouterr().err


def test_ten_kernels_are_compared():
    names = list(nvbench_kernels.kernels())
    assert len(names) == 10 and sum(name.startswith("optimized") for name in names) == 7
    assert {name.split()[0] for name in names} == {"copy", "optimized", "product"}


@pytest.mark.gpu
def test_the_engine_agrees_with_nvbench(tmp_path):
    """In a process of its own: NVBench may leave the device reset behind."""
    reason = nvbench.missing()
    if reason:
        pytest.skip(reason)
    out = tmp_path / "nvbench.csv"
    done = subprocess.run(
        [sys.executable, "-m", "harness.nvbench", "--out", str(out)], cwd=ROOT, capture_output=True, text=True,
        timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(csv.DictReader(out.open()))) == 10
