"""Products on the tensor cores of Hopper: from operands in memory to launches of kernels/gemm.cu."""

from contextlib import contextmanager

import numpy
import torch
from cuda.bindings import driver

from optimized import gemm_plan, tma, tuning
from optimized.gemm_plan import GemmPlan
from optimized.gemm_tiles import Tile
from optimized.gemm_work import CLUSTER
from optimized.launch import Launch, beside_capture, chip, make_current, raise_error
from optimized.linear_plan import DEPTH, Product
from optimized.matrices import POINTERS, Operands
from optimized.plan import SIZES, Chip, Plan

ACROSS_BOX = (DEPTH // CLUSTER, 64)  # (K, M or N): what one load moves of an operand that lies across
CHUNK, ACROSS_CHUNK = (64, 64), (32, 128)  # rows of D that one store moves, and bytes of each
MAPS = 6  # of a product

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
    """That of the launch."""
    return planned(products, here).plan


def launch(products: tuple[Operands, ...], device: torch.device) -> Launch:
    """What computes `products` when it is called with the pointers of each."""
    plan = planned(tuple(each.product(True) for each in products), chip(device))
    make_current(device)  # for the maps
    maps, sources, rows, cols = [None] * 2 * MAPS, [0] * 2 * MAPS, [0, 0], [0, 0]
    for i, product in enumerate(products):
        second = int(product.a_across)  # wgrad is the second of the kernel's products
        ends = product.a.rows, product.b.rows  # of D, where the operand does not lie across
        rows[second], cols[second] = ends[::-1] if plan.tile.across else ends
        place = slice(MAPS * second, MAPS * (second + 1))
        maps[place] = _maps(product, plan.tile)
        sources[place] = [POINTERS * i + source for source in ((1, 0, 2, 3, 1, 0) if plan.tile.across else
                                                               (0, 1, 2, 3, 0, 1))]
    items = _items(plan.items, device)
    extents = [numpy.int32(extent) for extent in rows + cols]
    scalars = numpy.int64(items.data_ptr()), numpy.int32(plan.clusters), *extents
    return Launch(plan.plan, device, 2, scalars, tma.Maps(tuple(maps), tuple(sources), (4, 5)))


def _maps(product: Operands, tile: Tile) -> list[driver.CUtensorMap | None]:
    """Of A, B, C and D as the kernel moves them, and of what is left of A's and of B's rows behind whole boxes."""
    def operand(matrix, across, count):
        return tma.of_matrix(matrix, ACROSS_BOX if across else (count, DEPTH), 128)

    def edge(matrix, across, count):
        left = 0 if across else matrix.rows % count
        return operand(matrix, across, left) if left else None

    def chunk(matrix):
        rows, row_bytes = ACROSS_CHUNK if tile.across else CHUNK
        return tma.of_matrix(matrix, (rows, row_bytes // SIZES[matrix.element]), row_bytes)

    loads_c = product.c is not None and product.c.element != "f32"  # floats are added in memory
    a, b = (product.b, product.a) if tile.across else (product.a, product.b)
    operands = (a, product.a_across, tile.rows // CLUSTER), (b, product.b_across, tile.cols // CLUSTER)
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
    with beside_capture(), torch.cuda.device(device), torch.cuda.stream(_stream(device)):
        items = torch.frombuffer(bytearray(packed), dtype=torch.int32).to(device)
        torch.cuda.current_stream().synchronize()
    return items


def _stream(device: torch.device) -> torch.cuda.Stream:
    """One that no graph is captured on: streams come by turns from a pool, from which graphs have theirs, too."""
    while True:
        stream = torch.cuda.Stream(device)
        error, status = driver.cuStreamIsCapturing(stream.cuda_stream)
        raise_error(error)
        if status == driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE:
            return stream
