"""What a run takes in which order: cases with their implementations, what each costs, and one share of several."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness import options as chosen
from harness.case_run import blank
from harness.cases import FAMILIES, PIPELINES, PRODUCTS, Case, family_of
from harness.folder import Known
from harness.implementations import IMPLEMENTATIONS, suited
from harness.options import Options, UsageError

COPY_TBS = 4.28  # of an H200: what the estimates stand on
PRODUCT_TFLOPS = {"bf16": 700.0, "fp16": 700.0, "fp32": 50.0}
CASE_S, REPLICATE_S, PASSES = 0.6, 0.3, 6300
"""A case takes about CASE_S, REPLICATE_S for each replicate, and PASSES times its bytes at the copy rate: fitted to a
run of the llm sweep in five replicates."""
CUT = "Cases are cut to about a million elements each, in fewer rows: this is a CPU."
PRODUCT_PASSES = 1500
"""Of a matrix product, whose calls are long, and whose reference is checked but not timed: reckoned, not fitted."""


@dataclass(frozen=True)
class Task:
    """A case, the implementations that are to be run for it, and how often each is measured."""

    case: Case
    names: tuple[str, ...]
    replicates: int = 1

    @property
    def family(self) -> str:
        """The file of harness/cases that the function's family is in: a worker runs cases of one."""
        return type(FAMILIES[self.case.function]).__module__

    @property
    def about_s(self) -> float:
        """A rough guess of what the case, parity included, takes on an H200."""
        return about_s(self.case, self.replicates)


def about_s(case: Case, replicates: int = 1) -> float:
    """A rough guess of what a case, parity included, takes on an H200."""
    passes = PRODUCT_PASSES if case.function in (*PRODUCTS, *PIPELINES) else PASSES
    return CASE_S + REPLICATE_S * replicates + passes * limit_us(case) / 1e6


def limit_us(case: Case) -> float:
    """The time of an H200 that moves the bytes of the case at its copy rate, and multiplies at that of its products."""
    work = family_of(case.function).work(case)
    multiplies = case.function in (*PRODUCTS, *PIPELINES)
    rate = PRODUCT_TFLOPS.get(work.operands, PRODUCT_TFLOPS["fp32"]) if multiplies else 1e9
    return max(work.bytes / COPY_TBS, work.flops / rate) / 1e6


def share(cases: Sequence[Case], shard: tuple[int, int]) -> list[Case]:
    """The cases of share I of N (from 1), in order. The shares are disjoint, are all cases together, and cost about
    the same: the dearest case first, each goes where least is."""
    number, count = shard
    loads, mine = [0.0] * count, []
    for index in sorted(range(len(cases)), key=lambda index: -about_s(cases[index])):
        least = loads.index(min(loads))
        loads[least] += about_s(cases[index])
        if least == number - 1:
            mine.append(index)
    return [cases[index] for index in sorted(mine)]


def tasks(options: Options, cpu: Any = None) -> tuple[list[Case], list[Task]]:
    """The cases that are asked for, and what is to be run: tasks of this share, families one after the other.

    On a machine without a GPU `cpu`, the backend, cuts the cases and says which implementations it takes.
    Raises UsageError as options.cases does.
    """
    asked, names = chosen.cases(options), chosen.implementations(options)
    cases = cpu.cases(asked) if cpu else asked
    replicates = options.limits.replicates
    if options.implementations:
        _check_suited(cases, names)
    every = {}
    for case in cases:
        suits = suited(case, names, bool(options.implementations))
        every[case] = Task(case, tuple(cpu.names(case, suits) if cpu else suits), replicates)
    mine = [every[case] for case in share(cases, options.shard)]
    families = list(dict.fromkeys(task.family for task in mine))
    return asked, sorted(mine, key=lambda task: families.index(task.family))


def _check_suited(cases: Iterable[Case], names: Iterable[str]) -> None:
    """UsageError for an implementation that was asked for, and that none of the cases has."""
    functions = {case.function for case in cases}
    for name in names:
        has = IMPLEMENTATIONS[name].functions
        if has is not None and not functions & set(has):
            raise UsageError(f"no case that was asked for has an implementation {name!r}; it is of {', '.join(has)}")


def cut(asked: Iterable[Case], planned: Iterable[Task]) -> bool:
    """Whether what is planned are not the cases that were asked for, as where there is no GPU."""
    return not {task.case for task in planned} <= set(asked)


def missing(planned: Iterable[Task], seed: int, device: str, known: Known) -> list[Task]:
    """The tasks with what `known` lacks. A case with a row that is to be replaced is run again as a whole: its ratios
    come from one measurement."""
    found = []
    for task in planned:
        blanks = {name: blank(task.case, name, seed=seed, device=device) for name in task.names}
        if not any(known.mendable(row) for row in blanks.values()):
            task = replace(task, names=tuple(name for name, row in blanks.items() if not known.stands(row)))
        if task.names:
            found.append(task)
    return found
