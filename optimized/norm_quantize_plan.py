"""Which path a norm with a quantized output takes, and with which kernel and geometry. Pure functions."""

import enum
from dataclasses import dataclass, replace

from optimized import plan as plans
from optimized.plan import SIZES, Chip, Plan, Problem
from optimized.quantize_plan import THREADS, Work, strips, tiles
from reference.quantizers import Float8CurrentScalingQuantizer, Float8Quantizer, MXFP8Quantizer, NVFP4Quantizer

MOST_BYTES_HELD = 128  # of x in one thread's registers


class Path(enum.Enum):
    """How a norm's output is quantized."""

    UNFUSED = "unfused"
    """Norm, then quantize: two launches, with y between them in memory."""
    FULLY_FUSED = "fully_fused"
    """One launch that needs to know nothing of the whole tensor: no quantizer, delayed scaling, MXFP8."""
    FUSED_NORM_AMAX_FP8 = "fused_norm_amax_fp8"
    """Current scaling: one launch, for the amax of y first, then for its cast; y is never in memory."""
    FUSED_NORM_AMAX_NVFP4 = "fused_norm_amax_nvfp4"
    """NVFP4, likewise."""


_FUSED = {
    type(None): Path.FULLY_FUSED, Float8Quantizer: Path.FULLY_FUSED, MXFP8Quantizer: Path.FULLY_FUSED,
    Float8CurrentScalingQuantizer: Path.FUSED_NORM_AMAX_FP8, NVFP4Quantizer: Path.FUSED_NORM_AMAX_NVFP4,
}
_MEANT_FOR = {
    Path.FULLY_FUSED: "what needs no amax of the whole tensor: no quantizer, delayed scaling, MXFP8",
    Path.FUSED_NORM_AMAX_FP8: "FP8 with current scaling", Path.FUSED_NORM_AMAX_NVFP4: "NVFP4",
}


def choose(quantizer) -> Path:
    """The fused path of the quantizer's recipe. A random Hadamard transform is the one thing that no path fuses."""
    transformed = isinstance(quantizer, NVFP4Quantizer) and quantizer.with_rht
    return Path.UNFUSED if transformed else _FUSED[type(quantizer)]


def refusal(path: Path, quantizer) -> str:
    """Why a norm with that quantizer cannot take `path`; "" where it can."""
    chosen = choose(quantizer)
    if path is chosen or (path is Path.UNFUSED and quantizer is not None):
        return ""
    if path is Path.UNFUSED:
        return "there is no quantizer, hence nothing to do after the norm"
    if chosen is Path.UNFUSED:
        return "a random Hadamard transform of the columns is fused with nothing"
    return f"that path is for {_MEANT_FOR[path]}, but the quantizer is {_called(quantizer)}"


def _called(quantizer) -> str:
    return "None" if quantizer is None else f"a {type(quantizer).__name__}"


def from_registers(problem: Problem, chip: Chip, sm_margin: int = 0) -> Plan | None:
    """The plan of a norm whose rowwise output, of delayed scaling or MXFP8, is cast while its row is in registers.

    None where a row is wider than that, or the 32 elements of a block would not lie in neighbouring lanes of one CTA.
    """
    plan = plans.norm_forward(problem, chip, sm_margin)
    lanes = min(plan.row_threads, 32) * problem.vector
    blocks = problem.output.startswith("ToFp8") or (lanes >= 32 and problem.cols % (32 * plan.cluster) == 0)
    return plan if plan.source == "norm_forward.cu" and blocks else None


@dataclass(frozen=True)
class Rows:
    """How rows lie over a CTA's 256 threads while their statistics are taken: the policy type, and threads a row."""

    policy: str
    threads: int


def rows_of(problem: Problem) -> Rows:
    """Held in registers where they fit, 32 elements a thread rather than fewer: more bytes are on their way at once.

    Many short vectors would spill: then, and beyond 64 elements of 16 bits a thread, rows are walked along.
    """
    types = f"{problem.norm}, {problem.x}, {problem.gain}, {problem.vector}"
    wide = problem.cols > 128 and problem.vector >= 4
    for elements in (32, 64) if wide else (8,):
        threads = max(8, 1 << (-(-problem.cols // elements) - 1).bit_length())
        if threads <= THREADS and elements * SIZES[problem.x] <= MOST_BYTES_HELD:
            scope = f"Lanes<{threads}>" if threads <= 32 else "Group"
            fill = "Whole" if problem.cols == threads * elements and problem.vector >= 4 else "Ragged"
            return Rows(f"Held<{types}, {elements // problem.vector}, {scope}, {fill}>", threads)
    return Rows(f"Walked<{types}>", THREADS)


def in_two_passes(problem: Problem, work: Work, chip: Chip, sm_margin: int = 0) -> Plan:
    """The plan of one cooperative launch: statistics of rows, then y part by part. `work` is what quantize does with y;
    the held part of delayed scaling is float32."""
    family, *policies = work.scheme
    rows, variant = rows_of(problem), ("Tile" if work.columns else "RowTile") if work.tiles else "Strip"
    y = "f32" if policies[-1] == "Delayed" else problem.x
    part = f"Normed{variant}<{problem.norm}, {problem.x}, {problem.gain}, {y}, {'Whole' if work.whole else 'Ragged'}>"
    quantized = f"{family}<{', '.join((part, *policies))}>"
    parts = tiles(work.rows, work.cols) if work.tiles else strips(work.rows, work.cols, work.flat)
    ctas = _ctas(problem, work)
    most = ctas * max(1, chip.sms - sm_margin)
    grid = max(1, min(most, max(parts, -(-problem.rows * rows.threads // THREADS))))
    return Plan(
        "norm_quantize.cu", f"norm_quantize<{quantized}, {rows.policy}, {problem.x}, {ctas}>",
        f"Normed{variant} {family}", grid, THREADS, row_threads=rows.threads,
        workspace_bytes=4 * grid if work.twice else 0, cooperative=True, programmatic=chip.is_hopper_or_later,
    )


def _ctas(problem: Problem, work: Work) -> int:
    """CTAs that an SM holds: as many as registers allow without spills. Checked by compiling."""
    return 1 if problem.norm == "LayerNorm" and work.columns and (problem.x == "f32" or not work.whole) else 2


def of_norm(work: Work, whole: bool) -> Work:
    """`work` on y instead of x: rows are never run together, since each has its own statistics; delayed scaling, whose
    float32 values fill the registers twice as fast, takes tiles only for columns."""
    by_tiles = work.columns or (work.tiles and work.scheme[-1] != "Delayed")
    return replace(work, tiles=by_tiles, whole=whole, flat=False)
