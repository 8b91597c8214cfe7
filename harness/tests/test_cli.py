"""The command line: what it prints first, and one clear line for every wrong argument."""

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from harness import rows
from harness.__main__ import NO_GPU, main
from harness.case_run import blank
from harness.environment import ROOT, digest, slug
from harness.options import Options, UsageError, cases, parse_case
from harness.sweeps import llm, smoke

CPU = os.environ | {"CUDA_VISIBLE_DEVICES": ""}


def harness(*arguments, timeout=120):
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, env=CPU)


def test_list_as_json(capsys):
    assert main(["list", "--sweep", "llm", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == len(llm())
    assert found[0]["name"] == "layernorm_fwd 4096x1024 bf16"
    assert all(one["bytes"] > 0 and one["flops"] > 0 and one["memory_bytes"] > 0 for one in found)
    assert all(one["about_s"] > 0 for one in found)


def test_list_as_a_table(capsys):
    assert main(["list", "-k", "^rmsnorm_fwd"]) == 0
    out = capsys.readouterr().out
    assert "rmsnorm_fwd 4096x4096 bf16" in out and "layernorm" not in out
    assert "7 cases" in out


def test_any_shape_can_be_asked_for(capsys):
    assert main(["list", "--function", "rmsnorm_fwd", "--shape", "123,4567", "--json"]) == 0
    found = [one["name"] for one in json.loads(capsys.readouterr().out)]
    assert found == [f"rmsnorm_fwd 123x4567 bf16{recipe}" for recipe in ("", " fp8_delayed", " fp8_current")]


def test_dry_run_measures_and_writes_nothing(capsys, tmp_path):
    assert main(["bench", "--dry-run", "--out", str(tmp_path / "run")]) == 0
    assert f"{len(smoke())} cases" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_dry_run_on_a_cpu_is_of_that_cpu(capsys, monkeypatch):
    """Without what an H200 would take, and with a word where cases are cut."""
    monkeypatch.setattr("harness.__main__.gpus", lambda: [])
    monkeypatch.setattr("harness.backend_cpu.ELEMENTS", 8192)
    for case, cut in ("rmsnorm_fwd 4096x4096 bf16", True), ("rmsnorm_fwd 3x16 bf16", False):
        assert main(["bench", "--dry-run", "--case", case]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert ("Cases are cut to" in text, "H200" in text, "on this CPU" in text) == (cut, False, True)
    assert main(["list", "--case", "rmsnorm_fwd 3x16 bf16"]) == 0
    assert "H200 limit" in capsys.readouterr().out


def test_dry_run_leaves_out_what_a_resumed_run_would_not_run(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("harness.__main__.gpus", lambda: [])
    names = ["--case", "rmsnorm_fwd 3x16 bf16", "--case", "rmsnorm_fwd 4x16 bf16", "--impl", "reference"]
    row = blank(parse_case("rmsnorm_fwd 3x16 bf16"), "reference", seed=0, device="cpu")
    rows.Writer(tmp_path / "rows.jsonl").write(row | {"status": "NOISY"})
    for mode, left in ("", "2 cases"), ("--resume", "1 case"), ("--rerun-failed", "2 cases"), ("--fresh", "2 cases"):
        assert main(["bench", "--dry-run", "--out", str(tmp_path), *names, *mode.split()]) == 0
        assert f"{left} of reference" in capsys.readouterr().out
    assert main(["bench", "--dry-run", "--out", str(tmp_path), *names, "--resume", "--seed", "7"]) == 1
    assert "holds rows of seed 0: seed 7 cannot go on with them" in capsys.readouterr().err
    assert main(["bench", "--dry-run", *names, "--shard", "1/2"]) == 0
    assert "1 case of reference" in capsys.readouterr().out


def test_two_runs_are_compared(capsys, tmp_path):
    rows.Writer(tmp_path / "rows.jsonl").write(rows.row(status="OK", case="a", implementation="reference"))
    assert main(["compare", str(tmp_path), str(tmp_path)]) == 0
    assert "Largest changes" in capsys.readouterr().out
    assert main(["compare", str(tmp_path), str(tmp_path / "nowhere")]) == 1


def test_a_run_is_named_by_its_folder_or_by_its_rows(capsys, tmp_path):
    named = tmp_path / "run" / "rows.jsonl"
    named.parent.mkdir()
    rows.Writer(named).write(rows.row(status="OK", case="a", implementation="reference"))
    assert main(["compare", str(named), str(named.parent)]) == 0
    assert main(["merge", str(tmp_path / "merged"), str(named)]) == 0 and (tmp_path / "merged" / "rows.jsonl").exists()
    assert main(["report", str(tmp_path / "nowhere" / "rows.jsonl")]) == 1
    assert "nowhere does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sweep", "llms"], "unknown sweep 'llms'; did you mean llm"),
        (["--function", "rmsnorm"], "did you mean rmsnorm_fwd"),
        (["--impl", "optimised"], "did you mean optimized"),
        (["--impl", "zzz"], "known: reference, compiled, optimized, cublas, unfused, eager, copy"),
        (["--impl", "cublas", "--case", "add 33x64 fp32"], "has an implementation 'cublas'; it is of linear_fwd"),
        (["--impl", "reference,eager", "--function", "rmsnorm_fwd"], "has an implementation 'eager'; it is of"),
        (["--dtype", "bf61"], "did you mean bf16"),
        (["--recipe", "mxfp9"], "unknown recipe"),
        (["--shape", "4096x0"], "4096x8192"),
        (["--shape", "axb"], "4096x8192"),
        (["-k", "("], "regular expression"),
        (["-k", "nothing like it"], "no case of sweep 'smoke' passes"),
        (["--case", "rmsnorm_fwd"], "function shape dtype"),
        *((["--case", "rmsnorm_fwd 4x8 bf16", *words], f"--case names whole cases: {words[0]} cannot choose")
          for words in (["--sweep", "llm"], ["--function", "rmsnorm_fwd"], ["--dtype", "bf16"], ["--recipe", "none"],
                        ["--shape", "4x8"], ["-k", "rms"])),
        (["--case", "rmsnorm_fwd 4x8 bf16 gamma_dtype=int8"], "int8"),
        (["--case", "rmsnorm_fwd 4x8 bf16 gamma_dtype=[1]"], "unknown dtype of gamma_dtype [1]"),
        (["--case", "rmsnorm_fwd 4x8 bf16 colour=red"], "unknown option 'colour'"),
        (["--case", "rmsnorm_fwd 4x8 bf16 layout=foo"], "unknown layout 'foo'; known: contiguous, strided"),
        (["--case", "rmsnorm_fwd 4x8 bf16 eps=-1"], "finite and at least 0"),
        (["--case", "rmsnorm_fwd 4x8 bf16 sm_margin=1.5"], "a whole number"),
        (["--case", "rmsnorm_fwd 4x8 bf16 zero_centered_gamma=maybe"], "True or False"),
        (["--shape", "99999999999999999999,5"], "more elements than a tensor"),
        (["--budget", "nan"], "above 0"),
        (["--budget", "-5"], "above 0"),
        (["--seed", str(2**64)], "64 bits"),
        (["--timeout", "0"], "--timeout 0 is not a number of seconds above 0"),
        (["--shard", "3/2"], "--shard '3/2' is not I/N"),
        (["--shard", ""], "--shard '' is not I/N"),
        (["--devices", "a"], "--devices 'a' is not a list of device numbers"),
        (["--devices", "0"], "--devices 0: no GPU was found"),
    ],
)
def test_wrong_argument_is_one_clear_line(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("harness.__main__.gpu_present", lambda: False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["bench", *arguments, "--out", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "arguments",
    [["bench", "--profile", "slow"], ["bench", "--seed", "x"], ["fly"], [], ["bench", "--resume", "--fresh"],
     ["merge", "out"], ["compare", "old"], ["bench", "--rerun"]],
)
def test_wrong_syntax_is_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_case_by_name_round_trips():
    for case in cases(Options(sweep="all")):
        assert parse_case(case.name) == case
    with pytest.raises(UsageError, match="did you mean"):
        parse_case("rmsnorm_fw 4x8 bf16")


@pytest.mark.skipif(os.geteuid() == 0 and not os.path.exists("/proc/self"), reason="all folders can be written")
def test_folder_that_cannot_be_written_is_one_clear_line():
    done = harness("check", "--case", "rmsnorm_fwd 3x16 bf16", "--out", "/proc/self/run")
    assert done.returncode == 1
    assert done.stderr.startswith("harness: cannot write /proc/self/run") and done.stderr.count("\n") == 1


def test_full_folder_needs_resume(tmp_path, capsys):
    rows.Writer(tmp_path / "rows.jsonl").write(rows.row(status="OK"))
    assert main(["check", "--case", "rmsnorm_fwd 3x16 bf16", "--out", str(tmp_path)]) == 1
    assert "--resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [('{"a": 1}\n', "line 1: not a result row"), ("\0\0\n", "not a result row"),
     ('{"schema": 99}\n', "schema 99, this")],
)
@pytest.mark.parametrize("mode", ["--resume", "--rerun-failed"])
def test_a_foreign_folder_is_refused_in_one_sentence(tmp_path, capsys, content, words, mode):
    (tmp_path / "rows.jsonl").write_text(content)
    assert main(["check", "--case", "rmsnorm_fwd 3x16 bf16", "--out", str(tmp_path), mode]) == 1
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1
    assert (tmp_path / "rows.jsonl").read_text() == content


