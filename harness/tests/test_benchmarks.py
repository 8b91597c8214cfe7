"""The benchmarks of `pytest --benchmark-only`: the engine measures, pytest-benchmark selects and shows.

    pytest --benchmark-only -k rmsnorm                      cases of the smoke sweep, every implementation
    pytest --benchmark-only --sweep llm -k "optimized"
    pytest --benchmark-only --benchmark-autosave            and later --benchmark-compare

Each case passes parity first: a wrong kernel fails its benchmark. Then pytest-benchmark calls a function that does
nothing, on a clock that jumps by one sample each time, so that what it shows is time on the device.
"""

import pytest

from harness import benchmarks, rows

pytest.importorskip("pytest_benchmark")
CLOCK = benchmarks.Replay()


def pytest_generate_tests(metafunc):
    if "implementation" in metafunc.fixturenames:
        pairs = benchmarks.chosen(metafunc.config.getoption("sweep"))
        metafunc.parametrize(("case", "implementation"), pairs, ids=[f"{case.name} {name}" for case, name in pairs])


@pytest.fixture(scope="module")
def measured(request):
    """Only what is left after -k and its like is measured."""
    asked = {}
    for item in request.session.items:
        if item.module.__name__ == __name__:
            asked.setdefault(item.callspec.params["case"], []).append(item.callspec.params["implementation"])
    return benchmarks.Measured(benchmarks.backend, asked)


@pytest.mark.benchmark(timer=CLOCK)
def test_time(case, implementation, benchmark, request):
    if not benchmark.enabled:
        pytest.skip("pytest-benchmark is disabled, as it is with -n: nothing is measured")
    row, column, samples = request.getfixturevalue("measured").of(case, implementation)
    benchmark.group, benchmark.extra_info = case.name, benchmarks.extra_info(row, column)
    if not samples and row["status"] not in rows.FAILURES:
        pytest.skip(f"{row['status']}: {row['reason']}")

    def replay():
        assert row["status"] not in rows.FAILURES, f"{row['status']}: {row['reason']}"
        CLOCK.advance()

    CLOCK.load(samples)
    benchmark.pedantic(replay, rounds=max(len(samples), 1))
