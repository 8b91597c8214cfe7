"""Whether NVBench and the engine find the same times for the same calls: python -m harness.nvbench --out FILE.csv

NVBench is NVIDIA's harness for C++ kernels; its Python package `cuda.bench` is optional here. Two of its figures are
compared with ours, each with what is like it:

- cold: the median of single calls. NVBench writes over as many bytes as L2 holds, waits, blocks the stream, and
  times one call. The engine does the same here (`LikeNvbench`), though its own cold column flushes by reading,
  because a written flush leaves dirty lines, whose eviction falls into the sample. That column stands beside.
- batch: the mean of calls back to back. The call is a CUDA graph of about 1 ms of calls on one input, for both: NVBench
  blocks the stream for two launches only, and after them would time the host wherever a call is shorter to run than
  to issue from Python.

NVBench drives: within its benchmark the engine measures once before it and once after, so that drift falls on both.
"""

import argparse
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.timing import Meter, Queue, pooled

AGREEMENT = 0.03
COLD_SAMPLES, BATCH_S, BATCH_US = 600, 0.05, 1000.0
MOST_CALLS = 256  # of one graph
COLD_MEDIAN, BATCH_MEAN = "nv/cold/time/gpu/median", "nv/batch/time/gpu/mean"


class Failed(Exception):
    """NVBench gave no figure; one sentence says why."""


@dataclass(frozen=True)
class Kernel:
    """`calls` compute the same, each on inputs of its own, more in all than L2 holds; `bytes` is what one of them
    moves."""

    bytes: int
    calls: list[Callable[[], Any]]


