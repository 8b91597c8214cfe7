"""Which path a norm with a quantized output takes, and with which kernel and geometry. Pure functions."""

import enum
from dataclasses import dataclass, replace
from itertools import starmap

from optimized import plan as plans
from optimized.plan import SIZES, Chip, Plan, Problem
from optimized.quantize_plan import THREADS, TILE, Work, strips, tiles
from reference.quantizers import Float8CurrentScalingQuantizer, Float8Quantizer, MXFP8Quantizer, NVFP4Quantizer

# Threads of an SM for current scaling along rows, by bytes of an element of x: as many as registers allow without
# spills. Checked by compiling.
CURRENT_THREADS = {2: 1024, 4: 512}
KEPT_SHARE = 0.56  # of an SM's shared memory, for rows between two passes; with more, what the L1 loses costs more
MOST_BYTES_HELD = 128  # of x in one thread's registers
SLAB_ROWS = 32  # kSlabRows
SLAB_WARPS = 8
SLAB_STATIC_BYTES = {2: 6 << 10, 4: 10 << 10}  # at most, what norm_slab.cu declares and each CTA costs besides


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
    """The fused path of the quantizer's recipe. A random Hadamard transform, which columns alone go through, is the one
    thing that no path fuses."""
    transformed = isinstance(quantizer, NVFP4Quantizer) and quantizer.with_rht and quantizer.columnwise
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
    """The plan of a norm whose rowwise output, of delayed scaling or MXFP8, is cast while its row is on the chip.

    None where a row is wider than that, or the 32 elements of a block would not lie in neighbouring lanes of one CTA.
    """
    plan = plans.norm_forward(problem, chip, sm_margin)
    lanes = min(plan.row_threads, 32) * problem.vector
    blocks = problem.output.startswith("ToFp8") or (lanes >= 32 and problem.cols % (32 * plan.cluster) == 0)
    return plan if plan.source != "norm_wide.cu" and blocks else None