def test_a_checked_row_does_not_pass_for_a_measured_one(tmp_path, capsys):
    entry = {"runs": [{"command": "python -m harness check --seed 0"}]}
    (tmp_path / "environment.json").write_text(json.dumps(entry))
    rows.Writer(tmp_path / "rows.jsonl").write(rows.row(status="OK"))
    assert main(["bench", "--case", "rmsnorm_fwd 3x16 bf16", "--out", str(tmp_path), "--resume"]) == 1
    assert "holds rows of check: bench cannot go on" in capsys.readouterr().err


@pytest.mark.parametrize("words, said", [
    (["--profile", "ci"], "holds rows of profile quick: profile ci cannot go on"),
    (["--seed", "1"], "holds rows of seed 0: seed 1 cannot go on"),
    (["--profile=ci", "--seed", "0"], "holds rows of profile quick"),
])
@pytest.mark.parametrize("mode", ["--resume", "--rerun-failed"])
def test_a_run_goes_on_with_its_own_profile_and_seed(tmp_path, capsys, words, said, mode):
    entry = {"runs": [{"command": "python -m harness bench -k rmsnorm"}]}
    (tmp_path / "environment.json").write_text(json.dumps(entry))
    rows.Writer(tmp_path / "rows.jsonl").write(rows.row(status="OK", seed=0))
    assert main(["bench", "--case", "rmsnorm_fwd 3x16 bf16", "--out", str(tmp_path), mode, *words]) == 1
    assert said in capsys.readouterr().err


