"""Which kernel, geometry, shared memory and workspace a call takes. Pure functions of shapes, dtypes and chip.

A row belongs to T threads with E elements each. T and E depend on the width, the dtypes and the alignment, never on
the number of rows, so that a row's result does not depend on its neighbours.
"""

from dataclasses import dataclass
from functools import partial

from optimized.row_map import RowMap, few_lanes, round_up, row_map

TYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
SIZES = {"bf16": 2, "f16": 2, "f32": 4}

# Threads that the registers of one SM carry, by elements of a row in one thread: of all resident CTAs in forward, of
# the one CTA in backward. Checked by compiling without spills; more than 32 elements where a warp has a row.
FORWARD_THREADS = {8: 1280, 16: 1280, 24: 1024, 32: 1024, 40: 768, 48: 768}
BACKWARD_THREADS = {
    "RmsNorm": {8: 768, 16: 640, 24: 512, 32: 512},
    "RmsNormAdd": {8: 768, 16: 640, 24: 512, 32: 512},
    "LayerNorm": {8: 768, 16: 576, 24: 512, 32: 512},
}
BACKWARD_DIRECT_THREADS = {8: 512, 16: 512}
SHARED_ROW_CTAS = {256: 6, 512: 3, 1024: 1}  # CTAs that the registers of an SM carry, by threads; likewise

IN_FLIGHT_BYTES = 56 << 10  # an SM's share of what saturates memory; more only scatters the accesses
RING_BYTES = 160 << 10  # of backward's ring where a stage has several rows of several warps; more only scatters, too
MAX_THREADS = 1024  # of a CTA
THREAD_BYTES = 52  # of x in a thread in backward: fewer have more threads wait for one another; more, too few read
MAX_STAGES = 4  # Ring::kMaxStages
MAX_WARP_SLOTS = 32  # Ring::kMaxSlots
MAX_GROUP_SLOTS = 15  # named barriers 1 … 15
STATIC_SHARED_BYTES = 8192  # upper bound of what the kernels declare statically, slabs apart
MAX_GRID = 1 << 20
PORTABLE_CLUSTER = 8  # CTAs; larger ones are for chips and kernels that allow them
WIDE_THREADS = 512
STRIP = 8  # vectors of columns that a warp adds up at a time: Strips::kLanes
SECTOR_BYTES = 32  # what memory moves at least


@dataclass(frozen=True)
class Chip:
    """What a plan needs to know of a GPU. `clusters`: (CTAs in a cluster, clusters that fit on the chip at once)."""

    arch: str
    sms: int
    shared_bytes: int
    clusters: tuple[tuple[int, int], ...] = ()

    @property
    def is_hopper_or_later(self) -> bool:
        """Bulk copies, clusters and programmatic launch came with compute capability 9.0."""
        return int(self.arch.removeprefix("sm_").rstrip("af")) >= 90

    @property
    def cluster_sizes(self) -> tuple[int, ...]:
        """CTAs in a cluster, up to what every chip with clusters has."""
        return tuple(size for size, _ in self.clusters if size <= PORTABLE_CLUSTER)


H200 = Chip("sm_90a", 132, 232_448, ((2, 66), (4, 30), (8, 15), (16, 7)))


@dataclass(frozen=True)
class Problem:
    """A norm: `norm` is the policy type of the kernels, the fields from `x` on are C++ element types (None where
    absent); `gamma` is also beta's. `output` is the policy type that says what becomes of y; None: stored, as x's type.

    `vector` is the widest run of elements that all operands can move at once, `bulk` whether every row of x, dz and
    add begins at and fills whole 16-byte units.
    """

    norm: str
    rows: int
    cols: int
    x: str
    gamma: str = "f32"
    dz: str | None = None
    add: str | None = None
    vector: int = 1
    bulk: bool = False
    zero_centered: bool = False
    output: str | None = None

    @property
    def gain(self) -> str:
        """The policy type of gamma, forward."""
        return f"{'ZeroCentered' if self.zero_centered else 'Plain'}<{self.gamma}>"


@dataclass(frozen=True)
class Plan:
    """One launch. `kernel` is the C++ name expression in `source`; `grid` counts CTAs; bytes are for one CTA except
    `workspace_bytes`."""

    source: str
    kernel: str
    variant: str
    grid: int
    block: int
    cluster: int = 1
    row_threads: int = 0
    stages: int = 0
    stage_bytes: int = 0
    stages_offset: int = 0
    shared_bytes: int = 0
    workspace_bytes: int = 0
    cooperative: bool = False
    programmatic: bool = False


@dataclass(frozen=True)
class ForwardMap:
    """How rows lie over CTAs in forward: `slots` rows in a CTA of `block` threads, which are at most `limit`."""

    held: str
    scope: str
    fill: str
    rows: RowMap
    slots: int
    block: int
    limit: int

    @property
    def types(self) -> str:
        """The kernels' first template arguments: `held`, what a thread has of which norm and types, and the others."""
        return f"{self.held}, {self.scope}, {self.fill}, {self.limit}"


