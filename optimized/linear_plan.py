"""Which kernel and tile the products of a linear layer take on the general path. Pure functions of shapes, layouts,
dtypes and chip."""

import itertools
from dataclasses import dataclass

from optimized.plan import Chip, Plan, round_up

THREADS = 256  # kThreads
SIMT_DEPTH, SIMT_PADDING = 16, 4  # Simt::kDepth; FloatPanel's padding, in elements
MMA_ROW_BYTES, MMA_STAGES = 64, 4  # a TensorCore's kDepth in bytes, kStages
COSTS = {  # tile -> of an element of D: a load serves fewer products in a small one
    "mma": {(128, 128): 1.0, (64, 64): 1.4},
    "tf32": {(128, 64): 1.0, (64, 64): 1.2},  # which has no registers for 128 x 128
    # over 128 products in a cycle of an SM
    "simt": {(128, 128): 1.35, (128, 64): 1.6, (64, 64): 2.0, (16, 256): 3.0},
}
LONELY = 1.2  # a CTA of exact float32 that is alone on its SM takes so many times its part of the time of two
START_CYCLES, SHARED_CYCLES = 3000, 4000  # of such a CTA, beyond the arithmetic, and of one that shares its tile
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
    """A product cut into `tiles` of m x n elements of D, the general path's: one a CTA, or a cluster of as many CTAs as
    K is cut into `shares`."""

    product: Product
    m: int
    n: int
    shares: int = 1

    @property
    def tiles(self) -> int:
        """How many; 0 where D is empty."""
        return -(-self.product.m // self.m) * -(-self.product.n // self.n)

    @property
    def spelled(self) -> str:
        """The C++ types of core and epilogue."""
        p = self.product
        a, b = ("Across" if across else "AlongK" for across in (p.a_across, p.b_across))
        types = f"{a}, {b}, {self.m}, {self.n}" + (", true" if self.shares > 1 else "")
        core = f"Simt<{types}>" if p.simt else f"TensorCore<{p.element}, {types}>"
        return f"{core}, {'ScaleAdd' if p.adds else 'Store'}<{p.output}>"

    @property
    def shared_bytes(self) -> int:
        """Of the stages of A and B; of exact float32 also those of sums."""
        if self.product.simt:
            stages = 2 if self.m * self.n > 4096 else 4  # kStages
            return stages * SIMT_DEPTH * 4 * (self.m + self.n + 2 * SIMT_PADDING) + 4 * self.m * self.n
        return MMA_STAGES * MMA_ROW_BYTES * (self.m + self.n)


def starts_sooner(product: Product, chip: Chip) -> bool:
    """Whether the general path is the fastest, though others could do it: a shallow product of few tiles."""
    return product.k <= SHALLOW and Tiling(product, 64, 64).tiles <= chip.sms


def tilings(products: tuple[Product, ...], chip: Chip) -> tuple[Tiling, ...]:
    """The products, each cut into tiles of the size that the model finds fastest for all: what the busiest SM has to
    do. The results do not depend on it; but those of exact float32 do on how many CTAs share a tile."""
    if products[0].simt:
        return _simt_tilings(products, chip)
    costs = COSTS["tf32" if products[0].element == "f32" else "mma"]

    def time(tile):
        tiles = sum(Tiling(product, *tile).tiles for product in products)
        return -(-tiles // chip.sms) * tile[0] * tile[1] * costs[tile]

    best = min(costs, key=time)
    return tuple(Tiling(product, *best) for product in products)


def _simt_tilings(products: tuple[Product, ...], chip: Chip) -> tuple[Tiling, ...]:
    """One tile for all, and of those products that share theirs one size of cluster."""
    shares = dict.fromkeys(each for size in (1, *chip.cluster_sizes)
                           for each in itertools.product((1, size), repeat=len(products)))
    tiled = (tuple(Tiling(product, *tile, share) for product, share in zip(products, each))
             for tile in COSTS["simt"] for each in shares)
    return min(tiled, key=lambda each: _simt_cycles(each, chip))  # of equals the one that shares less


def _simt_cycles(tiled: tuple[Tiling, ...], chip: Chip) -> float:
    """Of the busiest SM: of the CTAs of one product, or of its share of all."""
    size = max(tiling.shares for tiling in tiled)
    sms = size * dict(chip.clusters).get(size, chip.sms)
    alone, together, lonely = 0, 0, LONELY if len(tiled) == 1 else 2  # else it has company of the other's
    for tiling in tiled:
        area = tiling.m * tiling.n * COSTS["simt"][tiling.m, tiling.n] / 128
        cycles = area * tiling.product.k / tiling.shares + START_CYCLES + SHARED_CYCLES * (tiling.shares > 1)
        ctas = tiling.tiles * tiling.shares
        rounds = -(-ctas // sms)
        alone = max(alone, cycles * (rounds - 1 + lonely if rounds % 2 else rounds))
        together += ctas / sms * cycles
    return max(alone, together)


def general(function: str, tiled: tuple[Tiling, ...], chip: Chip) -> Plan:
    """The plan of the general path: one launch for a product or for two that do not depend on each other.

    Errors: ValueError for a result of more tiles than a grid has CTAs, or of too long rows.
    """
    cluster, cols = max(tiling.shares for tiling in tiled), max(tiling.product.n for tiling in tiled)
    grid = sum(round_up(tiling.tiles * tiling.shares, cluster) for tiling in tiled)
    if grid > MAX_GRID:
        raise ValueError(f"{function}: the result has {grid} tiles, but optimized takes at most {MAX_GRID}")
    if cols > MAX_COLS:
        raise ValueError(f"{function}: the result has {cols} columns, but optimized takes at most {MAX_COLS}")
    name = "gemm_general" if len(tiled) == 1 else "gemm_general_pair"
    kernel = f"{name}<{', '.join(tiling.spelled for tiling in tiled)}>"
    core = "simt" if tiled[0].product.simt else "mma"
    variant = f"general {core} {tiled[0].m}x{tiled[0].n}" + (f", K over {cluster}" if cluster > 1 else "")
    return Plan("gemm_general.cu", kernel, variant, max(1, grid), THREADS, cluster,
                shared_bytes=max(tiling.shared_bytes for tiling in tiled), programmatic=chip.is_hopper_or_later)