class Engine:
    """Our figures, in µs. `like` is a device whose samples are cold in NVBench's way, `device` our own; `capture` is
    that of harness.device; `on(stream)` is a context in which calls go to the stream with this address."""

    def __init__(self, device: Any, like: Any, capture: Callable, on: Callable[[int], Any]):
        self.device, self.like, self.capture, self.on = device, like, capture, on

    def cold(self, call: Callable[[], Any]) -> Meter:
        """Single calls, measured as NVBench does."""
        return self._run(Queue(self.like, [call], cold=True), COLD_SAMPLES // 2)

    def read_flush(self, call: Callable[[], Any]) -> Meter:
        """Our own cold column."""
        return self._run(Queue(self.device, [call] * 20, cold=True), 100)

    def batch(self, graph: Any, calls: int) -> Meter:
        """Replays back to back of a graph of `calls` calls; per call."""
        return self._run(Queue(self.device, [graph.replay] * 10), 100, calls)

    def graph(self, calls: list[Callable[[], Any]], replay_us: float = BATCH_US) -> tuple[Any, int]:
        """A graph of about `replay_us` of calls in turns, and how many of them: at least each once."""
        about = self._run(Queue(self.device, [calls[0]] * 5), 5).timing().min
        count = min(MOST_CALLS, max(1, round(replay_us / max(about, 0.1))))
        count = -(-count // len(calls)) * len(calls)
        graph, _ = self.capture([calls[i % len(calls)] for i in range(count)], len(calls))
        graph.replay()
        return graph, count

    def _run(self, queue: Queue, samples: int, calls: int = 1) -> Meter:
        meter = Meter(queue, samples, 0.0, calls)
        while not meter.done:
            meter.step()
        return meter


@dataclass
class Comparison:
    """One kernel, measured by both; `make` builds it when its turn comes."""

    engine: Engine
    name: str
    make: Callable[[], Kernel]
    ours: dict[str, float] = field(default_factory=dict)
    error: str = ""

    def register(self, bench: Any) -> None:
        """Two benchmarks of NVBench: one for the cold figure, one for the batch."""
        for title, run in (("cold", self._cold), ("batch", self._batch)):
            benchmark = bench.register(self._reported(run))
            benchmark.set_name(f"{self.name}|{title}")
            benchmark.set_stopping_criterion("sample-count")
            count = COLD_SAMPLES if title == "cold" else 10  # the batch measures cold first, too
            benchmark.set_criterion_param_int64("target-samples", count)
            benchmark.set_min_samples(10)
            benchmark.set_batch_target_time(BATCH_S)

    def row(self, theirs: dict[str, dict[str, float]]) -> dict[str, Any]:
        """One line of the CSV, from NVBench's figures by benchmark and tag. Raises Failed where one is missing."""
        if self.error:
            raise Failed(f"{self.name}: {self.error}")
        try:
            cold, batch = (1e6 * theirs[f"{self.name}|{title}"][tag]
                           for title, tag in (("cold", COLD_MEDIAN), ("batch", BATCH_MEAN)))
        except KeyError as missing:
            raise Failed(f"{self.name}: NVBench reported no {missing.args[0]}") from None
        batch /= self.ours["calls"]
        return {
            "kernel": self.name,
            "bytes": int(self.ours["bytes"]),
            "nvbench_cold_us": cold,
            "ours_cold_us": self.ours["cold_us"],
            "cold_ratio": self.ours["cold_us"] / cold,
            "nvbench_batch_us": batch,
            "ours_batch_us": self.ours["batch_us"],
            "batch_ratio": self.ours["batch_us"] / batch,
            "ours_graph_us": self.ours["graph_us"],
            "ours_read_flush_us": self.ours["read_flush_us"],
        }

    def _reported(self, run: Callable[[Any], None]) -> Callable[[Any], None]:
        """`run`, whose exception NVBench prints and goes on from: kept, so that it is not lost."""

        def benchmark(state: Any) -> None:
            try:
                run(state)
            except Exception as error:
                self.error = self.error or f"{type(error).__name__}: {error}"
                raise

        return benchmark

    def _cold(self, state: Any) -> None:
        kernel = self.make()
        call = kernel.calls[0]
        call()
        self.ours["bytes"] = kernel.bytes
        before = self.engine.cold(call)
        state.exec(self._launcher(call), batched=False)
        self.ours["cold_us"] = pooled([before, self.engine.cold(call)]).median
        self.ours["read_flush_us"] = self.engine.read_flush(call).timing().median

    def _batch(self, state: Any) -> None:
        kernel, engine = self.make(), self.engine
        graph, count = engine.graph(kernel.calls[:1])
        before = engine.batch(graph, count)
        state.exec(self._launcher(graph.replay), batched=True)
        self.ours |= {"batch_us": pooled([before, engine.batch(graph, count)]).median, "calls": count}
        self.ours["graph_us"] = engine.batch(*engine.graph(kernel.calls)).timing().median

    def _launcher(self, call: Callable[[], Any]) -> Callable[[Any], None]:
        """What NVBench calls: nothing here waits for the device, which would never return behind its blocker."""

        def launch(launch: Any) -> None:
            with self.engine.on(launch.get_stream().addressof()):
                call()

        return launch


def compare(bench: Any, engine: Engine, kernels: dict[str, Callable[[], Kernel]]) -> list[dict[str, Any]]:
    """The rows of all kernels, measured in one run of NVBench's `bench`. Raises Failed."""
    comparisons = [Comparison(engine, name, make) for name, make in kernels.items()]
    for comparison in comparisons:
        comparison.register(bench)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "nvbench.json"
        try:
            bench.run_all_benchmarks(["nvbench", "--devices", "0", "--quiet", "--json", str(report)])
            theirs = figures(json.loads(report.read_text()))
        except Exception as error:  # of a benchmark, which it may pass on or print, or of its own
            reasons = [f"{one.name}: {one.error}" for one in comparisons if one.error]
            raise Failed(reasons[0] if reasons else f"NVBench: {error}") from error
    return [comparison.row(theirs) for comparison in comparisons]


def figures(report: dict[str, Any]) -> dict[str, dict[str, float]]:
    """NVBench's JSON as benchmark -> tag of a summary -> its value (times in seconds). What was skipped has none."""
    return {
        benchmark["name"]: {
            summary["tag"]: float(data["value"])
            for state in benchmark["states"]
            for summary in state["summaries"] or ()
            for data in summary["data"]
            if data["name"] == "value" and data["type"] == "float64" and data["value"] is not None
        }
        for benchmark in report["benchmarks"]
    }


def disagreements(rows: Iterable[dict[str, Any]]) -> list[str]:
    """One sentence for each ratio that is not within 3 %."""
    return [
        f"{row['kernel']}, {title}: {row[f'ours_{title}_us']:.2f} µs here, {row[f'nvbench_{title}_us']:.2f} in NVBench"
        for row in rows for title in ("cold", "batch") if not abs(row[f"{title}_ratio"] - 1) <= AGREEMENT
    ]


def missing() -> str:
    """Why nothing can be compared on this machine; "" where it can."""
    import torch

    if not torch.cuda.is_available():
        return "no CUDA GPU was found"
    if importlib.util.find_spec("cuda.bench") is None:
        return "cuda-bench is not installed; `pip install twinbench[nvbench]` brings it"
    return ""


def main(argv: list[str] | None = None) -> int:
    """Compare, print and write. 0 where all agree, 1 where not, 3 where there is nothing to compare with."""
    parser = argparse.ArgumentParser(prog="python -m harness.nvbench", description="Compare the engine with NVBench.")
    parser.add_argument("--out", type=Path, help="write the table to this CSV file")
    out = parser.parse_args(argv).out
    reason = missing()
    if reason:
        print(f"harness.nvbench: {reason}", file=sys.stderr)
        return 3
    import cuda.bench
    import pandas

    from harness.nvbench_kernels import engine, kernels

    try:
        rows = compare(cuda.bench, engine(), kernels())
    except Failed as failed:
        print(f"harness.nvbench: {failed}", file=sys.stderr)
        return 1
    table = pandas.DataFrame(rows)
    print(table.to_string(index=False, float_format="%.3f".__mod__))
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(out, index=False, float_format="%.4f")
    apart = disagreements(rows)
    print("\n".join(apart) or f"All {2 * len(rows)} ratios are within {AGREEMENT:.0%}.")
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main())
