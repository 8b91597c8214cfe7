"""Every specialization that a set of cases asks for, compiled ahead, and what the compiler said of it."""

import sys
from collections.abc import Callable, Iterable
from typing import Any

from harness import rows
from harness.cases import FAMILIES, PIPELINES, Case
from harness.implementations import on_path
from harness.options import repeat_command
from harness.subject import first_line

Request = tuple[str, str]  # (source, kernel), as optimized.jit.build takes it


def plans(cases: Iterable[Case], chip: Any) -> tuple[dict[Case, Any], dict[Case, str]]:
    """The plan that a call of each case takes on `chip`, and why the other cases have none. Needs no GPU:
    inputs are meta tensors. The module of a function plans for it; a pipeline is no function of a module."""
    import optimized

    found, refused = {}, {}
    for case in (case for case in cases if case.function not in PIPELINES):
        try:
            call = FAMILIES[case.function].make(case, "meta", 0)
            module = sys.modules[getattr(optimized, case.function).__module__]
            with on_path(case):
                found[case] = module.plan_of(case.function, *call.args, chip=chip, **call.kwargs)
        except (ValueError, TypeError, NotImplementedError) as error:
            refused[case] = first_line(error)
    return found, refused


def request(plan: Any) -> Request:
    """What `optimized.jit.build` calls a specialization by."""
    return plan.source, plan.kernel


def compile_all(requests: Iterable[Request], arch: str, build: Callable | None = None) -> dict[Request, Any]:
    """Each request's Binary, or the message of the error that it ended with.

    All of them at once, on all cores. Where that raises, one by one, so that an error costs its own
    specialization and no other.
    """
    if build is None:
        from optimized.jit import build
    requests = list(dict.fromkeys(requests))
    try:
        return dict(build(requests, arch))
    except Exception:  # noqa: BLE001 - found again below, with its name
        return {one: _alone(one, arch, build) for one in requests}


def _alone(one: Request, arch: str, build: Callable) -> Any:
    try:
        return build([one], arch)[one]
    except Exception as error:  # noqa: BLE001
        return first_line(error)


def kernel_field(plan: Any, binary: Any) -> dict[str, Any]:
    """Plan and binary as the `kernel` field of a row; what belongs to the binary is null where there is
    none."""
    built = (
        {
            "registers": binary.registers,
            "spill_bytes": binary.spill_bytes,
            "stack_bytes": binary.stack_bytes,
            "static_shared_bytes": binary.shared_bytes,
            "code_digest": binary.code_digest,
        }
        if not isinstance(binary, str) and binary
        else {}
    )
    names = ("source", "kernel", "variant", "grid", "block", "cluster", "workspace_bytes", "cooperative")
    planned = {name: getattr(plan, name) for name in names}
    return planned | {"shared_bytes": plan.shared_bytes + built.get("static_shared_bytes", 0)} | built


def compile_rows(
    planned: dict[Case, Any], binaries: dict[Request, Any], **common: Any
) -> list[dict[str, Any]]:
    """One row of kind "compile" for each specialization, named after the kernel, at the first case that uses
    it."""
    found: dict[Request, dict[str, Any]] = {}
    for case, plan in planned.items():
        one = request(plan)
        if one in found or one not in binaries:
            continue
        binary = binaries[one]
        failed = isinstance(binary, str)
        found[one] = _row(
            case,
            case=plan.kernel,
            status="COMPILE_ERROR" if failed else "OK",
            reason=binary if failed else "",
            compile_ms=None if failed else binary.compile_ms,
            cache_hit=None if failed else binary.cache_hit,
            kernel=kernel_field(plan, binary),
            **common,
        )
    return list(found.values())


def refused_rows(refused: dict[Case, str], **common: Any) -> list[dict[str, Any]]:
    """One row of kind "compile" for each case that no kernel is planned for."""
    return [
        _row(case, case=case.name, status="COMPILE_ERROR", reason=reason, kernel={}, **common)
        for case, reason in refused.items()
    ]


def _row(of: Case, /, **fields: Any) -> dict[str, Any]:
    return rows.row(
        kind="compile",
        function=of.function,
        implementation="optimized",
        dtype=of.dtype,
        recipe=of.recipe,
        options={},
        repeat=repeat_command(of, "optimized", fields["seed"]),
        **fields,
    )
