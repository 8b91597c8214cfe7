"""Kernels compiled by another process: in order, each once, and an error costs its own kernel."""

import asyncio
import io
from functools import partial

import pytest
import torch
from rich.console import Console

from harness import case_server, rows
from harness.case_server import CompileServer, programs
from harness.cases import Case
from harness.compile_ahead import Kernels
from harness.compile_report import request
from harness.options import Options
from harness.place import Place
from harness.progress import Reporter
from harness.runner import Run
from harness.tests.fake_server import FakeServer
from harness.workers import START_S, WorkerLost, WorkerProcess
from optimized.plan import H200

CASES = [Case("rmsnorm_fwd", (64, cols), "bf16") for cols in (512, 1024, 4096)]


class Compiler:
    """A worker that finds each kernel by its name, and is lost at those in `fatal`; `starts` counts."""

    hello = None
    fatal, starts, silent = (), 0, False

    @classmethod
    async def start(cls, make, limit_s):
        assert make is CompileServer and limit_s == START_S, "--timeout is for kernels, not for imports"
        cls.starts += 1
        if cls.silent:
            raise WorkerLost("CRASH", "start: exit code 1")
        return cls()

    async def run(self, asked, limit_s):
        for one in asked["requests"]:
            if one[1] in self.fatal:
                raise WorkerLost("CRASH", "killed by SIGSEGV", one if asked["alone"] else None)
            yield one, f"binary of {one[1]}"

    async def stop(self):
        pass


def compiled(kind, mine=CASES, cases=CASES):
    """What became of each case's kernel, what was kept, in order, and the line that tells it."""
    async def everything():
        kernels, kept = Kernels(cases, mine, H200, kind.start, 10), []
        line = await kernels.compile(1, lambda one, binary: kept.append(one))
        return [(await kernels.of(case))[1] for case in mine], kept, line

    return asyncio.run(everything())


def names_of():
    async def plans():
        return [request(plan)[1] for plan in Kernels(CASES, CASES, H200, None, 1).planned.values()]

    return asyncio.run(plans())


@pytest.fixture
def compiler():
    return type("Compiler", (Compiler,), {"starts": 0})


def test_each_kernel_is_compiled_once_in_the_order_of_the_cases(compiler):
    found, kept, line = compiled(compiler)
    assert found == [f"binary of {name}" for name in names_of()]
    assert [one[1] for one in kept] == list(dict.fromkeys(names_of()))
    assert line.startswith(f"{len(kept)} kernels for sm_90a in ") and compiler.starts == 1


def test_a_kernel_belongs_to_the_first_case_that_uses_it(compiler):
    again = [CASES[0], Case("rmsnorm_fwd", (65, 512), "bf16")]
    async def everything():
        kernels, kept = Kernels(again, again[1:], H200, compiler.start, 10), []
        await kernels.compile(1, lambda one, binary: kept.append(one))
        return kept

    assert asyncio.run(everything()) == []


def test_a_kernel_that_kills_the_compiler_costs_itself_alone(compiler):
    names = names_of()
    compiler.fatal = (names[1],)
    found, kept, _ = compiled(compiler)
    assert found[1] == "CRASH: killed by SIGSEGV"
    assert found[0] == f"binary of {names[0]}" and found[2] == f"binary of {names[2]}"
    assert len(kept) == 3 and compiler.starts == 3


def test_a_compiler_that_never_starts_is_given_up(compiler):
    compiler.silent = True
    found, kept, _ = compiled(compiler)
    assert set(found) == {"no compiler could be started: start: exit code 1"}
    assert len(kept) == 3 and compiler.starts == 3


def test_programs_share_headers_and_keep_the_threads_busy():
    requests = [("a.cu", f"f<{i}>") for i in range(6)] + [("b.cu", "g")] + [("a.cu", "h")]
    assert programs(requests, 1) == [requests[:4], [*requests[4:6], requests[7]], [requests[6]]]
    assert programs(requests, 8) == [[one] for one in requests]
    assert programs([], 3) == []


def test_a_compile_server_gives_what_the_compiler_says():
    wanted = request(case_server.compile_report.plans(CASES[:1], H200)[0][CASES[0]])
    for alone in (False, True):
        requests, announced = [wanted, ("norm.cu", "no_such_kernel<3>")], []
        asked = {"requests": requests, "arch": H200.arch, "threads": 1, "alone": alone}
        found = dict(CompileServer().run(asked, lambda *step: announced.append(step)))
        assert found[wanted].registers > 0 and found[wanted].image == b""
        assert isinstance(found["norm.cu", "no_such_kernel<3>"], str)
        assert announced == ([(one, "compilation") for one in requests] if alone else [])


def forbid_cuda(monkeypatch):
    def touched(*_, **__):
        raise AssertionError("the parent asked CUDA")

    for name in ("_lazy_init", "init", "is_available", "device_count", "current_device", "set_device", "synchronize",
                 "get_device_properties", "get_device_name", "get_device_capability", "mem_get_info", "Stream"):
        monkeypatch.setattr(torch.cuda, name, touched)


def test_the_parent_of_a_gpu_run_never_asks_cuda(tmp_path, monkeypatch):
    """The whole run, with a compiler of its own and workers that play a GPU."""
    forbid_cuda(monkeypatch)
    fake = partial(FakeServer, gpu="NVIDIA Fake", chip=H200)

    async def start(make, limit_s):
        return await WorkerProcess.start(make if make is CompileServer else fake, limit_s)

    text, names = io.StringIO(), ("reference", "optimized")
    options = Options(names=tuple(case.name for case in CASES), implementations=names, out=tmp_path / "run")
    place = Place("cuda", (0, 1), lambda index: None)
    assert Run(options, place, Reporter(Console(file=text)), start).execute() == 0
    found = rows.read(tmp_path / "run" / "rows.jsonl")
    assert len(found) == 6 and {row["gpu"] for row in found} == {"NVIDIA Fake"}
    assert not torch.cuda.is_initialized()
