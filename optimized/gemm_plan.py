"""Which tile and which order of work a product takes on the tensor cores of Hopper. Pure functions of shapes and chip.

A launch computes one product D = A B (+ C), or two: backward's gradients. Clusters of two CTAs walk down lists of
items, which are pairs of neighbouring tiles that have their part of A or of B in common.
"""

import functools
import heapq
import math
from array import array
from dataclasses import dataclass, replace

from optimized import few_plan, skinny_plan
from optimized.linear_plan import DEPTH, MAX_EXTENT, MEMORY_BYTES_A_CYCLE, Product, starts_sooner
from optimized.plan import H200, SIZES, Chip, Plan, round_up

CLUSTER = 2
SLOT_BYTES = 2 * 64 * 64  # of staging memory
THREADS = 384
SECOND, SHARES_A = 1, 2  # bits of Item::what
STORES, ADDS_C, STORES_FLOATS, ADDS_FLOATS = 0, 4, 8, 12
FEW_ROWS = 128  # of x, and fewer, are always left to gemm_few.cu where it takes them
FEW_SHARE = 1.08  # of its time by its model, which is too kind where there are more
GROUP_ROWS = 2048  # of D that a wave of clusters works on, so that it re-reads A and B in the L2

# A model of the busiest CTA's time, in SM cycles, fitted to 130 products of 129 to 16384 rows on an H200. Loaded bytes
# cost time beside operations, perhaps by their power.
FLOPS_A_CYCLE = 4096
LOADED_BYTES_A_CYCLE = 360  # from the L2
ARRIVING_BYTES_A_CYCLE, ACROSS_BYTES_A_CYCLE = 57, 49  # at an SM, also by another's load; where an operand lies across
TORN = 1.35  # of these, where 128 bytes of a row lie across two lines
BUSY_SHARE = 0.25  # more, where all SMs are at work
FILL_CYCLES = 5300  # of a launch: until the first product, and after the last
STORE_CYCLES, WAIT_CYCLES = 0.02, 0.08  # an element of the last tile; of a tile whose consumers do not take turns
SECOND_LAUNCH_CYCLES = 4500
SUMS_BYTES_A_CYCLE = 13  # of an SM: sums over parts of K, written and read again
NEARLY = 1.012  # as fast: then LARGE, which takes less power, having the fewest bytes loaded for each result
MIN_STEPS, MAX_PARTS = 4, 32  # of K
MAX_DEPTH = DEPTH * 0x7FFF  # Item::stages


@dataclass(frozen=True)
class Tile:
    """`rows` and `cols` of D that a CTA works on at a time: one tile for both consumers (Cooperative), or one each,
    by turns (PingPong). `stages` of A and B in flight, `slots` a consumer for D on its way out."""

    schedule: str
    rows: int
    cols: int
    stages: int
    slots: int

    @property
    def spelled(self) -> str:
        """The C++ type."""
        return f"Tile<{self.schedule}, {self.rows}, {self.cols}, {self.stages}, {self.slots}>"

    @property
    def stage_bytes(self) -> int:
        """sizeof(GemmShared::Stage)."""
        return 2 * DEPTH * (self.rows + self.cols)

    @property
    def shared_bytes(self) -> int:
        """sizeof(GemmShared)."""
        barriers = 16 * (self.stages + self.slots)
        return round_up(self.stage_bytes * self.stages + 2 * self.slots * SLOT_BYTES + barriers, 1024)

    @property
    def name(self) -> str:
        """As rows show it."""
        return f"{self.schedule} {self.rows}x{self.cols}"