def forward_map(problem: Problem, chip: Chip) -> ForwardMap | None:
    """A row in registers, of a CTA or of a cluster; None where it is too wide for that."""
    def slots_of(threads, elements, slab):
        fits = threads <= MAX_THREADS and (elements < 32 or problem.vector >= 4)  # many short vectors would spill
        return FORWARD_THREADS[elements] // threads if fits else 0

    rows = row_map(problem.cols, chip.cluster_sizes, FORWARD_THREADS, slots_of,
                   lambda m: (-m.elements * m.threads, m.elements))
    if rows is None:
        return None
    # Not LayerNorm: what it does for each row besides costs more than the sectors.
    torn = problem.norm == "RmsNorm" and problem.vector == 8 and problem.cols * SIZES[problem.x] % SECTOR_BYTES > 0
    rows = few_lanes(problem.cols, problem.vector, rows, FORWARD_THREADS, slots_of, torn) or rows
    scope = "Block" if rows.scope == "Group" else rows.scope
    slots = max(1, 128 // rows.threads) if rows.threads <= 32 else 1
    limit = next(size for size in (128, 256, 512, 1024) if size >= slots * rows.threads)
    held = f"{problem.norm}, {problem.x}, {problem.gain}, {problem.vector}, {rows.elements // problem.vector}"
    fill = rows.fill(problem.cols, problem.vector)
    return ForwardMap(held, scope, fill, rows, slots, slots * rows.threads, limit)


def norm_forward(problem: Problem, chip: Chip, sm_margin: int = 0) -> Plan:
    """The plan of layernorm_fwd or rmsnorm_fwd: CTAs come and go, a row or a few narrow ones each.

    With an `sm_margin` there are only as many CTAs as the other SMs hold, and they stay.
    """
    output, m = problem.output or f"Store<{problem.x}>", forward_map(problem, chip)
    if threads := shared_row_threads(problem, chip, m and m.rows):
        return _from_shared(problem, chip, output, threads, sm_margin)
    if m is None:
        types = f"{problem.norm}, {problem.x}, {problem.gain}, {problem.vector}, {output}"
        return _wide("norm_forward_wide", types, min(problem.rows, 2 * at_once(chip, 1, sm_margin)))
    ctas, cluster = FORWARD_THREADS[m.rows.elements] // m.limit, m.rows.cluster
    most = ctas * at_once(chip, cluster, sm_margin) if sm_margin else MAX_GRID
    grid = max(1, min(most, -(-problem.rows // m.slots))) * cluster
    return Plan("norm_forward.cu", f"norm_forward<{m.types}, {ctas}, {output}>", m.scope, grid, m.block, cluster,
                m.rows.threads, programmatic=chip.is_hopper_or_later)


def shared_row_threads(problem: Problem, chip: Chip, held: RowMap | None) -> int | None:
    """Threads of a CTA that has its row in shared memory; None where `held`, the row in registers, is better: it is
    read from there once instead of two or three times, but an SM has few wide rows in flight.

    Sums of float32 rows, carried in two float32, cost more than waiting does, but where LayerNorm waits for single
    rows. LayerNorm waits longer, the more so for rows that do not fill their threads.
    """
    places = chip.shared_bytes // (problem.cols * SIZES[problem.x] + STATIC_SHARED_BYTES)
    if not (chip.is_hopper_or_later and places and problem.vector * SIZES[problem.x] == 16):
        return None
    if held and held.cluster == 1:
        slow = problem.x == "f32" and (problem.norm == "RmsNorm" or held.slots > 1)
        ragged = problem.norm == "LayerNorm" and held.fill(problem.cols, problem.vector) == "Ragged"
        if slow or held.slots > (3 if ragged else 2) or places <= held.slots:
            return None
    return 256 if places >= SHARED_ROW_CTAS[256] else 512 if places > 1 else 1024


def _from_shared(problem: Problem, chip: Chip, output: str, threads: int, sm_margin: int) -> Plan:
    ctas, row = SHARED_ROW_CTAS[threads], problem.cols * SIZES[problem.x]
    held = min(ctas, chip.shared_bytes // (row + STATIC_SHARED_BYTES)) * at_once(chip, 1, sm_margin)
    most = held if sm_margin else MAX_GRID
    types = f"{problem.norm}, {problem.x}, {problem.gain}, {problem.vector}, {threads}, {ctas}, {output}"
    return Plan("norm_shared.cu", f"norm_forward_shared<{types}>", "Shared", max(1, min(most, problem.rows)), threads,
                row_threads=threads, shared_bytes=row, programmatic=True)


def norm_backward(problem: Problem, chip: Chip, sm_margin: int = 0) -> Plan:
    """The plan of layernorm_bwd, rmsnorm_bwd or rmsnorm_bwd_add: one CTA an SM stays and walks down the rows."""
    m = _backward_map(problem, chip)
    types = f"{problem.norm}, {problem.x}, {problem.dz}, {problem.gamma}, {problem.vector}"
    if m is None:
        return _wide("norm_backward_wide", types, 4 * at_once(chip, 1, sm_margin))
    rows, planes, gamma = m.rows, m.planes, _gamma_bytes(m.rows.slab)
    stage = rows.slab * m.column_bytes
    most = (chip.shared_bytes - STATIC_SHARED_BYTES - gamma) // (rows.slots * stage)
    least = 2 if rows.threads <= 32 else 3
    stages = min(most, MAX_STAGES, max(least, 1 + -(-IN_FLIGHT_BYTES // (rows.slots * stage)))) if m.ring else 0
    warps = rows.slots * rows.threads // 32 * rows.cluster
    helpful = -(-planes * problem.cols // (warps * STRIP * min(4, problem.vector)))  # each warp has columns to add up
    busy = max(1, -(-problem.rows // rows.slots))  # that have rows, and so partial sums
    groups = min(at_once(chip, rows.cluster, sm_margin), max(helpful, busy))
    source, vectors = "Ringed" if m.ring else "Direct", rows.elements // problem.vector
    return Plan(
        "norm_backward.cu", f"norm_backward<{types}, {vectors}, {rows.scope}, {source}, {m.limit}>",
        f"{rows.scope} {source}", groups * rows.cluster, rows.slots * rows.threads, rows.cluster, rows.threads,
        stages, stage, gamma, gamma + rows.slots * max(stages * stage, 4 * planes * rows.slab),
        workspace_bytes=4 * planes * min(groups, busy) * problem.cols, cooperative=True,
        programmatic=chip.is_hopper_or_later,
    )


@dataclass(frozen=True)
class BackwardMap:
    """How rows lie over an SM in backward: through a `ring` or not; `planes` sums a column; bytes of a column of all
    operands; `limit`, the most threads of a CTA."""

    rows: RowMap
    ring: bool
    planes: int
    column_bytes: int
    limit: int


def _backward_map(problem: Problem, chip: Chip) -> BackwardMap | None:
    """None where registers and shared memory do not hold a row.

    The ring has three stages, in a larger cluster if need be, so that one is on its way while another has landed. Two
    do for rows within a warp, of which many are on their way, and where no cluster has room for three.
    """
    planes, bulk = 2 if problem.norm == "LayerNorm" else 1, problem.bulk and chip.is_hopper_or_later
    column = SIZES[problem.x] + SIZES[problem.dz] + (SIZES[problem.add] if problem.add else 0)

    def limits(ring):
        return BACKWARD_THREADS[problem.norm] if ring else BACKWARD_DIRECT_THREADS

    def slots_of(ring, spread, stages, threads, elements, slab):
        if spread and planes > 1 and elements > 24 and slab < problem.cols:
            return 0  # in a cluster LayerNorm's arithmetic gains by more threads
        in_warp, most = max(1, 32 // threads), MAX_GROUP_SLOTS
        if threads <= 32:
            stages, most = 2, MAX_WARP_SLOTS * in_warp
        elif ring:
            most = min(most, max(2, RING_BYTES // (stages * column * slab)))
        needed = max(stages * column if ring else 0, 4 * planes)  # in the end each slot has its sums there
        free = chip.shared_bytes - STATIC_SHARED_BYTES - _gamma_bytes(slab)
        return min(limits(ring)[elements] // threads, most, free // (needed * slab)) // in_warp * in_warp

    def preference(m):
        return -abs(SIZES[problem.x] * m.elements - THREAD_BYTES) if ring else -m.elements

    ring = bulk and problem.cols > 128
    maps = (row_map(problem.cols, chip.cluster_sizes, limits(ring), partial(slots_of, ring, *wanted), preference)
            for wanted in ((True, 3), (True, 2), (False, 3), (False, 2)))
    rows = next(filter(None, maps), None)
    if rows is None:
        return None
    few = bulk and few_lanes(problem.cols, problem.vector, rows, limits(True), partial(slots_of, True, True, 3))
    rows, ring = (few, True) if few else (rows, ring)
    return BackwardMap(rows, ring, planes, column, limits(ring)[rows.elements])


def _gamma_bytes(slab: int) -> int:
    return round_up(4 * slab, 128)


def _wide(name: str, types: str, grid: int) -> Plan:
    return Plan("norm_wide.cu", f"{name}<{types}>", "wide", max(1, grid), WIDE_THREADS)


def at_once(chip: Chip, cluster: int, sm_margin: int) -> int:
    """Clusters that run at once, one CTA an SM, when `sm_margin` SMs are left to others."""
    most = dict(chip.clusters).get(cluster, chip.sms)
    return max(1, min(most, (chip.sms - sm_margin) // cluster))