def test_bench_says_at_once_that_there_is_no_gpu():
    command = [sys.executable, "-m", "harness", "check", "--case", "rmsnorm_fwd 3x16 bf16", "--dtype", "nope"]
    began = time.monotonic()
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=CPU
    )
    first = process.stdout.readline()
    took = time.monotonic() - began
    process.kill()
    process.communicate()
    assert first.strip() == NO_GPU
    assert took < 3


def test_importing_the_command_line_imports_nothing_slow():
    script = "import harness.__main__, sys; print({'torch', 'matplotlib', 'rich'} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_doctor_without_a_gpu_answers_in_json_where_asked_to(capsys, monkeypatch):
    monkeypatch.setattr("harness.__main__.gpu_present", lambda: False)
    assert main(["doctor", "--json"]) == 3
    assert json.loads(capsys.readouterr().out) == {"doubts": ["No GPU was found."], "fit": False}


def test_doctor_without_a_gpu_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr("harness.__main__.gpu_present", lambda: False)
    assert main(["doctor"]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_environment_is_json_with_null_for_what_is_unavailable(capsys):
    assert main(["env"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["torch"] and {"gpu", "driver", "nvrtc", "cuda_python", "git", "host"} <= found.keys()
    assert 0 not in (found["gpu"] or {}).values()
    assert digest(found) == digest(json.loads(json.dumps(found)))


def test_list_names_an_unknown_implementation_before_anything_else(capsys):
    assert main(["list", "--impl", "zzz"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("verb", [["list"], ["list", "--json"], ["check", "--case", "rmsnorm_fwd 3x16 bf16"]])
def test_full_disk_behind_the_output_is_one_line(verb):
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "harness", *verb], cwd=ROOT, stdout=full, text=True,
                              stderr=subprocess.PIPE, timeout=120, env=CPU)
    assert done.returncode == 1 and done.stderr == "harness: [Errno 28] No space left on device\n"


def test_closed_streams_are_no_error(tmp_path):
    verb = f"{sys.executable} -m harness check --case 'rmsnorm_fwd 3x16 bf16' --out {tmp_path} >&- 2>&- <&-"
    assert subprocess.run(verb, cwd=ROOT, shell=True, timeout=120, env=CPU).returncode == 0
    assert (tmp_path / "rows.jsonl").read_text().count("\n") == 1


@pytest.mark.parametrize("arguments", [["report"], ["check", "--case", "rmsnorm_fwd 3x16 bf16", "--out"]])
def test_name_too_long_for_a_folder_is_one_line(arguments, capsys):
    assert main([*arguments, "x" * 300]) == 1
    err = capsys.readouterr().err
    assert "too long" in err and err.count("\n") == 1


@pytest.mark.parametrize("code, reported", [(0, True), (1, True), (130, False)])
def test_a_run_reports_on_its_own_folder_and_keeps_its_exit_code(tmp_path, monkeypatch, code, reported):
    """Also where rows failed, but not after Ctrl-C."""
    written = []
    run = SimpleNamespace(execute=lambda: code, folder=SimpleNamespace(path=tmp_path))
    monkeypatch.setattr("harness.__main__.gpus", lambda: [])
    monkeypatch.setattr("harness.runner.Run", lambda *arguments: run)
    monkeypatch.setattr("harness.report.write", lambda folder, out: written.append(folder) or 0)
    assert main(["bench", "--out", str(tmp_path), "--report"]) == code
    assert written == reported * [tmp_path]


def test_report_of_nothing_is_one_clear_line(capsys, tmp_path):
    assert main(["report", str(tmp_path / "nowhere")]) == 1
    err = capsys.readouterr().err
    assert "does not exist" in err and err.count("\n") == 1


def test_slug():
    assert slug("NVIDIA H200") == "nvidia-h200"
