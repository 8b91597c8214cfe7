"""A model of the busiest CTA's time in kernels/gemm.cu, in SM cycles. Pure functions of shapes and chip.

Fitted to 213 products forward and 61 backward, of 16 to 16384 rows, with 2 to 14 tiles each on an H200. Loaded bytes
cost time beside operations, perhaps by their power.
"""

from optimized.gemm_tiles import Tile
from optimized.gemm_work import LEAST_STEPS, clusters_of, count, steps_of, time_of, work
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
    """Clusters that work, and of the one that is busy longest the items, and the stages of K that they last."""
    if len(products) > 1:
        lists = work(tile, products, chip)
        items = max(lists, key=lambda items: sum(map(time_of, items)))
        return len(lists), len(items), sum(map(time_of, items))
    product, = products
    items = count(tile, product)
    clusters = min(clusters_of(chip), items)
    most = -(-items // clusters)
    return clusters, most, most * max(steps_of(product), LEAST_STEPS)


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