def _tile(schedule: str, rows: int, cols: int) -> Tile:
    """With as many stages as there is room for."""
    least = Tile(schedule, rows, cols, 1, 2)
    return replace(least, stages=1 + (H200.shared_bytes - least.shared_bytes) // (least.stage_bytes + 16))


LARGE, TALL = _tile("Cooperative", 128, 256), _tile("Cooperative", 256, 128)
WIDE, SMALL = _tile("PingPong", 128, 192), _tile("PingPong", 128, 128)
FORWARD = (LARGE, TALL, WIDE, SMALL, *(_tile("PingPong", 128, cols) for cols in (176, 160, 96)),
           *(_tile("PingPong", 192, cols) for cols in (128, 112, 64)), _tile("PingPong", 64, 128))
TILES = {  # by way and results: each is a kernel to compile
    ("Forward", "Stores"): (*FORWARD, _tile("Cooperative", 256, 112)),
    ("Forward", "ScaleAdds"): FORWARD,  # with C the other one does not fit the registers
    ("Forward", "Floats"): (SMALL,),
    ("Backward", "Stores"): (LARGE, WIDE, SMALL),
    ("Backward", "Floats"): (LARGE, WIDE, SMALL),
    ("Backward", "ScaleAdds"): (LARGE,),
}


@dataclass(frozen=True)
class GemmPlan:
    """`plan` of the launch and its work: Items of four int32 each, [step][cluster]. With more than one part the sums go
    to (parts, part_rows, cols) floats of workspace, for gemm_parts to add up."""

    plan: Plan
    tile: Tile
    items: bytes
    clusters: int
    parts: int = 1
    part_rows: int = 0


def takes(products: tuple[Product, ...], chip: Chip) -> bool:
    """Whether one launch does the products: 16-bit operands on 16 bytes, sums that leave as their type or as float32.

    Some rows of x are left to gemm_few.cu and gemm_skinny.cu, and what starts sooner there to the general path.
    """
    def fits(p):
        result = p.output == p.element or p.output == "f32" and (p.a_across or not p.adds)  # wgrad adds in place
        sized = 0 < p.k <= MAX_DEPTH and 0 < min(p.m, p.n) and max(p.m, p.n) <= MAX_EXTENT
        return p.element != "f32" and p.aligned and result and sized

    capable = chip.arch == "sm_90a" and CLUSTER in dict(chip.clusters)
    able = capable and all(map(fits, products))
    left = skinny_plan.takes(products) or all(starts_sooner(each, chip) for each in products)
    return able and not left and (not few_plan.takes(products, chip) or _beats_few(products, chip))


def _beats_few(products: tuple[Product, ...], chip: Chip) -> bool:
    """By the models."""
    product, = products
    return product.m > FEW_ROWS and (_choice(products, chip)[2]
                                     < FEW_SHARE * few_plan.cycles(few_plan.best(product, chip), chip))


@functools.lru_cache(maxsize=1024)
def gemm(products: tuple[Product, ...], chip: Chip, tile: Tile | None = None) -> GemmPlan:
    """The plan of forward's product, dgrad, wgrad, or dgrad and wgrad, with `tile`, or the fastest one by the model."""
    way = "Backward" if products[0].b_across else "Forward"
    choice, parts = (tile, 1) if tile else _choice(products, chip)[:2]
    if parts > 1:
        choice, products = SMALL, (replace(products[0], output="f32", adds=False),)
    lists = work(choice, products, chip, parts)
    variant = choice.name + (f", K in {parts}" if parts > 1 else "")
    kernel = f"gemm<{products[0].element}, {way}, {choice.spelled}, {_results(products)}>"
    plan = Plan("gemm.cu", kernel, variant, CLUSTER * len(lists), THREADS, CLUSTER, stages=choice.stages,
                shared_bytes=choice.shared_bytes, programmatic=True)
    return GemmPlan(plan, choice, _packed(lists), len(lists), parts, round_up(products[0].m, choice.rows))


@functools.lru_cache(maxsize=1024)
def _choice(products: tuple[Product, ...], chip: Chip) -> tuple[Tile, int, float]:
    """The tile that is fastest by the model, parts of K, and the cycles."""
    times = {tile: cycles(tile, products, chip) for tile in tiles(products)}
    least = min(times, key=times.get)
    tile = LARGE if times.get(LARGE, math.inf) <= NEARLY * times[least] else least
    return tile, *_parts(products, times[tile], chip)


def tiles(products: tuple[Product, ...]) -> tuple[Tile, ...]:
    """Those that there are kernels for."""
    return TILES["Backward" if products[0].b_across else "Forward", _results(products)]


def clusters_of(chip: Chip) -> int:
    """Clusters of two CTAs that run at once."""
    return dict(chip.clusters)[CLUSTER]


def pairs(tile: Tile, product: Product) -> list[tuple[int, int, int, int]]:
    """Every tile of D once, as items (row, col, stages, flags) in an order that stays within GROUP_ROWS for long.

    Two tiles share the wider of their operands: one lies below the other where that is B, beside it where it is A. A
    last odd row or column of tiles pairs the other way. A pair may reach beyond D, where nothing is stored.
    """
    down, across = -(-product.m // tile.rows), -(-product.n // tile.cols)
    if tile.rows <= tile.cols:
        return (_raster((0, 0), (down // 2, across), tile, product)
                + (_raster((down - 1, 0), (1, -(-across // 2)), tile, product, SHARES_A) if down % 2 else []))
    return (_raster((0, 0), (down, across // 2), tile, product, SHARES_A)
            + (_raster((0, across - 1), (-(-down // 2), 1), tile, product) if across % 2 else []))


def work(tile: Tile, products: tuple[Product, ...], chip: Chip, parts: int = 1) -> list[list[tuple]]:
    """Items of each cluster, longest first, each to the cluster that is free the soonest; K in `parts`."""
    items = [item for product in products for item in pairs(tile, product)]
    if parts > 1:
        items = [split for item in items for split in _split(item, parts)]
    items.sort(key=lambda item: -(item[2] & 0xFFFF))
    lists = [[] for _ in range(min(clusters_of(chip), len(items)))]
    free = [(0, i) for i in range(len(lists))]
    for item in items:
        busy, i = heapq.heappop(free)
        lists[i].append(item)
        heapq.heappush(free, (busy + (item[2] & 0xFFFF), i))
    return lists


def cycles(tile: Tile, products: tuple[Product, ...], chip: Chip) -> float:
    """SM cycles of the CTA that is busy longest, by the model."""
    clusters, items, steps = _busiest(tile, products, chip)
    between = WAIT_CYCLES * tile.rows * tile.cols if tile.schedule == "Cooperative" else 0
    longest = steps * _step_cycles(tile, products[0], clusters / clusters_of(chip)) + (items - 1) * between
    store = STORE_CYCLES * tile.rows * tile.cols * (1.5 if products[0].adds else 1)
    return FILL_CYCLES + _together(longest + store, _memory_cycles(products, chip))


def _busiest(tile: Tile, products: tuple[Product, ...], chip: Chip) -> tuple[int, int, int]:
    """Clusters that work, and the items and stages of K of the one that is busy longest."""
    if len(products) > 1:
        lists = work(tile, products, chip)
        items = max(lists, key=lambda items: sum(item[2] for item in items))
        return len(lists), len(items), sum(item[2] for item in items)
    product, = products
    count = _count(tile, product)
    clusters = min(clusters_of(chip), count)
    most = -(-count // clusters)
    return clusters, most, most * _steps(product)


def _count(tile: Tile, product: Product) -> int:
    """len(pairs(tile, product))."""
    down, across = -(-product.m // tile.rows), -(-product.n // tile.cols)
    paired, other = (down, across) if tile.rows <= tile.cols else (across, down)
    return paired // 2 * other + (-(-other // 2) if paired % 2 else 0)


def _step_cycles(tile: Tile, product: Product, busy: float) -> float:
    """Of a stage of K, where a share `busy` of the SMs is at work. A pair of tiles loads the wider of their operands
    once, and each gets all of it."""
    torn = any(extent % DEPTH for extent in (product.m if product.a_across else product.k,
                                             product.n if product.b_across else product.k))
    loaded = tile.stage_bytes - DEPTH * max(tile.rows, tile.cols)
    multiplied = 2 * tile.rows * tile.cols * DEPTH / FLOPS_A_CYCLE + loaded / LOADED_BYTES_A_CYCLE
    arrived = tile.stage_bytes / (ACROSS_BYTES_A_CYCLE if product.b_across else ARRIVING_BYTES_A_CYCLE)
    return max(multiplied, arrived * (TORN if torn else 1)) * (1 + BUSY_SHARE * busy)


def _together(work: float, memory: float) -> float:
    """What limits, and a part of what it does not quite hide."""
    return max(work, memory) + min(work, memory) / 10


def _memory_cycles(products: tuple[Product, ...], chip: Chip) -> float:
    moved = sum(2 * (p.m * p.k + p.n * p.k) + SIZES[p.output] * p.m * p.n * (2 if p.adds else 1) for p in products)
    return moved / (MEMORY_BYTES_A_CYCLE * chip.sms)


def _results(products: tuple[Product, ...]) -> str:
    """The policy type of the kernel that says what becomes of the sums."""
    if products[-1].output == "f32":
        return "Floats"
    return "ScaleAdds" if products[-1].adds else "Stores"


def _parts(products: tuple[Product, ...], whole: float, chip: Chip) -> tuple[int, float]:
    """Into how many parts K is cut so that a small D keeps every SM busy, and the cycles; 1 where that is not faster
    than `whole`."""
    product = products[0]
    if product.b_across or product.n % 8 or product.output == "f32":
        return 1, whole
    count, clusters = _count(SMALL, product), clusters_of(chip)
    moved = 8 * product.m * product.n / (SUMS_BYTES_A_CYCLE * chip.sms)  # of a part

    def split(parts):
        step = _step_cycles(SMALL, product, min(1, count * parts / clusters))
        longest = -(-count * parts // clusters) * -(-_steps(product) // parts) * step
        return FILL_CYCLES + SECOND_LAUNCH_CYCLES + parts * moved + _together(longest, _memory_cycles(products, chip))

    most = min(MAX_PARTS, _steps(product) // MIN_STEPS)
    return min([(1, whole), *((parts, split(parts)) for parts in range(2, most + 1))], key=lambda each: each[1])


def _steps(product: Product) -> int:
    return -(-product.k // DEPTH)


def _split(item: tuple[int, int, int, int], parts: int) -> list[tuple[int, int, int, int]]:
    row, col, steps, flags = item
    edges = [steps * i // parts for i in range(parts + 1)]
    return [(row, col, (end - begin) | begin << 16, flags | part << 8)
            for part, (begin, end) in enumerate(zip(edges, edges[1:]))]


def _raster(corner: tuple[int, int], count: tuple[int, int], tile: Tile, product: Product,
            shared: int = 0) -> list[tuple[int, int, int, int]]:
    """`count` pairs down and across from the tile at `corner` on, in groups of rows, column by column."""
    rows, cols = (tile.rows, 2 * tile.cols) if shared else (2 * tile.rows, tile.cols)
    if product.output == "f32":
        result = ADDS_FLOATS if product.adds else STORES_FLOATS
    else:
        result = ADDS_C if product.adds else STORES
    flags = shared | result | (SECOND if product.a_across else 0)
    (row, col), (down, across), group = corner, count, max(1, GROUP_ROWS // rows)
    return [(row * tile.rows + i * rows, col * tile.cols + j * cols, _steps(product), flags)
            for first in range(0, down, group) for j in range(across) for i in range(first, min(first + group, down))]


def _packed(lists: list[list[tuple]]) -> bytes:
    steps = max(map(len, lists)) + 2  # whoever looks ahead finds an end
    end = (0, 0, 0, 0)
    rows = [list(items) + [end] * (steps - len(items)) for items in lists]
    return array("i", (number for step in zip(*rows) for item in step for number in item)).tobytes()
