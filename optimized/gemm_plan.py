"""Which tile and which order of work a product takes on the tensor cores of Hopper. Pure functions of shapes and chip.

A launch computes one product D = A B (+ C), or two: backward's gradients.
"""

import functools
import math
from dataclasses import dataclass

from optimized import few_plan, gemm_model, skinny_plan
from optimized.gemm_tiles import TALL, Tile, results, tiles, way
from optimized.gemm_work import CLUSTER, packed, work
from optimized.linear_plan import MAX_EXTENT, Product, starts_sooner
from optimized.plan import Chip, Plan

THREADS = 384
FEW_ROWS = 128  # of x, and fewer, are always left to gemm_few.cu where it takes them
FEW_SHARE = 1.05  # of its time by its model, which is a little too kind where there are more
NEARLY = 1.003  # as fast: then TALL, which has the fewest bytes loaded for each result


@dataclass(frozen=True)
class GemmPlan:
    """`plan` of the launch and its work: Items of four int32 each, [step][cluster]."""

    plan: Plan
    tile: Tile
    items: bytes
    clusters: int


def takes(products: tuple[Product, ...], chip: Chip) -> bool:
    """Whether one launch does the products: 16-bit operands on 16 bytes, sums that leave as their type or as float32.

    Some rows of x are left to gemm_few.cu and gemm_skinny.cu, and what starts sooner there to the general path.
    """
    def fits(p):
        result = p.output == p.element or p.output == "f32" and (p.a_across or not p.adds)  # wgrad adds in place
        sized = 0 < min(p.m, p.n, p.k) and max(p.m, p.n, p.k) <= MAX_EXTENT
        return p.element != "f32" and p.aligned and result and sized

    capable = chip.arch == "sm_90a" and CLUSTER in dict(chip.clusters)
    able = capable and all(map(fits, products))
    left = skinny_plan.takes(products) or all(starts_sooner(each, chip) for each in products)
    return able and not left and (not few_plan.takes(products, chip) or _beats_few(products, chip))


def _beats_few(products: tuple[Product, ...], chip: Chip) -> bool:
    """By the models."""
    product, = products
    ours = gemm_model.cycles(_fastest(products, chip), products, chip) if product.m > FEW_ROWS else math.inf
    return ours < FEW_SHARE * few_plan.cycles(few_plan.best(product, chip), chip)


@functools.lru_cache(maxsize=1024)
def gemm(products: tuple[Product, ...], chip: Chip, tile: Tile | None = None) -> GemmPlan:
    """The plan of forward's product, dgrad, wgrad, or dgrad and wgrad, with `tile`, or the fastest one by the model."""
    tile = tile or _fastest(products, chip)
    lists = work(tile, products, chip)
    ending = results(products) + ("Across" if tile.across else "")
    kernel = f"gemm<{products[0].element}, {way(products)}, {tile.spelled}, {ending}>"
    plan = Plan("gemm.cu", kernel, tile.name, CLUSTER * len(lists), THREADS, CLUSTER,
                shared_bytes=tile.shared_bytes, programmatic=True)
    return GemmPlan(plan, tile, packed(lists), len(lists))


@functools.lru_cache(maxsize=1024)
def _fastest(products: tuple[Product, ...], chip: Chip) -> Tile:
    """By the model."""
    times = {tile: gemm_model.cycles(tile, products, chip) for tile in tiles(products)}
    least = min(times, key=times.get)
    return TALL if times.get(TALL, math.inf) <= NEARLY * times[least] else least
