"""The byte and flop audit: every case of the sweeps passes it, and families whose model cheats do not."""

from dataclasses import dataclass, replace

import pytest
import torch

import reference
from harness import audit as audits
from harness.audit import audit, moved_bytes
from harness.cases import Call, Case, Work, family_of
from harness.pipelines import named
from harness.sweeps import everything

CASE = Case("rmsnorm_bwd_add", (64, 256), options=(("gamma_dtype", "fp32"),))


def made(case, device="cpu"):
    call = family_of(case.function).make(case, device, 0)
    return call, named(reference, case.function)(*call.args, **call.kwargs)


@pytest.mark.parametrize("case", everything(), ids=lambda case: case.name)
def test_the_work_of_a_case_is_what_its_tensors_hold(case):
    call, results = made(case, "cpu" if case.rows * case.hidden <= 1 << 16 else "meta")
    work = family_of(case.function).work(case)
    counted = {"read_bytes": work.read_bytes, "written_bytes": work.written_bytes}
    assert audit(case, call, results) == (counted, "")


class Cheat:
    """The family of CASE but for what its model says of the work."""

    def __init__(self, work):
        self.of = family_of(CASE.function)
        self.work = lambda case: work(self.of.work(case))

    def __getattr__(self, name):
        return getattr(self.of, name)


@pytest.mark.parametrize(("work", "words"), [
    (lambda work: replace(work, read_bytes=work.read_bytes // 2), "49,792 bytes read, its tensors 99,584"),
    (lambda work: replace(work, read_bytes=2 * work.read_bytes), "199,168 bytes read, its tensors 99,584"),
    (lambda work: replace(work, written_bytes=0), "0 bytes written, its tensors 33,792"),
    (lambda work: Work(work.written_bytes, work.read_bytes, work.flops), "99,584 bytes written"),
    (lambda work: replace(work, read_bytes=work.read_bytes + 1), "99,585 bytes read"),
    (lambda work: replace(work, flops=10 * work.flops), "1,638,400 flops, its tensors 163,840"),
    (lambda work: Work(0, 0, 0), "0 bytes read, its tensors 99,584; 0 bytes written"),
])
def test_a_model_that_cheats_is_contradicted(monkeypatch, work, words):
    call, results = made(CASE)
    monkeypatch.setattr(audits, "family_of", lambda _: Cheat(work))
    counted, reason = audit(CASE, call, results)
    assert words in reason and reason.startswith("the model of the case says ")
    assert counted == {"read_bytes": 99_584, "written_bytes": 33_792}


def test_the_tensors_decide_and_not_the_case():
    """Inputs or results that are not what the case stands for: half the rows, another dtype, one tensor for two."""
    call, results = made(CASE)
    half, _ = made(replace(CASE, shape=(32, 256)))
    assert "bytes read" in audit(CASE, half, results)[1] and "flops" in audit(CASE, half, results)[1]
    assert "bytes written" in audit(CASE, call, (results[0].float(), results[1]))[1]
    repeated = results[0][:1].expand_as(results[0])
    assert "bytes written, its tensors 1,536" in audit(CASE, call, (repeated, results[1]))[1]
    dz, x, add, *rest = call.args
    assert "its tensors 66,816" in audit(CASE, Call((dz, x, x, *rest), {}), results)[1]


def test_what_is_repeated_in_memory_counts_once():
    row = torch.zeros(1, 100, dtype=torch.bfloat16)
    assert moved_bytes(row.expand(7, 100)) == 200
    assert moved_bytes([row, row, (row,)]) == 200
    assert moved_bytes([row, row.clone()]) == 400
    assert moved_bytes(torch.zeros(0, 100).expand(3, 0, 100)) == 0
    wide = torch.zeros(4, 10)
    assert moved_bytes([wide[:, :3], wide[:, 3:], wide.T[:3]]) == 48 + 112 + 48
    assert moved_bytes(torch.empty(5, 8, device="meta")) == 160


def test_tensors_are_found_where_they_stand():
    @dataclass(frozen=True)
    class Quantized:
        data: torch.Tensor
        scale_inv: torch.Tensor
        columnwise_data: torch.Tensor | None = None
        dtype: torch.dtype = torch.bfloat16

    codes, scale = torch.zeros(4, 32, dtype=torch.uint8), torch.zeros(4, dtype=torch.uint8)
    assert moved_bytes((Quantized(codes, scale), None, "text", 1e-5, {"out": torch.zeros(2)})) == 128 + 4 + 8
