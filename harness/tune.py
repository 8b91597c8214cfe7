"""Measure which tile serves a product best on this GPU, beside the model's choice, and remember it (`tune`).

A case's tiles take turns on the engine that measures everything else. A tile is remembered where the whole interval of
its speed-up over the model's choice lies above 1 by the gain that it must show at least; else the model is.
"""

import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from harness.cases import PRODUCTS, Case, family_of
from harness.implementations import IMPLEMENTATIONS
from harness.options import PROFILES
from harness.samples import speedup
from harness.subject import DeviceLost, Subject

LEAST_GAIN = 1.01
REPLICATES, CAP_S = 4, 0.1  # of a column of a case


@dataclass(frozen=True)
class Tuned:
    """The tile that is taken for a case from now on ("model": as the model says), its graph time in µs, that of the
    model's choice, the speed-up with its interval, and the seconds that it took to know."""

    case: Case
    tile: str
    time_us: float
    model_us: float
    gain: dict[str, float]
    seconds: float

    def line(self) -> str:
        """As the command prints it."""
        return (f"{self.case.name}: {self.tile}, {self.time_us:,.2f} µs; model {self.model_us:,.2f} µs; "
                f"x {self.gain['median']:.3f} [{self.gain['ci_low']:.3f}, {self.gain['ci_high']:.3f}]; "
                f"{self.seconds:.1f} s")


def tune(cases: Iterable[Case], index: int = 0, seed: int = 0) -> Iterator[Tuned | Subject]:
    """Tune every case that optimized multiplies on the tensor cores of Hopper, and keep what was found. Of one that
    fails there is a Subject that says why."""
    from harness.backend_gpu import Gpu

    backend = Gpu(replace(PROFILES["quick"], replicates=REPLICATES, cap_s=CAP_S), index)
    for case in cases:
        if case.function in PRODUCTS:
            found, subject = None, Subject(case, "optimized")
            with subject.guarded(backend):
                found = _tuned(backend, case, seed)
            if not subject.ok:
                yield subject
            elif found:
                yield found


def show(cases: Iterable[Case], index: int = 0, seed: int = 0) -> int:
    """Tune, and print each result when it is there; the exit code: 1 where something failed."""
    count, seconds, failed = 0, 0.0, False
    try:
        for found in tune(cases, index, seed):
            if isinstance(found, Subject):
                print(f"{found.case.name}: {found.status}: {found.reason}", flush=True)
                failed = True
            else:
                print(found.line(), flush=True)
                count, seconds = count + 1, seconds + found.seconds
    except DeviceLost as error:
        print(f"the device is lost: {error}", flush=True)
        failed = True
    print(f"{count} products tuned in {seconds:.0f} s")
    return int(failed)


def candidates(case: Case, chip: Any) -> tuple[tuple, tuple]:
    """The products of a case, as plans see them, and the tiles to try; none where it takes another path."""
    import optimized
    from optimized import gemm_plan, gemm_tiles, products

    call = family_of(case.function).make(case, "meta", seed=0)
    given = inspect.signature(getattr(optimized, case.function)).bind(*call.args, **call.kwargs)
    asked = products.asked(case.function, given)
    return asked, gemm_tiles.tiles(asked) if gemm_plan.takes(asked, chip) else ()


def _tuned(backend: Any, case: Case, seed: int = 0) -> Tuned | None:
    from optimized import tuning

    start, chip = time.perf_counter(), backend.chip()
    asked, tiles = candidates(case, chip)
    if not tiles:
        return None
    choices = {Subject(case, "optimized"): tile for tile in (None, *tiles)}
    call = family_of(case.function).make(case, backend.name, seed=seed)
    run = IMPLEMENTATIONS["optimized"].prepare(case, call)
    backend.time(case, call, [(subject, _forced(run, tile)) for subject, tile in choices.items()])
    right = {subject: tile for subject, tile in choices.items() if subject.ok and subject.fields.get("replicates")}
    model = next(iter(choices))
    if model not in right:
        raise RuntimeError(f"tune: {case.name}: {model.status}: {model.reason}")

    def us(subject):
        return subject.fields["replicates"]["graph_us"]

    best = max(right, key=lambda subject: speedup(us(model), us(subject))["median"])
    gain = speedup(us(model), us(best))
    if gain["ci_low"] < LEAST_GAIN:
        best, gain = model, speedup(us(model), us(model))
    tuning.remember(asked, chip, right[best])
    tile = "model" if right[best] is None else right[best].name
    median = {subject: subject.fields["graph_us"]["median"] for subject in (best, model)}
    return Tuned(case, tile, median[best], median[model], gain, time.perf_counter() - start)


def _forced(run: Callable, tile: Any) -> Callable:
    """`run`, prepared with a tile of its own. The model's choice is measured as such, whatever was remembered."""
    from optimized import gemm, products
    from optimized.operands import Prepared

    prepared = Prepared()

    def forced(call):
        before, products._prepared = products._prepared, prepared
        try:
            with gemm.forced_tile(tile):
                return run(call)
        finally:
            products._prepared = before

    return forced
