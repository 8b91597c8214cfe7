"""How forward of some rows of x is cut on Hopper: the time is that of W's way to the SMs, so every SM has to have a
part of it. Pure functions of shapes and chip."""

from dataclasses import dataclass

from optimized import skinny_plan
from optimized.linear_plan import DEPTH, MAX_EXTENT, MEMORY_BYTES_A_CYCLE, Product, starts_sooner
from optimized.plan import Chip, Plan, round_up

MAX_ROWS, MAX_ACROSS = 4096, 16  # of x, and tiles that share them
COLS = (32, 64, 128, 192, 256)  # of x in a kernel: an n of wgmma
DEEP_ROWS = 64  # of x: with more, a CTA takes all memory of an SM
ROWS = (64, 128)  # of W that a CTA has room for
HEIGHTS = range(40, 129, 8)  # rows of W that it takes, in the swizzle's units; with fewer, too little is in flight
CLUSTERS = (1, 2, 4, 8)
BARRIERS_BYTES, MAX_STAGES = 1024, 32  # sizeof(Few::Barriers), Few::kMaxStages
CTAS = 2  # of an SM, where there are that many
SM_BYTES, CTA_BYTES = 1024, 1024  # that an SM has beyond what a CTA can take, and that each CTA costs beside its own

# A model of the busiest SM's time, in cycles, fitted to 1,107 cuts of 142 products on an H200.
FILL_CYCLES = 4500  # of a launch without its stages
LATENCY_CYCLES = 1750  # from asking for a stage to having it
FLOPS_A_CYCLE = 3950  # of tensor cores
PAIR_BYTES_A_CYCLE = 78  # from the L2 to two SMs, neighbours that have one way to it
TORN = 3  # times as long, where 128 bytes of a row lie across two lines
SHARE_OF_X = 1 / 3  # that counts on this way: the SMs ask for the same rows of x at about the same time
SUM_CYCLES, STORE_CYCLES = 0.5, 0.02  # an element of a CTA's sums, and of its part of D
EXPOSED = 1 / 5  # of the time of what does not limit
CROWDED = 1.08  # times as long, where each SM has one CTA of a deep product: none is left that ends sooner


