"""The command line: python -m harness {list,check,bench,tune,compare,merge,report,doctor,example,env}. What is slow to
import comes later."""

import argparse
import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

from harness.arguments import options_of, parser
from harness.options import Options, UsageError
from harness.rows import RowsError
from harness.telemetry import visible_devices

NO_GPU = "No GPU was found: measuring what one CPU thread can show (references, torch.compile, the compile report)."


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
    from harness.runner import INTERRUPTED, Run

    run = Run(options, where, Reporter())
    code = run.execute()
    return code if not arguments.report or code == INTERRUPTED else _report_of(run.folder.path, code)


def _report_of(path: Path, code: int) -> int:
    """Write the report of a run that ended with an exit code, and keep that."""
    from harness.report import write

    return write(path, None) or code


def _dry_run(options: Options, where: Any) -> int:
    from harness import folder, listing, schedule
    from harness.progress import open_console

    known = folder.known_at(folder.goes_on_at(options.out, options.mode), options.mode, **options.kind)
    asked, planned = schedule.tasks(options, None if where.name == "cuda" else where.make(0))
    if schedule.cut(asked, planned):
        print(schedule.CUT)
    tasks = schedule.missing(planned, options.seed, where.name, known)
    return listing.show_tasks(tasks, open_console(), where.name)


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
    from harness import compare, folder, rows
    from harness.progress import open_console

    old, new = (rows.read(folder.of(path) / "rows.jsonl") for path in (arguments.old, arguments.new))
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
