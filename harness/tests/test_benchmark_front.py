"""The pytest-benchmark front on a backend whose samples are known: tables and JSON show those and no other."""

import json
from pathlib import Path

import pytest

from harness import benchmarks
from harness.cases import PRODUCTS, Case, family_of
from harness.implementations import IMPLEMENTATIONS, Implementation
from harness.sweeps import smoke
from harness.tests import cheats

pytest.importorskip("pytest_benchmark")
pytest_plugins = ("pytester",)
pytestmark = pytest.mark.filterwarnings("ignore::pytest_benchmark.logger.PytestBenchmarkWarning")
FILE = Path(__file__).with_name("test_benchmarks.py")
CASE, OTHER = Case("rmsnorm_fwd", (4, 32)), Case("layernorm_fwd", (4, 32))
SAMPLES = {"reference": [7.0, 9.0, 8.0], "honest": [4.0, 2.0, 3.0], "broken": [1.0]}


class Backend:
    """Takes SAMPLES as the time of everything; `timed` says what was timed together. `lost` costs the device."""

    name, gpu, ceilings, lost = "cpu", "fake", None, None

    def __init__(self):
        self.timed = []

    def alive(self):
        return self.lost is None

    def free_bytes(self):
        return None

    def free_bytes(self):
        return None

    def time(self, case, call, runs):
        self.timed.append((case, [subject.name for subject, _ in runs]))
        for subject, _ in runs:
            with subject.guarded(self):
                if subject.name == self.lost:
                    raise RuntimeError("illegal address")
                subject.fields["graph_us"] = dict.fromkeys(("median", "p20", "p80", "min", "ci_low", "ci_high"), 2.0)
                subject.samples = {"graph_us": SAMPLES[subject.name], "warm_us": [99.0]}


@pytest.fixture
def backend(monkeypatch):
    """What an inner session measures on: four implementations of one case, and the reference of another."""
    made = []
    for name, run in (("honest", cheats.right), ("broken", cheats.is_constant)):
        monkeypatch.setitem(IMPLEMENTATIONS, name, Implementation(name, lambda: None, lambda case, call, run=run: run))
    monkeypatch.setitem(IMPLEMENTATIONS, "absent", Implementation("absent", lambda: "not installed", None))
    monkeypatch.setattr(benchmarks, "chosen", lambda sweep: [
        *((CASE, name) for name in ("reference", "honest", "broken", "absent")), (OTHER, "reference")])
    monkeypatch.setattr(benchmarks, "backend", lambda index: made.append(Backend()) or made[-1])
    monkeypatch.setattr("pytest_benchmark.plugin.get_cpu_info", dict)  # it takes a second
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    return made


@pytest.fixture
def session(backend, pytester):
    """Runs pytest with the arguments given; its benchmarks by their names, and what it printed."""

    def run(*arguments):
        report = pytester.path / "report.json"
        report.unlink(missing_ok=True)
        done = pytester.runpytest_inprocess(
            "-p", "no:cacheprovider", f"--benchmark-json={report}", "--benchmark-storage=saved", *arguments, FILE)
        text = report.read_text() if report.exists() else ""
        return done, {one["param"]: one for one in json.loads(text)["benchmarks"]} if text else {}

    return run


def test_samples_pass_one_by_one_on_the_clock():
    clock = benchmarks.Replay()
    clock.load([2e6, 3e6])
    seen = [clock()]
    for _ in range(3):
        clock.advance()
        seen.append(clock())
    assert seen == [0.0, 2.0, 5.0, 5.0]


def test_a_plain_run_measures_nothing(session, backend):
    done, found = session()
    done.assert_outcomes(skipped=5)
    done.stdout.fnmatch_lines(["*measures only with --benchmark-only or --benchmark-enable"])
    assert not backend and not found


