"""The compile report, with a compiler that does as told."""

import io
from dataclasses import dataclass

import pytest
from rich.console import Console

from harness import compile_report, rows, table
from harness.cases import Case

CASES = [
    Case("rmsnorm_fwd", (4096, 4096)),
    Case("rmsnorm_fwd", (16384, 4096)),
    Case("layernorm_fwd", (64, 512)),
]


@dataclass(frozen=True)
class Plan:
    source: str
    kernel: str
    variant: str = "direct"
    grid: int = 4
    block: int = 128
    cluster: int = 1
    shared_bytes: int = 1000
    workspace_bytes: int = 0
    cooperative: bool = False


@dataclass(frozen=True)
class Binary:
    registers: int = 40
    spill_bytes: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 24
    code_digest: str = "abc"
    compile_ms: float = 61.5
    cache_hit: bool = False


PLANS = dict(zip(CASES, [Plan("norm.cu", "rms<8>"), Plan("norm.cu", "rms<8>"), Plan("norm.cu", "layer<8>")]))


def test_specializations_are_compiled_together_and_once():
    asked = []

    def build(requests, arch):
        asked.append((list(requests), arch))
        return {one: Binary() for one in requests}

    compile_report.compile_all(map(compile_report.request, PLANS.values()), "sm_90a", build)
    assert asked == [([("norm.cu", "rms<8>"), ("norm.cu", "layer<8>")], "sm_90a")]


def test_error_costs_its_own_specialization():
    def build(requests, arch):
        if ("norm.cu", "layer<8>") in requests:
            raise RuntimeError("norm.cu(3): error: expected a ;\nand more")
        return {one: Binary() for one in requests}

    found = compile_report.compile_all(map(compile_report.request, PLANS.values()), "sm_90a", build)
    made = compile_report.compile_rows(PLANS, found, device="cpu", seed=0, environment="e")
    assert [(row["case"], row["status"]) for row in made] == [("rms<8>", "OK"), ("layer<8>", "COMPILE_ERROR")]
    assert made[1]["reason"] == "RuntimeError: norm.cu(3): error: expected a ;"
    assert made[1]["kernel"]["grid"] == 4 and "registers" not in made[1]["kernel"]


def test_rows_say_what_the_compiler_said():
    found = {compile_report.request(plan): Binary() for plan in PLANS.values()}
    made = compile_report.compile_rows(PLANS, found, device="cpu", seed=0, environment="e")
    assert len(made) == 2
    assert made[0]["kind"] == "compile" and made[0]["compile_ms"] == 61.5 and made[0]["cache_hit"] is False
    assert made[0]["kernel"]["registers"] == 40
    assert made[0]["repeat"].endswith(f' bench --case "{CASES[0].name}" --impl optimized --seed 0')
    assert made[0]["kernel"]["shared_bytes"] == 1024, "static and dynamic together"
    assert len({rows.identity(row) for row in made}) == 2


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_plans_need_no_gpu(case):
    from optimized.plan import H200

    planned = compile_report.plans([case], H200)[0][case]
    assert planned.kernel and planned.block


def test_case_that_has_no_plan_says_why(monkeypatch):
    def refuse(function, *args, **kwargs):
        raise ValueError("rmsnorm_fwd: no such width")

    monkeypatch.setattr("optimized.normalization.plan_of", refuse)
    planned, refused = compile_report.plans(CASES, None)
    assert planned == {} and set(refused.values()) == {"ValueError: rmsnorm_fwd: no such width"}
    made = compile_report.refused_rows(refused, device="cpu", seed=0, environment="e")
    assert [row["case"] for row in made] == [case.name for case in CASES]
    assert {row["status"] for row in made} == {"COMPILE_ERROR"}
    console = Console(file=io.StringIO(), width=120)
    table.show(console, made)
    assert "no such width" in console.file.getvalue()
