"""What a run was asked for, checked: profiles, filters, and the cases that they choose."""

import ast
import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


class UsageError(Exception):
    """A wrong argument of the command line; its one line names what was given and what is allowed."""


@dataclass(frozen=True)
class Profile:
    """How much a run takes: its sweep, the seconds that one column of one row may take, its warm-up, how many times
    each row is measured anew, and after how long a step of an implementation counts as hanging."""

    sweep: str
    cap_s: float
    warm_up_s: float
    replicates: int
    implementations: tuple[str, ...]
    timeout_s: float = 120.0


# `compiled` costs seconds of compilation at each shape: it is measured where there is time, or where asked.
PROFILES = {
    "quick": Profile("smoke", 0.1, 0.3, 1, ("reference", "optimized", "cublas", "unfused", "eager", "copy")),
    "ci": Profile("ci", 0.3, 1.0, 5, ("reference", "optimized", "cublas", "unfused", "eager", "copy"), 180.0),
    "full": Profile("all", 2.0, 3.0, 10,
                    ("reference", "compiled", "optimized", "cublas", "unfused", "eager", "copy"), 600.0),
}


@dataclass(frozen=True)
class Options:
    """The arguments of `list`, `check` and `bench`, as the command line gives them."""

    verb: str = "bench"
    profile: str = "quick"
    sweep: str | None = None
    functions: tuple[str, ...] = ()
    implementations: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    recipes: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    keyword: str | None = None
    seed: int = 0
    out: Path | None = None
    mode: str = "new"
    budget_s: float | None = None
    timeout_s: float | None = None
    shard: tuple[int, int] = (1, 1)
    devices: tuple[int, ...] = ()

    @property
    def kind(self) -> dict[str, Any]:
        """What all rows of a folder have in common."""
        return {"verb": self.verb, "profile": self.profile, "seed": self.seed}

    @property
    def limits(self) -> Profile:
        """The profile's numbers."""
        return PROFILES[self.profile]

    @property
    def step_limit_s(self) -> float:
        """Seconds that one step of one implementation of a case may take."""
        return self.timeout_s or self.limits.timeout_s


def checked(options: Options) -> Options:
    """The options themselves. Raises UsageError for a number that nothing could be done with."""
    for name, seconds in (("--budget", options.budget_s), ("--timeout", options.timeout_s)):
        if seconds is not None and not 0 < seconds < math.inf:
            raise UsageError(f"{name} {seconds:g} is not a number of seconds above 0")
    if not -(2**63) <= options.seed < 2**64:
        raise UsageError(f"--seed {options.seed} does not fit in 64 bits")
    return options


def parse_shard(text: str) -> tuple[int, int]:
    """(I, N) of "I/N", the I-th of N shares, from 1. Raises UsageError."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise UsageError(f"--shard {text!r} is not I/N with I from 1 to N, as in 2/4")
    return int(found[1]), int(found[2])


def parse_devices(text: str) -> tuple[int, ...]:
    """Indices of CUDA devices, as in "0,1", each once. Raises UsageError."""
    if not re.fullmatch(r"\s*\d{1,4}\s*(,\s*\d{1,4}\s*)*", text):
        raise UsageError(f"--devices {text!r} is not a list of device numbers, as in 0,1")
    return tuple(dict.fromkeys(map(int, text.split(","))))


def of_launcher(options: Options, environ: Mapping[str, str]) -> Options:
    """The options of one process of `torchrun`: its share of the cases, its GPU and, below --out, its own folder.

    What the command line says of shard and devices stands. Raises UsageError for variables that make no sense.
    """
    if options.shard != (1, 1) or environ.get("WORLD_SIZE", "1") == "1":
        return options
    rank, size = environ.get("RANK", ""), environ["WORLD_SIZE"]
    if not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
        raise UsageError(f"RANK={rank!r} and WORLD_SIZE={size!r} are not those of a process of torchrun")
    local = environ.get("LOCAL_RANK", "")
    shard = (int(rank) + 1, int(size))
    out = options.out and options.out / f"shard-{shard[0]}-of-{shard[1]}"
    return replace(options, shard=shard, out=out, devices=options.devices or parse_devices(local or "0"))


def pick(kind: str, names: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """`names` if all are known; else a UsageError that offers the near misses."""
    known = tuple(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
            raise UsageError(f"unknown {kind} {name!r}; {hint}")
    return tuple(names)


def implementations(options: Options) -> tuple[str, ...]:
    """The implementations asked for, or the profile's. Raises UsageError for an unknown one."""
    from harness.implementations import IMPLEMENTATIONS

    return pick("implementation", options.implementations or options.limits.implementations, IMPLEMENTATIONS)


def cases(options: Options) -> list[Any]:
    """The cases that sweep and filters choose, or those that are named outright, in order, each once.

    Raises UsageError for unknown names, malformed shapes and expressions, and for filters that leave nothing.
    """
    from harness import sweeps

    if options.names:
        _refuse_filters(options)
        return list(dict.fromkeys(parse_case(name) for name in options.names))
    name = options.sweep or options.limits.sweep
    pick("sweep", [name], sweeps.SWEEPS)
    _check_filters(options)
    try:
        chosen = sweeps.select(
            sweeps.sweep(name),
            function=options.functions,
            dtype=options.dtypes,
            recipe=options.recipes,
            shape=options.shapes or None,
            keyword=options.keyword,
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not chosen:
        raise UsageError(
            f"no case of sweep {name!r} passes these filters; `list --sweep {name}` shows its cases"
        )
    return list(dict.fromkeys(chosen))


def _refuse_filters(options: Options) -> None:
    """A case that is named is taken as it is: what would filter it has no say, and must not look as if it had."""
    given = {"--sweep": options.sweep, "--function": options.functions, "--dtype": options.dtypes,
             "--recipe": options.recipes, "--shape": options.shapes, "-k": options.keyword}
    for word in (word for word, value in given.items() if value):
        raise UsageError(f"--case names whole cases: {word} cannot choose from them")


def _check_filters(options: Options) -> None:
    from harness.cases import DTYPES, FAMILIES
    from harness.sweeps import RECIPES

    pick("function", options.functions, FAMILIES)
    pick("dtype", options.dtypes, DTYPES)
    pick("recipe", options.recipes, RECIPES)


def parse_case(name: str) -> Any:
    """The case that a name stands for: "rmsnorm_fwd 4096x8192 bf16 gamma_dtype=fp32". Raises UsageError."""
    from harness.cases import DTYPES, FAMILIES, Case, accepted
    from harness.sweeps import RECIPES, parse_shape

    words = name.split()
    plain, pairs = (
        [word for word in words if "=" not in word],
        [word.split("=", 1) for word in words if "=" in word],
    )
    if not 2 <= len(plain) <= 4:
        raise UsageError(
            f"case {name!r} is not of the form: function shape dtype [recipe] [option=value ...]"
        )
    function, shape, dtype, recipe = [*plain, "bf16", "none"][:4] if len(plain) == 2 else [*plain, "none"][:4]
    pick("function", [function], FAMILIES)
    pick("dtype", [dtype], DTYPES)
    pick("recipe", [recipe], RECIPES)
    try:
        options = tuple((key, _value(text)) for key, text in pairs)
        return accepted(Case(function, parse_shape(shape), dtype, recipe, options))
    except ValueError as error:
        raise UsageError(f"case {name!r}: {error}") from None


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def repeat_command(case: Any, implementation: str, seed: int, verb: str = "bench") -> str:
    """The command line that measures just this row again."""
    return f'python -m harness {verb} --case "{case.name}" --impl {implementation} --seed {seed}'
