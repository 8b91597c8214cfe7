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
    rows_of_x = cut.product.m  # no more: filling up with zeros takes the copy engine long
    maps = tma.of_matrix(operands.a, (rows_of_x, DEPTH), 128), tma.of_matrix(operands.b, (cut.height, DEPTH), 128)
    scalars = *operands.scalars(cut), *map(numpy.int32, (plan.stages, cut.height))
    return Launch(plan, device, POINTERS, scalars, tma.Maps(maps, (0, 1), tuple(range(POINTERS))))
