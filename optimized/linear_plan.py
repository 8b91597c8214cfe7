"""Which kernel and tile the products of a linear layer take on the general path. Pure functions of shapes, layouts,
dtypes and chip."""

from dataclasses import dataclass

from optimized.plan import Chip, Plan

THREADS = 256  # kThreads
SIMT_DEPTH, SIMT_STAGES, SIMT_PADDING = 16, 2, 4  # Simt::kDepth, kStages; FloatPanel's padding, in elements
MMA_ROW_BYTES, MMA_STAGES = 64, 4  # a TensorCore's kDepth in bytes, kStages
COSTS = {  # tile -> of an element of D: a load serves fewer products in a small one
    "mma": {(128, 128): 1.0, (64, 64): 1.4},
    "tf32": {(128, 64): 1.0, (64, 64): 1.2},  # which has no registers for 128 x 128
    "simt": {(128, 128): 1.0, (128, 64): 1.15, (64, 64): 1.8},
}
MAX_GRID = 2**31 - 1
MAX_COLS = 2**35 - 64  # of D: a Corner counts eight tiles of each column of tiles in 32 bits
SHALLOW = 128  # of K
DEPTH = 64  # kDepth: elements of K in a stage, where the copy engine loads
MAX_EXTENT = 1 << 30  # of what it loads: its coordinates are int32, and a pair of tiles may reach beyond
MEMORY_BYTES_A_CYCLE = 18  # of an SM: its share of an H200's rate


@dataclass(frozen=True)
class Product:
    """D (m, n) = scale · A (m, k) · B (k, n) (+ C, where it `adds`).

    `element` is the C++ type of A and B, `output` that of C and D. `a_across`, `b_across`: whether A's neighbours in
    memory lie along m, B's along n, instead of along k. `exact`: f32 is multiplied as such, not as TF32. `aligned`:
    every operand and every row of it begins at a multiple of 16 bytes, and D's rows end at one. `vectors`: A, B and
    their rows begin at multiples of 16 bytes, whatever C and D do. `apart`: neither of A nor of B does a row lie on
    another.
    """

    m: int
    n: int
    k: int
    element: str
    output: str
    a_across: bool = False
    b_across: bool = False
    adds: bool = False
    exact: bool = True
    aligned: bool = True
    vectors: bool = True
    apart: bool = True

    @property
    def simt(self) -> bool:
        """Whether it goes without tensor cores."""
        return self.element == "f32" and self.exact


@dataclass(frozen=True)
class Tiling:
    """A product cut into `tiles` of m x n elements of D, one a CTA: the general path's."""

    product: Product
    m: int
    n: int

    @property
    def tiles(self) -> int:
        """How many; 0 where D is empty."""
        return -(-self.product.m // self.m) * -(-self.product.n // self.n)

    @property
    def spelled(self) -> str:
        """The C++ types of core and epilogue."""
        p = self.product
        a, b = ("Across" if across else "AlongK" for across in (p.a_across, p.b_across))
        types = f"{a}, {b}, {self.m}, {self.n}"
        core = f"Simt<{types}>" if p.simt else f"TensorCore<{p.element}, {types}>"
        return f"{core}, {'ScaleAdd' if p.adds else 'Store'}<{p.output}>"

    @property
    def shared_bytes(self) -> int:
        """Of the stages of A and B; of exact float32 also those of sums."""
        if self.product.simt:
            return SIMT_STAGES * SIMT_DEPTH * 4 * (self.m + self.n + 2 * SIMT_PADDING) + 4 * self.m * self.n
        return MMA_STAGES * MMA_ROW_BYTES * (self.m + self.n)


def starts_sooner(product: Product, chip: Chip) -> bool:
    """Whether the general path is the fastest, though others could do it: a shallow product of few tiles."""
    return product.k <= SHALLOW and Tiling(product, 64, 64).tiles <= chip.sms


def tilings(products: tuple[Product, ...], chip: Chip) -> tuple[Tiling, ...]:
    """The products, each cut into tiles of the size that the model finds fastest for all: what the busiest SM has to
    do. The results do not depend on it."""
    costs = COSTS["simt" if products[0].simt else "tf32" if products[0].element == "f32" else "mma"]

    def time(tile):
        tiles = sum(Tiling(product, *tile).tiles for product in products)
        return -(-tiles // chip.sms) * tile[0] * tile[1] * costs[tile]

    best = min(costs, key=time)
    return tuple(Tiling(product, *best) for product in products)


def general(function: str, tiled: tuple[Tiling, ...], chip: Chip) -> Plan:
    """The plan of the general path: one launch for a product or for two that do not depend on each other.

    Errors: ValueError for a result of more tiles than a grid has CTAs, or of too long rows.
    """
    grid, cols = sum(tiling.tiles for tiling in tiled), max(tiling.product.n for tiling in tiled)
    if grid > MAX_GRID:
        raise ValueError(f"{function}: the result has {grid} tiles, but optimized takes at most {MAX_GRID}")
    if cols > MAX_COLS:
        raise ValueError(f"{function}: the result has {cols} columns, but optimized takes at most {MAX_COLS}")
    name = "gemm_general" if len(tiled) == 1 else "gemm_general_pair"
    kernel = f"{name}<{', '.join(tiling.spelled for tiling in tiled)}>"
    core = "simt" if tiled[0].product.simt else "mma"
    variant = f"general {core} {tiled[0].m}x{tiled[0].n}"
    return Plan("gemm_general.cu", kernel, variant, max(1, grid), THREADS,
                shared_bytes=max(tiling.shared_bytes for tiling in tiled), programmatic=chip.is_hopper_or_later)
