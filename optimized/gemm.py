"""Products on the tensor cores of Hopper: from operands in memory to launches of kernels/gemm.cu."""

from contextlib import contextmanager

import numpy
import torch
from cuda.bindings import driver

from optimized import gemm_plan, tma, tuning
from optimized.gemm_plan import CLUSTER, DEPTH, GemmPlan, Tile
from optimized.launch import Launch, allocate, beside_capture, chip, make_current
from optimized.linear_plan import Product
from optimized.matrices import POINTERS, Matrix, Operands
from optimized.plan import SIZES, Chip, Plan

ACROSS_BOX = (DEPTH // CLUSTER, 64)  # (K, M or N): what one load moves of an operand that lies across
CHUNK_ROWS, CHUNK_ROW_BYTES = 64, 64
MAPS = 6  # of a product
PARTS_THREADS, PARTS_RUN = 64, 8  # kPartsThreads; elements a thread


_choose = tuning.choice
_lists: dict[tuple[bytes, torch.device], torch.Tensor] = {}


@contextmanager
def forced_tile(tile: Tile | None):
    """Within it, calls that are prepared anew take `tile`; None for the model's choice, whatever was measured."""
    global _choose
    before, _choose = _choose, lambda *_: tile
    try:
        yield
    finally:
        _choose = before


def planned(products: tuple[Product, ...], here: Chip) -> GemmPlan:
    """The plan of products: with the tile that is forced, else one that was measured, else the model's choice."""
    return gemm_plan.gemm(products, here, _choose(products, here))


def plan_of(products: tuple[Product, ...], here: Chip) -> Plan:
    """That of the first launch."""
    return planned(products, here).plan


def launch(products: tuple[Operands, ...], device: torch.device):
    """What computes `products` when it is called with the pointers of each."""
    plan = planned(tuple(each.product(True) for each in products), chip(device))
    make_current(device)  # for the maps
    return _Split(plan, products[0], device) if plan.parts > 1 else _whole(plan, products, device)


class _Split:
    """K in parts: a launch for the sums of each part, and one that adds them up."""

    def __init__(self, plan: GemmPlan, product: Operands, device: torch.device):
        rows, cols = product.d.rows, product.d.cols
        sums = Matrix(plan.parts * plan.part_rows, cols, cols, "f32", 16)
        self._size, self._device = (sums.rows * cols,), device
        self._multiply = _whole(plan, (Operands(product.a, product.b, None, sums),), device)
        blocks = rows * -(-cols // (PARTS_THREADS * PARTS_RUN))
        add = Plan("gemm_parts.cu", f"gemm_parts<{product.d.element}, {PARTS_RUN}>", "parts", blocks, PARTS_THREADS,
                   programmatic=True)
        self._add = Launch(add, device, 5, (
            numpy.int64(plan.part_rows * cols), numpy.int64((product.c or product.d).pitch),
            numpy.int64(product.d.pitch), numpy.int32(rows), numpy.int32(cols), numpy.int32(plan.parts)))

    def __call__(self, a: int, b: int, c: int, d: int, factor: int, scale: int) -> None:
        sums = allocate(self._size, torch.float32, self._device)  # nobody else's before both launches are in the stream
        self._multiply(a, b, 0, sums.data_ptr(), 0, _ONE)
        self._add(sums.data_ptr(), c, d, factor, scale)


_ONE = int(numpy.float32(1).view(numpy.uint32))


def _whole(plan: GemmPlan, products: tuple[Operands, ...], device: torch.device) -> Launch:
    maps, sources, rows, cols = [None] * 2 * MAPS, [0] * 2 * MAPS, [0, 0], [0, 0]
    for i, product in enumerate(products):
        second = int(product.a_across)  # wgrad is the second of the kernel's products
        rows[second], cols[second] = product.a.rows, product.b.rows  # of D, where the operand does not lie across
        place = slice(MAPS * second, MAPS * (second + 1))
        maps[place] = _maps(product, plan.tile)
        sources[place] = [POINTERS * i + source for source in (0, 1, 2, 3, 0, 1)]
    items = _items(plan.items, device)
    extents = [numpy.int32(extent) for extent in rows + cols]
    scalars = numpy.int64(items.data_ptr()), numpy.int32(plan.clusters), numpy.int32(plan.part_rows), *extents
    return Launch(plan.plan, device, 2, scalars, tma.Maps(tuple(maps), tuple(sources), (4, 5)))


def _maps(product: Operands, tile: Tile) -> list[driver.CUtensorMap | None]:
    """Of A, B, C and D as the kernel moves them, and of what is left of A's and of B's rows behind whole boxes."""
    def operand(matrix, across, count):
        return tma.of_matrix(matrix, ACROSS_BOX if across else (count, DEPTH), 128)

    def edge(matrix, across, count):
        left = 0 if across else matrix.rows % count
        return operand(matrix, across, left) if left else None

    def chunk(matrix):
        box = CHUNK_ROWS, CHUNK_ROW_BYTES // SIZES[matrix.element]
        return tma.of_matrix(matrix, box, CHUNK_ROW_BYTES)

    loads_c = product.c is not None and product.c.element != "f32"  # floats are added in memory
    operands = (product.a, product.a_across, tile.rows // CLUSTER), (product.b, product.b_across, tile.cols // CLUSTER)
    return [*(operand(*each) for each in operands), chunk(product.c) if loads_c else None, chunk(product.d),
            *(edge(*each) for each in operands)]


def _items(packed: bytes, device: torch.device) -> torch.Tensor:
    """The list of work in device memory. It stays for good, as kernels do: a graph that nobody here knows of may hold
    its address."""
    key = packed, device
    if key not in _lists:
        _lists.setdefault(key, _copied(packed, device))  # threads that come at once take the same
    return _lists[key]


def _copied(packed: bytes, device: torch.device) -> torch.Tensor:
    """In device memory, ready for every stream; also while a graph is captured, not as a part of it."""
    with beside_capture(), torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
        items = torch.frombuffer(bytearray(packed), dtype=torch.int32).to(device)
        torch.cuda.current_stream().synchronize()
    return items
