"""The words of the command line: which there are, and what they say as checked options."""

import argparse
import os
from functools import partial
from pathlib import Path

from harness.options import PROFILES, Options, checked, of_launcher, parse_devices, parse_shard


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
    add("--report", action="store_true", help="end with REPORT.md and plots in the run's folder, whatever failed")


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
