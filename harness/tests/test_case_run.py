"""What a case's rows say of one another, from times that are given."""

import pytest

from harness.backend_cpu import Cpu
from harness.case_run import CaseRun
from harness.cases import Case
from harness.samples import summarize

CASE = Case("rmsnorm_fwd", (4, 64))


class Timed(Cpu):
    """Gives every implementation the graph medians of its replicates."""

    def __init__(self, fails="", **medians):
        super().__init__()
        self.medians, self.fails = medians, fails

    def time(self, case, call, runs):
        for subject, _ in runs:
            replicates = self.medians[subject.name]
            subject.fields |= {"graph_us": summarize(replicates).to_dict(), "replicates": {"graph_us": replicates}}
            if subject.name == self.fails:
                subject.fail("INVALID", "the clock lies")


def rows_of(backend):
    common = {"seed": 0, "environment": "none"}
    return {row["implementation"]: row for row in CaseRun(CASE, backend, common).run(list(backend.medians))}


def test_speedup_is_that_of_each_replicate_over_the_reference():
    found = rows_of(Timed(reference=[400.0, 800.0, 200.0], copy=[50.0, 100.0, 25.0]))
    for name, factor in (("copy", 8.0), ("reference", 1.0)):
        assert found[name]["speedup"] == {figure: pytest.approx(factor) for figure in ("median", "ci_low", "ci_high")}
        assert (found[name]["reference_us"], found[name]["copy_us"]) == (400.0, 50.0)


def test_speedup_of_a_single_replicate_has_no_interval():
    found = rows_of(Timed(reference=[400.0], copy=[50.0]))
    assert found["copy"]["speedup"] == {"median": pytest.approx(8.0), "ci_low": None, "ci_high": None}


@pytest.mark.parametrize("backend", [Timed(copy=[50.0]), Timed("reference", reference=[400.0], copy=[50.0])],
                         ids=["absent", "failed"])
def test_nothing_is_compared_with_a_reference_that_has_no_time_to_stand_on(backend):
    copy = rows_of(backend)["copy"]
    assert copy["speedup"] is None and copy["reference_us"] is None and copy["copy_us"] == 50.0
