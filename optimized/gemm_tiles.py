"""The tiles that the products of kernels/gemm.cu are cut into: each is a kernel to compile."""

from dataclasses import dataclass, replace

from optimized.linear_plan import DEPTH, Product
from optimized.plan import H200, round_up

SLOT_BYTES = 2 * 64 * 64  # of staging memory


@dataclass(frozen=True)
class Tile:
    """`rows` and `cols` of D that a CTA works on at a time: one tile for both consumers (Cooperative), or one each,
    by turns (PingPong). `stages` of A and B in flight, `slots` a consumer for D on its way out. Where it lies `across`,
    its rows are D's columns, and A is the product's B."""

    schedule: str
    rows: int
    cols: int
    stages: int
    slots: int
    across: bool = False

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
        return f"{self.schedule} {self.rows}x{self.cols}" + (" across" if self.across else "")

    def grid(self, product: Product) -> tuple[int, int]:
        """How many there are of D, along their rows' side and along their columns' side."""
        rows, cols = (product.n, product.m) if self.across else (product.m, product.n)
        return -(-rows // self.rows), -(-cols // self.cols)


def tile(schedule: str, rows: int, cols: int, across: bool = False) -> Tile:
    """With as many stages as there is room for."""
    least = Tile(schedule, rows, cols, 1, 1 if rows * cols == 64 * 64 else 2, across)
    return replace(least, stages=1 + (H200.shared_bytes - least.shared_bytes) // (least.stage_bytes + 16))


LARGE, TALL = tile("Cooperative", 128, 256), tile("Cooperative", 256, 128)
WIDE, MEDIUM, SMALL = (tile("PingPong", *size) for size in ((128, 192), (128, 128), (64, 64)))
FORWARD = (WIDE, MEDIUM, SMALL, TALL, tile("Cooperative", 256, 112), tile("PingPong", 192, 80, across=True),
           *(tile("PingPong", 128, cols) for cols in (176, 144)),
           *(tile("PingPong", 128, cols, across=True) for cols in (160, 144, 112, 96, 80, 64)))
BACKWARD = LARGE, WIDE, MEDIUM, SMALL, tile("PingPong", 64, 128)
TILES = {  # by way and results
    ("Forward", "Stores"): FORWARD,
    ("Forward", "ScaleAdds"): FORWARD,
    ("Forward", "FloatResults"): (MEDIUM,),
    ("Backward", "Stores"): BACKWARD,
    ("Backward", "FloatResults"): BACKWARD,
    ("Backward", "ScaleAdds"): (LARGE,),
}


def way(products: tuple[Product, ...]) -> str:
    """The policy type of the kernel that says how operands lie."""
    return "Backward" if products[0].b_across else "Forward"


def results(products: tuple[Product, ...]) -> str:
    """The policy type of the kernel that says what becomes of the sums; another one where tiles lie across."""
    if products[-1].output == "f32":
        return "FloatResults"
    return "ScaleAdds" if products[-1].adds else "Stores"


def tiles(products: tuple[Product, ...]) -> tuple[Tile, ...]:
    """Those that there are kernels for."""
    return TILES[way(products), results(products)]
