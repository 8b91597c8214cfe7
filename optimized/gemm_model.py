"""A model of the busiest CTA's time in kernels/gemm.cu, in SM cycles. Pure functions of shapes and chip.

Fitted to 213 products forward and 61 backward, of 16 to 16384 rows, with 2 to 14 tiles each on an H200. Loaded bytes
cost time beside operations, perhaps by their power.
"""

from heapq import heappop, heappush

from optimized.gemm_tiles import Tile
from optimized.gemm_work import clusters_of, count, lasting, steps_of
from optimized.linear_plan import DEPTH, MEMORY_BYTES_A_CYCLE, Product
from optimized.plan import SIZES, Chip

FLOPS_A_CYCLE = 4096
LOADED_BYTES_A_CYCLE = 430  # from the L2
ARRIVING_BYTES_A_CYCLE = 68  # at an SM, also by another's load
TORN = 1.7  # times as long, where 128 bytes of a row lie across two lines
BUSY_SHARE = 0.23  # more, where all SMs are at work
FILL_CYCLES = 4300  # of a launch: until the first product, and after the last
STORE_CYCLES = 0.01  # an element of the last tile
EXPOSED = 1 / 20  # of the time of what does not limit
WAIT_CYCLES = {"Cooperative": 0.1, "PingPong": 0.015}  # an element of the others, for their stores


def cycles(tile: Tile, products: tuple[Product, ...], chip: Chip) -> float:
    """From the start of a launch to its end."""
    clusters, items, steps = busiest(tile, products, chip)
    multiplied = steps * _step_cycles(tile, products[0], clusters / clusters_of(chip))
    waits = STORE_CYCLES * (1.5 if products[0].adds else 1) + (items - 1) * WAIT_CYCLES[tile.schedule]
    worked, moved = multiplied + waits * tile.rows * tile.cols, _memory_cycles(products, chip)
    return FILL_CYCLES + max(worked, moved) + EXPOSED * min(worked, moved)


def busiest(tile: Tile, products: tuple[Product, ...], chip: Chip) -> tuple[int, int, int]:
    """Clusters that work, and of the one that is busy longest, or of several the one with the fewest, the items, and
    the stages of K that they last: of the lists that `work` makes, without making them."""
    counts = {product: count(tile, product) for product in products}
    clusters = min(clusters_of(chip), sum(counts.values()))
    alike = [(0, 0, clusters)]  # stages and items of so many clusters each, a heap
    for product in sorted(products, key=steps_of, reverse=True):
        left, more = counts[product], lasting(steps_of(product))
        while left:
            stages, items, have = heappop(alike)
            get = min(have, left)
            left -= get
            heappush(alike, (stages + more, items + 1, get))
            if get < have:
                heappush(alike, (stages, items, have - get))
    stages, items, _ = max(alike, key=lambda each: (each[0], -each[1]))
    return clusters, items, stages


def _step_cycles(tile: Tile, product: Product, busy: float) -> float:
    """Of a stage of K, where a share `busy` of the SMs is at work. A pair of tiles loads the wider of their operands
    once, and each gets all of it."""
    torn = any(extent % DEPTH for extent in (product.m if product.a_across else product.k,
                                             product.n if product.b_across else product.k))
    loaded = tile.stage_bytes - DEPTH * max(tile.rows, tile.cols)
    multiplied = 2 * tile.rows * tile.cols * DEPTH / FLOPS_A_CYCLE + loaded / LOADED_BYTES_A_CYCLE
    arrived = tile.stage_bytes / ARRIVING_BYTES_A_CYCLE * (TORN if torn else 1)
    return max(multiplied, arrived) * (1 + BUSY_SHARE * busy)


def _memory_cycles(products: tuple[Product, ...], chip: Chip) -> float:
    moved = sum(2 * (p.m * p.k + p.n * p.k) + SIZES[p.output] * p.m * p.n * (1 + p.adds) for p in products)
    return moved / (MEMORY_BYTES_A_CYCLE * chip.sms)
