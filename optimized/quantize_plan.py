"""Which kernel and geometry quantize and dequantize take. Pure functions of shapes, dtypes and chip."""

from dataclasses import dataclass

from optimized.plan import MAX_GRID, SIZES, Chip, Plan

THREADS = 256  # kThreads
STRIP = 4 * 8 * THREADS  # elements of a Strip: kRuns runs of kRun a thread
TILE = 128  # kEdge


@dataclass(frozen=True)
class Work:
    """What is done with x: `scheme` is the family of the kernels' work types with its policies behind the part of x,
    e.g. ("Fp8", "E4M3", "Delayed").

    `tiles`: by tiles of 128×128, which `columns` need and which keep more bytes on their way, rather than by strips
    along the rows. `whole`: every run of eight columns is whole and begins at a multiple of 16 bytes. `flat`: rows and
    their scales follow one another without a gap.
    """

    scheme: tuple[str, ...]
    x: str
    rows: int
    cols: int
    tiles: bool
    columns: bool = False
    whole: bool = True
    flat: bool = False

    @property
    def twice(self) -> bool:
        """Whether x is read twice: once for an amax, all CTAs waiting for one another, and once to be encoded."""
        return self.scheme[0] == "Nvfp4" or self.scheme[-1] == "Current"


def quantize(work: Work, chip: Chip) -> Plan:
    """The plan of quantize: CTAs come and go, a part of x each, but where all have to be there at once."""
    variant = ("Tile" if work.columns else "RowTile") if work.tiles else "Strip"
    part = f"{variant}<{work.x}, {'Whole' if work.whole else 'Ragged'}>"
    family, *policies = work.scheme
    ctas = _ctas(work)
    parts = tiles(work.rows, work.cols) if work.tiles else strips(work.rows, work.cols, work.flat)
    grid = max(1, min(parts, chip.sms * ctas if work.twice else MAX_GRID))
    amaxes = 2 if policies[-1] == "Transformed" else 1
    return Plan(
        "quantize.cu", f"quantize<{family}<{', '.join((part, *policies))}>, {ctas}>", f"{variant} {family}", grid,
        THREADS, workspace_bytes=4 * amaxes * grid if work.twice else 0, cooperative=work.twice,
        programmatic=chip.is_hopper_or_later,
    )


def dequantize(layout: str, y: str, shape: tuple[int, int], chip: Chip) -> Plan:
    """The plan of dequantize from a `layout`, a format type of the kernels; `shape` is rows and cols."""
    family, _, code = layout.partition("<")
    if family == "Mxfp8Columns":
        kernel, grid = f"dequantize_blocks_down<{code[:-1]}, {y}>", _downs(*shape, 16 // SIZES[y])
    elif family.endswith("Columns"):
        kernel, grid = f"dequantize_columns<{layout}, {y}>", tiles(*shape)
    else:
        kernel, grid = f"dequantize_rows<{layout}, {y}>", -(-shape[0] * shape[1] // STRIP)
    return Plan("dequantize.cu", kernel, family, max(1, min(grid, MAX_GRID)), THREADS,
                programmatic=chip.is_hopper_or_later)


def fills_tiles(rows: int, cols: int) -> bool:
    """Whether tiles are to nine tenths what a matrix is made of, so that rowwise data too is quicker by tiles."""
    return rows * cols >= 0.9 * TILE * TILE * tiles(rows, cols)


def _ctas(work: Work) -> int:
    """CTAs that an SM holds: as many as registers allow without spills. Checked by compiling."""
    family, *policies = work.scheme
    if not work.tiles:
        return 3 if SIZES[work.x] == 4 or (work.x == "f16" and not work.whole) else 4
    if SIZES[work.x] == 4 or policies[-1] == "Transformed":
        return 2
    if family == "Nvfp4" and policies[0] == "Nearest" and work.whole:
        return 4
    if not work.columns:
        return 3
    if family == "Mxfp8":
        return 2
    return 3 if work.whole or family == "Nvfp4" else 2


def strips(rows: int, cols: int, flat: bool) -> int:
    """How many strips a matrix is cut into."""
    return -(-(rows * cols if flat else rows * -(-cols // 8) * 8) // STRIP)


def _downs(rows: int, cols: int, together: int) -> int:
    """CTAs whose threads have 8 rows of `together` columns each, or of one where there is a rest."""
    return -(-(rows // 8 * cols // (1 if cols % together else together)) // THREADS)


def tiles(rows: int, cols: int) -> int:
    """How many tiles a matrix is cut into."""
    return -(-rows // TILE) * -(-cols // TILE)