def test_benchmarks_show_the_samples_of_the_engine(session, backend):
    done, found = session("--benchmark-only")
    done.assert_outcomes(passed=3, failed=1, skipped=1)
    done.stdout.fnmatch_lines(["*benchmark 'rmsnorm_fwd 4x32 bf16': 2 tests*", "*SKIPPED: not installed"])
    assert done.ret == 1
    ours = found["rmsnorm_fwd 4x32 bf16 honest"]
    assert ours["stats"]["data"] == pytest.approx([4e-6, 2e-6, 3e-6]) and ours["stats"]["iterations"] == 1
    assert ours["extra_info"]["column"] == "graph_us" and ours["extra_info"]["graph_us"] == 2.0
    assert [ours["extra_info"][name] for name in ("function", "implementation", "shape", "dtype", "status")] == [
        "rmsnorm_fwd", "honest", "4x32", "bf16", "OK"]
    assert ours["extra_info"]["bytes"] > 0 and ours["options"]["timer"] == str(benchmarks.Replay())


def test_a_case_is_timed_once_with_all_its_implementations(session, backend):
    session("--benchmark-only")
    assert [one.timed for one in backend] == [[(CASE, ["reference", "honest"]), (OTHER, ["reference"])]]


def test_what_is_not_selected_is_not_measured(session, backend):
    done, found = session("--benchmark-only", "-k", "rmsnorm and honest")
    done.assert_outcomes(passed=1, deselected=4)
    assert [one.timed for one in backend] == [[(CASE, ["honest"])]] and len(found) == 1


def test_a_wrong_kernel_fails_its_benchmark(session):
    done, found = session("--benchmark-enable", "-k", "broken")
    done.assert_outcomes(failed=1, deselected=4)
    done.stdout.fnmatch_lines(["*AssertionError: FAIL_PARITY: y: constant*"])
    assert not found


def test_a_lost_device_fails_one_benchmark_and_skips_the_rest(session, monkeypatch):
    monkeypatch.setattr(Backend, "lost", "honest")
    done, _ = session("--benchmark-only", "-k", "reference or honest")
    done.assert_outcomes(failed=1, skipped=2, deselected=2)
    done.stdout.fnmatch_lines(["*The GPU stopped answering at rmsnorm_fwd 4x32 bf16, honest: RuntimeError: illegal*"])


def test_two_runs_compare(session, monkeypatch):
    again = ("--benchmark-only", "-k", "honest", "--benchmark-compare", "--benchmark-compare-fail=median:5%")
    session("--benchmark-only", "-k", "honest", "--benchmark-autosave")
    done, _ = session(*again)
    assert done.ret == 0
    done.stdout.fnmatch_lines(["*honest] (0001*", "*honest] (NOW)*"])
    monkeypatch.setitem(SAMPLES, "honest", [sample * 1.1 for sample in SAMPLES["honest"]])
    done, _ = session(*again)
    assert done.ret == pytest.ExitCode.INTERNAL_ERROR  # so pytest-benchmark says it
    done.stderr.fnmatch_lines(["*PerformanceRegression: Performance has regressed."])


def test_workers_of_xdist_measure_nothing(session, backend, monkeypatch):
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    done, _ = session("--benchmark-enable")
    done.assert_outcomes(skipped=5)
    done.stdout.fnmatch_lines(["*pytest-benchmark is disabled*"])
    assert not backend


def test_an_unknown_sweep_is_refused_with_those_known(session):
    done, _ = session("--sweep", "smok")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*--sweep: invalid choice: 'smok'*smoke*llm*"])


def test_without_a_gpu_the_sweep_is_cut_for_a_cpu(monkeypatch):
    monkeypatch.setattr(benchmarks.torch.cuda, "is_available", lambda: False)
    found = benchmarks.chosen("smoke")
    assert {name for _, name in found} == {"reference", "compiled"} and len({case for case, _ in found}) == len(smoke())
    assert all(family_of(case.function).work(case).bytes <= 1 << 24 for case, _ in found)


def test_with_a_gpu_every_implementation_of_the_profile_is_measured(monkeypatch):
    monkeypatch.setattr(benchmarks.torch.cuda, "is_available", lambda: True)
    found = benchmarks.chosen("smoke")
    assert [name for _, name in found[:3]] == ["reference", "optimized", "copy"]
    of_products = {name for case, name in found if case.function in PRODUCTS}
    assert of_products == {"optimized", "cublas", "unfused"} and {case for case, _ in found} == set(smoke())