def by_rows(problem: Problem, code: str, chip: Chip, sm_margin: int = 0) -> Plan | None:
    """The plan of a norm with current scaling, rowwise: one cooperative launch of a CTA an SM, which goes over its rows
    twice, the second time as far as possible in shared memory. None where its registers do not hold a row, or rows
    would leave threads idle."""
    m = plans.forward_map(problem, replace(chip, clusters=()))
    if m is None:
        return None
    tight = (problem.norm, problem.gain) == ("LayerNorm", "ZeroCentered<f32>")  # more than 768 would spill
    limit = min(CURRENT_THREADS[SIZES[problem.x]], 768 if tight else 1024, plans.FORWARD_THREADS[m.rows.elements])
    if limit % m.limit:
        return None
    threads = m.rows.threads
    in_warp = max(1, 32 // threads)
    warps_of_rows = max(1, -(-problem.rows // in_warp))
    grid = min(max(1, chip.sms - sm_margin), warps_of_rows)
    most = limit // threads if threads <= 32 else min(limit // threads, plans.MAX_GROUP_SLOTS)
    slots = min(most, -(-warps_of_rows // grid) * in_warp)
    row = slots * threads * m.rows.elements * SIZES[problem.x]  # a row of each slot
    kept = min(int(KEPT_SHARE * chip.shared_bytes) // row, -(-problem.rows // (grid * slots)))
    types = f"{replace(m, scope=m.rows.scope).types}, {limit}, {code}"
    return Plan("norm_current.cu", f"norm_current<{types}>", f"{m.rows.scope} current", grid, slots * threads,
                row_threads=threads, stages=kept, stage_bytes=row, shared_bytes=kept * row,
                workspace_bytes=4 * grid, cooperative=True, programmatic=chip.is_hopper_or_later)


@dataclass(frozen=True)
class Rows:
    """How rows lie over a CTA's 256 threads while their statistics are taken: the policy type, and threads a row."""

    policy: str
    threads: int


def rows_of(problem: Problem, most_bytes: int = MOST_BYTES_HELD) -> Rows:
    """Held in registers where they fit, `most_bytes` a thread where rows are that wide: with half as many threads on an
    SM as the norm alone has, as many bytes are on their way at once.

    Many short vectors would spill: then, and where 256 threads do not hold a row, it is walked along.
    """
    types = f"{problem.norm}, {problem.x}, {problem.gain}, {problem.vector}"
    most = most_bytes // SIZES[problem.x]
    wide = problem.cols > 128 and problem.vector >= 4
    for elements in (32 if problem.cols <= 8 * most else most, most) if wide else (8,):
        threads = max(8, 1 << (-(-problem.cols // elements) - 1).bit_length())
        if threads <= THREADS:
            if wide:  # as few as hold the row, so that all threads have some of it
                elements = plans.round_up(-(-problem.cols // threads), 8)
            scope = f"Lanes<{threads}>" if threads <= 32 else "Group"
            fill = "Whole" if problem.cols == threads * elements and problem.vector >= 4 else "Ragged"
            return Rows(f"Held<{types}, {elements // problem.vector}, {scope}, {fill}>", threads)
    return Rows(f"Walked<{types}>", THREADS)


def in_two_passes(problem: Problem, work: Work, chip: Chip, sm_margin: int = 0) -> Plan:
    """The plan of one cooperative launch: statistics of rows, then y part by part. `work` is what quantize does with y;
    the held part of delayed scaling is float32."""
    rows, ctas, part = _rows(problem, work), _ctas(problem, work), _part(problem, work)
    parts = tiles(work.rows, work.cols) if work.tiles else strips(work.rows, work.cols, work.flat)
    most = ctas * max(1, chip.sms - sm_margin)
    grid = max(1, min(most, max(parts, -(-problem.rows * rows.threads // THREADS))))
    kernel = f"norm_quantize<{_quantized(work, part)}, {rows.policy}, {problem.x}, {ctas}>"
    return Plan("norm_quantize.cu", kernel, f"{part.split('<')[0]} {work.scheme[0]}", grid, THREADS,
                row_threads=rows.threads, workspace_bytes=4 * grid if work.twice else 0, cooperative=True,
                programmatic=chip.is_hopper_or_later)


def slabs(problem: Problem, work: Work, chip: Chip, sm_margin: int = 0) -> Plan | None:
    """The plan of a norm with MXFP8 or delayed scaling, columnwise or both ways, of slabs of 32 whole rows in the
    shared memory of a cluster: CTAs come and go; with an `sm_margin` there are only as many as the other SMs hold, and
    they stay. None where slabs are too wide, rows do not lie on 16 bytes, or columns are no multiple of 64."""
    asked = work.columns and not work.twice and work.whole and problem.cols % 64 == 0
    layout = _slab_layout(problem, work, chip) if asked and chip.is_hopper_or_later else None
    if layout is None:
        return None
    family, code, *_ = work.scheme
    most = layout.on_sm * plans.at_once(chip, layout.cluster, sm_margin)
    grid = max(1, min(most if sm_margin else plans.MAX_GRID, -(-problem.rows // SLAB_ROWS))) * layout.cluster
    types = f"{problem.norm}, {problem.x}, {problem.gain}, {code}, {layout.warps}"
    return Plan("norm_slab.cu", f"norm_slab<Slab{family}<{types}>, {layout.ctas}>", f"Slab {family} x{layout.cluster}",
                grid, 32 * layout.warps, layout.cluster, stage_bytes=SLAB_ROWS * layout.cols * SIZES[problem.x],
                shared_bytes=layout.shared_bytes, programmatic=True)


@dataclass(frozen=True)
class SlabLayout:
    """`cols` columns of a slab in each CTA of a `cluster`: how many `warps` a CTA has, how many `ctas` registers leave
    room for on an SM, and how many are `on_sm` with that much shared memory."""

    cluster: int
    cols: int
    warps: int
    ctas: int
    on_sm: int
    shared_bytes: int


def _slab_layout(problem: Problem, work: Work, chip: Chip) -> SlabLayout | None:
    """The fewest CTAs that hold a slab so that two or more of them share an SM; only then clusters of 16, whose CTAs
    wait longer for one another, and last CTAs that have an SM for themselves, with twice the warps."""
    family = work.scheme[0]
    columnwise = SIZES[problem.gamma] * (2 if problem.norm == "LayerNorm" else 1) + (family == "Mxfp8")
    column = SLAB_ROWS * SIZES[problem.x] + columnwise
    most = 2 if (problem.x, family) == ("f32", "Mxfp8") else 3  # as many as registers allow without spills

    def layout(cluster, wanted):
        cols = plans.round_up(-(-problem.cols // cluster), TILE)
        warps, ctas = (SLAB_WARPS, most) if wanted > 1 else (2 * SLAB_WARPS, 1)
        on_sm = min(ctas, chip.shared_bytes // (cols * column + SLAB_STATIC_BYTES[SIZES[problem.x]]))
        return SlabLayout(cluster, cols, warps, ctas, on_sm, cols * column) if on_sm >= wanted else None

    asked = ((cluster, wanted) for wanted in (2, 1) for cluster in (1, *dict(chip.clusters)))
    return next(filter(None, starmap(layout, asked)), None)


def in_two_launches(problem: Problem, work: Work, chip: Chip, sm_margin: int = 0) -> tuple[Plan, Plan]:
    """Statistics of rows and amax of y in a launch of their own, then y part by part: what the one is compared with."""
    one, ctas = in_two_passes(problem, work, chip, sm_margin), _ctas(problem, work)
    quantized = _quantized(work, f"Later<{_part(problem, work)}>")
    return (
        replace(one, kernel=f"norm_amax<{_rows(problem, work).policy}, {problem.x}, {ctas}>", cooperative=False),
        replace(one, kernel=f"quantize_normed<{quantized}, {ctas}>", cooperative=False),
    )


def _part(problem: Problem, work: Work) -> str:
    """The type of a part of y."""
    kind, y = ("Tile" if work.columns else "RowTile") if work.tiles else "Strip", problem.x
    if work.scheme[-1] == "Delayed":
        y = "f32"
    fill = "Whole" if work.whole else "Ragged"
    return f"Normed{kind}<{problem.norm}, {problem.x}, {problem.gain}, {y}, {fill}>"


def _quantized(work: Work, part: str) -> str:
    """The type of what is done with a part."""
    family, *policies = work.scheme
    return f"{family}<{', '.join((part, *policies))}>"


def _ctas(problem: Problem, work: Work) -> int:
    """CTAs that an SM holds: as many as registers allow without spills. Checked by compiling."""
    full = [problem.norm == "LayerNorm", problem.x == "f32", not work.whole].count(True) >= 2 or (
        problem.norm == "LayerNorm" and problem.x == "f16" and problem.cols <= 128)
    return 1 if work.tiles and full else 2


def _rows(problem: Problem, work: Work) -> Rows:
    """Likewise."""
    many = problem.norm == "LayerNorm" and work.scheme[0] == "Mxfp8"
    return rows_of(problem, MOST_BYTES_HELD // 2 if many else MOST_BYTES_HELD)


def of_norm(work: Work, whole: bool) -> Work:
    """`work` on y instead of x: rows are never run together, since each has its own statistics; delayed scaling, whose
    float32 values fill the registers twice as fast, takes tiles only for columns."""
    by_tiles = work.columns or (work.tiles and work.scheme[-1] != "Delayed")
    return replace(work, tiles=by_tiles, whole=whole, flat=False)