@dataclass(frozen=True)
class Cut:
    """A product cut into `tiles` of `height` rows of W by all rows of x, or part of them where some lie `across`, K of
    each over the CTAs of a `cluster`."""

    product: Product
    height: int
    cluster: int
    across: int = 1

    @property
    def rows(self) -> int:
        """Rows of W that there is room for."""
        return next(rows for rows in ROWS if rows >= self.height)

    @property
    def width(self) -> int:
        """Rows of x that a tile takes."""
        return self.product.m if self.across == 1 else round_up(-(-self.product.m // self.across), 8)

    @property
    def is_full(self) -> bool:
        """Whether no tile is left without rows of x."""
        return (self.across - 1) * self.width < self.product.m

    @property
    def cols(self) -> int:
        """Rows of x that there is room for."""
        return next(cols for cols in COLS if cols >= self.width)

    @property
    def tiles(self) -> int:
        """How many, one a cluster."""
        return -(-self.product.n // self.height) * self.across

    @property
    def steps(self) -> int:
        """Stages of K that a CTA goes through at most."""
        return -(-_steps(self.product) // self.cluster)

    @property
    def stage_bytes(self) -> int:
        """sizeof(Few::Stage)."""
        return 2 * DEPTH * (self.rows + self.cols)

    def at_once(self, chip: Chip) -> int:
        """Clusters that run at once with one CTA an SM."""
        return dict(chip.clusters).get(self.cluster, chip.sms)

    def alone(self, chip: Chip) -> bool:
        """Whether each CTA has an SM to itself."""
        return self.tiles <= self.at_once(chip)

    def stages(self, chip: Chip) -> int:
        """In flight: as many as the CTAs of an SM have room for. Beside few rows of x half of an SM's memory is enough,
        even for one CTA, and the next launch finds room."""
        ctas = 1 if self.width > DEEP_ROWS else CTAS
        room = (chip.shared_bytes + SM_BYTES) // ctas - CTA_BYTES - BARRIERS_BYTES
        return min(MAX_STAGES, room // self.stage_bytes)

    def shared_bytes(self, chip: Chip) -> int:
        """Of the barriers and of the stages, which the sums take in the end."""
        return BARRIERS_BYTES + max(self.stages(chip) * self.stage_bytes, round_up(4 * self.cols * (self.rows + 4), 16))


def takes(products: tuple[Product, ...], chip: Chip) -> bool:
    """Whether `few` does them: one product of 16-bit operands along K that the copy engine loads, for at most MAX_ROWS
    rows, with results of their type or float32. D and C may lie anywhere. Few rows of x are left to gemm_skinny.cu
    where it makes waves, where there are no clusters to cut K over, and where they lie on each other."""
    p = products[0]
    forward = len(products) == 1 and not p.a_across and not p.b_across
    sized = p.m <= MAX_ROWS and 0 < min(p.m, p.n, p.k) and max(p.n, p.k) <= MAX_EXTENT
    loaded = p.element != "f32" and p.vectors and p.apart
    result = p.output == p.element or p.output == "f32" and not p.adds
    able = chip.arch == "sm_90a" and forward and sized and loaded and result
    skinny = p.m <= skinny_plan.MAX_ROWS and (skinny_plan.makes_waves(p, chip) or not chip.clusters)
    left = skinny or starts_sooner(p, chip)
    return able and not left and bool(cuts(p, chip))


def few(cut: Cut, chip: Chip) -> Plan:
    """The plan of one launch."""
    p = cut.product
    epilogue = f"{'ScaleAdd' if p.adds else 'Store'}<{p.output}>"
    across = f"{cut.across} x " if cut.across > 1 else ""
    variant = f"few {across}{cut.cols}x{cut.height}" + (f", K over {cut.cluster}" if cut.cluster > 1 else "")
    threads = 64 + 2 * cut.rows  # 64 that load, and two a row of W
    return Plan("gemm_few.cu", f"gemm_few<{p.element}, {cut.rows}, {cut.cols}, {epilogue}>", variant,
                cut.tiles * cut.cluster, threads, cut.cluster, stages=cut.stages(chip),
                shared_bytes=cut.shared_bytes(chip), programmatic=True)


def best(product: Product, chip: Chip) -> Cut:
    """The cut that is fastest by the model."""
    return min(cuts(product, chip), key=lambda cut: cycles(cut, chip))


def cuts(product: Product, chip: Chip) -> list[Cut]:
    """Those that there are: every CTA has a part of K. Where x costs as much as W on its way to the SMs, more rows of W
    may share it, but none has more CTAs than SMs: gemm.cu shares x between them."""
    sizes = [size for size in CLUSTERS if size == 1 or size in dict(chip.clusters) and size <= _steps(product)]
    if product.m <= DEEP_ROWS:
        return [Cut(product, height, size) for height in HEIGHTS if height <= ROWS[0] for size in sizes]
    found = (Cut(product, height, size, across) for across in range(-(-product.m // COLS[-1]), MAX_ACROSS + 1)
             for height in HEIGHTS for size in sizes)
    return [cut for cut in found if cut.alone(chip) and cut.width > DEEP_ROWS and cut.is_full]


def cycles(cut: Cut, chip: Chip) -> float:
    """SM cycles from the start of a launch to its end, by the model: waves of one CTA an SM. Where an SM has room for
    two, two waves begin and end together, but what an SM gets of memory they get one after the other. Few rows of x
    count as the most of them, and are cut alike: none depends on how many there are."""
    p, at_once = cut.product, cut.at_once(chip)
    m = max(cut.width, skinny_plan.MAX_ROWS)
    weights = 2 * DEPTH * cut.height  # bytes of a stage
    multiplied = 2 * DEPTH * cut.rows * cut.cols / FLOPS_A_CYCLE  # all rows that there is room for
    awaited = LATENCY_CYCLES / cut.stages(chip)
    loaded = (weights + 2 * DEPTH * m * SHARE_OF_X) / PAIR_BYTES_A_CYCLE * (TORN if p.k % DEPTH else 1)
    stored = m * cut.height * (SUM_CYCLES + STORE_CYCLES / cut.cluster)

    def wave(clusters):
        ctas = clusters * cut.cluster
        memory = ctas / cut.across * weights / (MEMORY_BYTES_A_CYCLE * chip.sms)
        step = max(multiplied, awaited, loaded * (2 if 2 * ctas > chip.sms else 1))
        return cut.steps * (max(memory, step) + EXPOSED * min(memory, step))

    full, rest = divmod(cut.tiles, at_once)
    fills = -(-cut.tiles // (CTAS * at_once))
    crowded = CROWDED if cut.width > DEEP_ROWS and cut.tiles * cut.cluster == chip.sms else 1
    return crowded * (fills * (FILL_CYCLES + stored) + full * wave(at_once) + (wave(rest) if rest else 0))


def _steps(product: Product) -> int:
    return -(-product.k // DEPTH)
