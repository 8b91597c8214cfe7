"""The command line: python -m harness {list,check,bench,tune,compare,merge,report,doctor,example,env}. What is slow to
import comes later."""

import argparse
import ctypes
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from harness.options import PROFILES, Options, UsageError, checked, of_launcher, parse_devices, parse_shard
from harness.rows import RowsError
from harness.telemetry import visible_devices

NO_GPU = "No GPU was found: measuring what one CPU thread can show (references, torch.compile, the compile report)."


def parser() -> argparse.ArgumentParser:
    """The argument parser of all verbs."""
    top = argparse.ArgumentParser(
        prog="python -m harness", description="Parity and speed of reference against optimized."
    )
    verbs = top.add_subparsers(
        dest="verb", required=True, metavar="{list,check,bench,tune,compare,merge,report,doctor,example,env}",
        parser_class=partial(argparse.ArgumentParser, allow_abbrev=False),  # a command to resume is made of its words
    )
    for verb, text in (
        ("list", "the cases, with bytes, flops, memory and estimated time"),
        ("check", "parity only"),
        ("bench", "parity, then timing"),
        ("tune", "measure which tile serves each product best on this GPU, and remember it"),
    ):
        _case_arguments(verbs.add_parser(verb, help=text, description=text), verb)
    compare = verbs.add_parser("compare", help="two runs: how far times and speed-ups moved")
    compare.add_argument("old", type=Path, help="a run's folder")
    compare.add_argument("new", type=Path, help="a run's folder")
    text = "join the folders of shards into one; refuses rows that contradict each other"
    merge = verbs.add_parser("merge", help=text, description=text)
    merge.add_argument("out", type=Path, help="the folder to make")
    merge.add_argument("folders", nargs="+", type=Path, metavar="folder", help="a run's folder")
    report = verbs.add_parser("report", help="REPORT.md and plots of a run")
    report.add_argument("folder", nargs="?", type=Path, help="a run's folder (default: runs/latest)")
    report.add_argument("--out", type=Path, help="where the report goes (default: the run's folder)")
    doctor = verbs.add_parser("doctor", help="what this GPU reaches, its A/A noise, and if it is fit to measure on")
    doctor.add_argument("--json", action="store_true", help="as JSON")
    _example_arguments(verbs.add_parser("example", help="train with the op graph, on each table, and compare"))
    verbs.add_parser("env", help="the environment record as JSON")
    return top


def _example_arguments(verb: argparse.ArgumentParser) -> None:
    from harness.examples import NAMES, RECIPES

    verb.add_argument("name", choices=NAMES)
    verb.add_argument("--table", choices=("reference", "optimized", "all"), default="all", help="default: all that run")
    verb.add_argument("--recipe", choices=RECIPES, default="none", help="how the linear layers quantize")
    verb.add_argument("--steps", type=int, default=200)


def _case_arguments(verb: argparse.ArgumentParser, name: str) -> None:
    add = verb.add_argument
    add(
        "--profile",
        choices=PROFILES,
        default="quick",
        help="sweep and time: " + ", ".join(f"{name} = {profile.sweep}" for name, profile in PROFILES.items()),
    )
    add("--sweep", help="the named list of cases to take (default: the profile's)")
    add("--function", action="append", default=[], help="only this function; may be repeated, as all filters may")
    add("--dtype", action="append", default=[], help="bf16, fp16, fp32")
    add("--recipe", action="append", default=[], help="quantization recipe, or none")
    add("--shape", action="append", default=[], metavar="MxN", help="any shape, of the sweep or not")
    if name != "tune":
        add("--impl", action="append", default=[], help="reference, compiled, optimized, cublas, unfused, eager, copy")
    add("-k", dest="keyword", metavar="REGEX", help="only cases whose name matches")
    add(
        "--case",
        action="append",
        default=[],
        metavar="NAME",
        help='a case by its name: "rmsnorm_fwd 4096x5000 bf16"',
    )
    add("--seed", type=int, default=0, help="of the inputs")
    add("--shard", metavar="I/N", help="only the I-th of N shares of the cases (torchrun: that of its RANK)")
    if name == "list":
        add("--json", action="store_true", help="as JSON")
    elif name != "tune":
        _run_arguments(verb)


def _run_arguments(verb: argparse.ArgumentParser) -> None:
    add, rows = verb.add_argument, verb.add_mutually_exclusive_group().add_argument
    add("--out", type=Path, help="the run's folder (default: runs/<timestamp>, and runs/latest points at it)")
    add("--dry-run", action="store_true", help="say what would run")
    rows("--resume", action="store_true", help="skip what the folder (default: runs/latest) has rows of")
    rows("--rerun-failed", action="store_true", help="as --resume, but run again what failed or is in doubt")
    rows("--fresh", action="store_true", help="drop the rows that the folder holds")
    add("--budget", type=float, metavar="SECONDS", help="start no case after this time")
    add("--timeout", type=float, metavar="SECONDS", help="for each step of an implementation; longer means it hangs")
    add("--devices", metavar="I,J", help="the GPUs to use, each with a worker of its own (default: 0)")


