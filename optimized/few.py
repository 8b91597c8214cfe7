"""Forward of some rows of x on Hopper: from operands in memory to a launch of kernels/gemm_few.cu."""

import numpy
import torch

from optimized import few_plan, tma
from optimized.few_plan import Cut
from optimized.launch import Launch, chip, make_current
from optimized.linear_plan import DEPTH, Product
from optimized.matrices import POINTERS, Operands
from optimized.plan import Chip, Plan


def plan_of(products: tuple[Product, ...], here: Chip) -> Plan:
    """The plan of one product, with the cut that is fastest by the model."""
    return few_plan.few(few_plan.best(*products, here), here)


def launch(products: tuple[Operands, ...], device: torch.device, cut: Cut | None = None) -> Launch:
    """What computes the one product when it is called with its POINTERS; `cut`: instead of the fastest by the model."""
    operands, = products
    here = chip(device)
    cut = cut or few_plan.best(operands.product(True), here)
    plan = few_plan.few(cut, here)
    make_current(device)  # for the maps
    boxes = (cut.width, DEPTH), (cut.height, DEPTH)  # no more rows of x: zeros take the copy engine long
    maps = tuple(tma.of_matrix(side, box, 128) for side, box in zip((operands.a, operands.b), boxes))
    scalars = *operands.scalars(cut), *map(numpy.int32, (plan.stages, cut.height, cut.width, cut.across))
    return Launch(plan, device, POINTERS, scalars, tma.Maps(maps, (0, 1), tuple(range(POINTERS))))
