"""How a row of a norm is laid over the threads of a CTA or a cluster. Pure functions."""

from collections.abc import Callable
from dataclasses import dataclass

MOST_ELEMENTS = 32  # of a row in a thread, but where few_lanes gives the row to one warp or less
MOST_NARROW = 40  # five vectors of 16 bytes, where rows share a warp

Limits = dict[int, int]  # elements of a row in one thread -> threads that an SM carries then
Slots = Callable[[int, int, int], int]  # threads, elements, slab -> rows that fit on an SM at once


@dataclass(frozen=True)
class RowMap:
    """How a row is laid over threads: `slab` columns a CTA of the cluster, `elements` a thread; `slots` rows an SM."""

    elements: int
    threads: int
    slots: int
    cluster: int
    slab: int

    @property
    def scope(self) -> str:
        """The policy type of the kernels that adds up a row."""
        if self.cluster > 1:
            return "Cluster"
        return f"Lanes<{self.threads}>" if self.threads <= 32 else "Group"

    def fill(self, cols: int, vector: int) -> str:
        """The policy type that says whether threads are left idle; unrolled short vectors would cost registers, and so
        would many elements of rows that share a warp."""
        costs_much = vector < 4 or (self.threads < 32 and self.elements > 16)
        return "Whole" if cols == self.cluster * self.threads * self.elements and not costs_much else "Ragged"


def row_map(cols: int, clusters: tuple[int, ...], limits: Limits, slots_of: Slots, preference) -> RowMap | None:
    """The fewest CTAs a row that can hold it, 1 or one of `clusters`; then the most rows in flight on an SM; then the
    `preference`. None: the row is too wide."""
    for cluster in (1, *clusters):
        slab = cols if cluster == 1 else round_up(-(-cols // cluster), 8)
        maps = []
        for elements in (each for each in limits if each <= MOST_ELEMENTS):
            threads = _row_threads(-(-slab // elements), elements)
            slots = slots_of(threads, elements, slab)
            if slots > 0:
                maps.append(RowMap(elements, threads, slots if cluster == 1 else 1, cluster, slab))
        if maps:
            return max(maps, key=lambda m: (m.slots, preference(m)))
    return None


def _row_threads(needed: int, elements: int) -> int:
    """Threads for a row: whole warps, or 8 or 16 lanes of one for the narrowest rows."""
    if elements == 8 and needed <= 16:
        return 8 if needed <= 8 else 16
    return round_up(needed, 32)


def few_lanes(
    cols: int, vector: int, held: RowMap, limits: Limits, slots_of: Slots, torn: bool = False
) -> RowMap | None:
    """A narrow row over a power of two of lanes: two vectors in each where that fills them; else, where `held` leaves
    some idle, as few as have the row with up to MOST_NARROW elements each. More bytes are in flight then, and what a
    row costs besides is shared by the rows of a warp. None where `held` is better or a warp does not hold the row.

    `vector` elements move at once, and a block of 32 at least in neighbouring lanes: whole sectors of memory. Of rows
    that are `torn`, which begin within a sector, twice as many lanes with half as much each touch fewer of them.
    """
    if held.cluster > 1 or vector < 4:
        return None
    allowed = [each for each in limits if vector == 8 or each <= MOST_ELEMENTS]  # many short vectors would spill
    fewest, filled = 32 // vector, cols // (2 * vector)
    if cols == 2 * vector * filled and fewest <= filled <= 32 and filled & (filled - 1) == 0:
        lanes = filled
    elif cols == held.threads * held.elements:
        return None
    else:
        lanes = min(32, max(fewest, 1 << (-(-cols // min(MOST_NARROW, max(allowed))) - 1).bit_length()))
    elements = round_up(-(-cols // lanes), 8)
    if torn and lanes == fewest and elements == 4 * vector:
        lanes, elements = 2 * lanes, elements // 2
    if elements not in allowed:
        return None
    slots = slots_of(lanes, elements, cols)
    return RowMap(elements, lanes, slots, 1, cols) if slots else None


def round_up(value: int, unit: int) -> int:
    """The next multiple of `unit`."""
    return -(-value // unit) * unit