def options_of(arguments: argparse.Namespace) -> Options:
    """The arguments of list, check or bench as checked values; a comma separates several names."""

    def split(values: list[str]) -> tuple[str, ...]:
        return tuple(word.strip() for value in values for word in value.split(","))

    modes = {"resume": "resume", "rerun_failed": "rerun", "fresh": "fresh"}
    devices, shard = getattr(arguments, "devices", None), arguments.shard
    options = checked(Options(
        verb=arguments.verb,
        profile=arguments.profile,
        sweep=arguments.sweep,
        functions=split(arguments.function),
        implementations=split(getattr(arguments, "impl", [])),
        dtypes=split(arguments.dtype),
        recipes=split(arguments.recipe),
        shapes=tuple(arguments.shape),
        names=tuple(arguments.case),
        keyword=arguments.keyword,
        seed=arguments.seed,
        out=getattr(arguments, "out", None),
        mode=next((mode for name, mode in modes.items() if getattr(arguments, name, False)), "new"),
        budget_s=getattr(arguments, "budget", None),
        timeout_s=getattr(arguments, "timeout", None),
        shard=(1, 1) if shard is None else parse_shard(shard),
        devices=parse_devices(devices) if devices is not None else (),
    ))
    return options if shard else of_launcher(options, os.environ)


def gpu_present() -> bool:
    """Whether the driver has a device for this process. Asks it directly: importing torch takes seconds."""
    try:
        driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
    except OSError:
        return False
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def gpus() -> list[tuple[int, str, str]]:
    """(index, UUID, name) of the GPUs of this process; nameless where there is one, but no NVML."""
    return visible_devices() or ([(0, "", "")] if gpu_present() else [])


def _run(arguments: argparse.Namespace) -> int:
    options, visible = options_of(arguments), gpus()
    if arguments.devices and not visible:
        raise UsageError(f"--devices {arguments.devices}: no GPU was found")
    what = f"sweep {options.sweep or options.limits.sweep}, profile {options.profile}"
    if not arguments.dry_run:
        print(f"twinbench {options.verb}: {what}" if visible else NO_GPU, flush=True)
    import torch

    from harness import place
    from harness.backend_cpu import without_gpu
    from harness.progress import Reporter

    if visible and torch.version.cuda is None:
        print(f"PyTorch {torch.__version__} cannot use the GPU: measuring what a CPU can show.", flush=True)
        visible = []
    options = options if visible else without_gpu(options)
    where = place.of_gpus(options, visible) if visible else place.of_cpu()
    if arguments.dry_run:
        return _dry_run(options, where)
    from harness.runner import Run

    return Run(options, where, Reporter()).execute()


def _dry_run(options: Options, where: Any) -> int:
    from harness import folder, listing, schedule
    from harness.progress import open_console

    known = folder.known_at(folder.goes_on_at(options.out, options.mode), options.mode)
    cpu = None if where.name == "cuda" else where.make(0)
    tasks = schedule.missing(schedule.tasks(options, cpu)[1], options.seed, where.name, known)
    return listing.show_tasks(tasks, False, open_console())


def _list(arguments: argparse.Namespace, options: Options) -> int:
    from harness.listing import show
    from harness.progress import open_console

    return show(options, getattr(arguments, "json", False), open_console())


def _tune(options: Options) -> int:
    from harness import options as chosen
    from harness.schedule import share

    mine = share(chosen.cases(options), options.shard)
    if not gpu_present():
        print("No GPU was found: there is nothing to tune.", file=sys.stderr)
        return 3
    from harness.tune import show

    return show(mine, next(iter(options.devices), 0), options.seed)


def _compare(arguments: argparse.Namespace) -> int:
    from harness import compare, rows
    from harness.progress import open_console

    old, new = (rows.read(path / "rows.jsonl") for path in (arguments.old, arguments.new))
    compare.show(open_console(), old, new)
    return 0


def _merge(arguments: argparse.Namespace) -> int:
    from harness.merge import merge

    return merge(arguments.out, arguments.folders)


def _report(arguments: argparse.Namespace) -> int:
    from harness.report import write

    return write(arguments.folder, arguments.out)


def _example(arguments: argparse.Namespace) -> int:
    if arguments.steps < 1:
        raise UsageError(f"--steps {arguments.steps} is not at least 1")
    from harness.examples import residual_block

    return residual_block.run(arguments.steps, arguments.recipe, arguments.table)


def _env() -> int:
    from harness.environment import record

    print(json.dumps(record(), indent=1))
    return 0


def _doctor(as_json: bool) -> int:
    if not gpu_present():
        if as_json:
            print(json.dumps({"doubts": ["No GPU was found."], "fit": False}, indent=1))
        else:
            print("No GPU was found: there is nothing to measure.", file=sys.stderr)
        return 3
    from harness.doctor import examine

    return examine(as_json)


def _open_streams() -> None:
    """Let a standard stream that is closed lead nowhere: else a file or a socket takes its number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))


def main(argv: list[str] | None = None) -> int:
    """Run one verb; returns the exit code: 0, 1 something failed, 2 wrong arguments, 130 interrupted."""
    _open_streams()
    arguments = parser().parse_args(argv)
    verbs: dict[str, Any] = {
        "list": lambda: _list(arguments, options_of(arguments)),
        "check": lambda: _run(arguments),
        "bench": lambda: _run(arguments),
        "tune": lambda: _tune(options_of(arguments)),
        "compare": lambda: _compare(arguments),
        "merge": lambda: _merge(arguments),
        "report": lambda: _report(arguments),
        "doctor": lambda: _doctor(arguments.json),
        "example": lambda: _example(arguments),
        "env": _env,
    }
    try:
        code = verbs[arguments.verb]()
        sys.stdout.flush()  # a full disk shows here, not when the interpreter ends
        return code
    except UsageError as error:
        print(f"harness: {error}", file=sys.stderr)
        return 2
    except RowsError as error:
        print(f"harness: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except OSError as error:  # a full disk behind a redirection, a reader that went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the last flush fails once more
        if not isinstance(error, BrokenPipeError):
            print(f"harness: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
