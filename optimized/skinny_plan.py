"""Which kernel forward takes for few rows of x, where all that counts is how fast W comes. Pure functions of shapes and
chip."""

from dataclasses import dataclass

from optimized.linear_plan import MAX_GRID, THREADS, Product
from optimized.plan import Chip, Plan

BLOCK_ROWS = 8  # of x, which are columns of an mma
MAX_ROWS = 2 * BLOCK_ROWS  # half of the rows of W beside them in a CTA; with more, x would cost as much as W
CTAS = {1: 3, 2: 2}  # of an SM, by blocks: Skinny::kCtas
STAGES, STAGE_BYTES = {1: 3, 2: 4}, 6 * 16 * THREADS  # Skinny::kStages by blocks; sizeof(Skinny::Stage)


@dataclass(frozen=True)
class Strips:
    """A product cut into `tiles` of 8 x 16 elements of D, or 16 x 32, one a CTA."""

    product: Product

    @property
    def blocks(self) -> int:
        """Of 8 rows of D, and of 16 columns."""
        return -(-self.product.m // BLOCK_ROWS)

    @property
    def tiles(self) -> int:
        """How many."""
        return -(-self.product.n // (16 * self.blocks))


def takes(products: tuple[Product, ...]) -> bool:
    """Whether `skinny` does them: one product of at most MAX_ROWS rows of 16 bits, both operands along K."""
    p = products[0]
    forward = len(products) == 1 and not p.a_across and not p.b_across
    return forward and p.element != "f32" and p.vectors and 0 < p.m <= MAX_ROWS and 0 < p.n <= 16 * MAX_GRID


def makes_waves(product: Product, chip: Chip) -> bool:
    """Whether W's rows make 2.75 waves of CTAs with up to BLOCK_ROWS rows: with fewer gemm_few.cu, whose tiles fit the
    SMs, is the faster one. Asked of n alone, so that all numbers of rows go one way."""
    return product.n >= 2.75 * 16 * CTAS[1] * chip.sms


def skinny(strips: Strips, chip: Chip) -> Plan:
    """The plan of one launch. A row of D does not depend on the others, nor on how many there are."""
    p, blocks = strips.product, strips.blocks
    epilogue = f"{'ScaleAdd' if p.adds else 'Store'}<{p.output}>"
    return Plan("gemm_skinny.cu", f"gemm_skinny<{p.element}, {blocks}, {epilogue}>",
                f"skinny {BLOCK_ROWS * blocks}x{16 * blocks}", strips.tiles, THREADS,
                shared_bytes=STAGES[blocks] * STAGE_BYTES, programmatic=chip.is_hopper_or_later)
