"""What each cluster of two CTAs of kernels/gemm.cu does, and in what order: lists of items, which are pairs of
neighbouring tiles that have their part of A or of B in common. Pure functions of shapes and chip."""

import heapq
from array import array

from optimized.gemm_tiles import Tile
from optimized.linear_plan import DEPTH, Product
from optimized.plan import Chip

CLUSTER = 2
SECOND, SHARES_A = 1, 2  # bits of Item::what
STORES, ADDS_C, STORES_FLOATS, ADDS_FLOATS = 0, 4, 8, 12
LEAST_STEPS = 4  # of K: so long an item takes at least, for its store
GROUP_ROWS = 2048  # of D that a wave of clusters works on, so that it re-reads A and B in the L2

Item = tuple[int, int, int, int]  # row, col, stages, what


def clusters_of(chip: Chip) -> int:
    """Those that run at once."""
    return dict(chip.clusters)[CLUSTER]


def steps_of(product: Product) -> int:
    """Stages of K."""
    return -(-product.k // DEPTH)


def pairs(tile: Tile, product: Product) -> list[Item]:
    """Every tile of D once, in an order that stays within GROUP_ROWS for long, and then within the columns of a pair:
    what their tiles have in common is read at about the same time.

    Two tiles share the wider of their operands: one lies below the other where that is B, beside it where it is A. A
    last odd row or column of tiles pairs the other way. A pair may reach beyond D, where nothing is stored.
    """
    down, across = tile.grid(product)
    if tile.rows <= tile.cols:
        items = (_items(range(0, down - 1, 2), range(across), tile, product)
                 + _items(range(down - down % 2, down), range(0, across, 2), tile, product, SHARES_A))
    else:
        items = (_items(range(down), range(0, across - 1, 2), tile, product, SHARES_A)
                 + _items(range(0, down, 2), range(across - across % 2, across), tile, product))
    group = max(1, GROUP_ROWS // (2 * tile.rows)) * 2 * tile.rows
    return sorted(items, key=lambda item: (item[0] // group, item[1] // (2 * tile.cols), item[0], item[1]))


def count(tile: Tile, product: Product) -> int:
    """len(pairs(tile, product))."""
    down, across = tile.grid(product)
    paired, other = (down, across) if tile.rows <= tile.cols else (across, down)
    return paired // 2 * other + (-(-other // 2) if paired % 2 else 0)


def lasting(steps: int) -> int:
    """For how many stages of K an item of so many lasts."""
    return max(steps, LEAST_STEPS)


def work(tile: Tile, products: tuple[Product, ...], chip: Chip) -> list[list[Item]]:
    """Items of each cluster, longest first, each to the cluster that is free the soonest."""
    items = [item for product in products for item in pairs(tile, product)]
    items.sort(key=lambda item: -item[2])
    lists = [[] for _ in range(min(clusters_of(chip), len(items)))]
    free = [(0, i) for i in range(len(lists))]
    for item in items:
        busy, i = heapq.heappop(free)
        lists[i].append(item)
        heapq.heappush(free, (busy + lasting(item[2]), i))
    return lists


def packed(lists: list[list[Item]]) -> bytes:
    """As the kernel reads them: [step][cluster]."""
    steps = max(map(len, lists)) + 2  # whoever looks ahead finds an end
    end = (0, 0, 0, 0)
    rows = [list(items) + [end] * (steps - len(items)) for items in lists]
    return array("i", (number for step in zip(*rows) for item in step for number in item)).tobytes()


def _items(rows: range, cols: range, tile: Tile, product: Product, shared: int = 0) -> list[Item]:
    """Pairs whose first tiles are in these rows and columns of tiles."""
    if product.output == "f32":
        result = ADDS_FLOATS if product.adds else STORES_FLOATS
    else:
        result = ADDS_C if product.adds else STORES
    what = shared | result | (SECOND if product.a_across else 0)
    return [(row * tile.rows, col * tile.cols, steps_of(product), what) for row in rows for col in cols]

