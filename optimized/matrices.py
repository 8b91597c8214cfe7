"""The operands of the products of a linear layer, as they lie in memory."""

import math
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from optimized import few_plan, skinny_plan
from optimized import linear_plan as plans
from optimized.operands import pitch, type_of
from optimized.plan import SIZES

POINTERS = 6  # that a launch takes for each product: A, B, C, D, a factor in device memory or 0, and the scale


@dataclass(frozen=True)
class Matrix:
    """`rows` x `cols` elements, rows `pitch` elements apart; each begins at a multiple of `unit` bytes, 16 at most."""

    rows: int
    cols: int
    pitch: int
    element: str
    unit: int

    @classmethod
    def of(cls, t: Tensor) -> "Matrix":
        """Of a tensor (..., cols) whose rows lie at one distance."""
        return cls._at(t.data_ptr(), math.prod(t.shape[:-1]), t.shape[-1], pitch(t), t.dtype)

    @classmethod
    def new(cls, rows: int, cols: int, dtype: torch.dtype) -> "Matrix":
        """That `allocate` will give."""
        return cls._at(0, rows, cols, cols, dtype)

    @property
    def aligned(self) -> bool:
        """Whether the copy engine takes it: rows begin at multiples of 16 bytes, and no row on another one."""
        return self.unit == 16 and self.apart

    @property
    def apart(self) -> bool:
        """Whether no row lies on another one."""
        return self.rows <= 1 or self.pitch >= self.cols

    @property
    def whole(self) -> bool:
        """Whether rows end at multiples of 16 bytes too: what the copy engine stores, it fills up to there."""
        return self.cols * SIZES[self.element] % 16 == 0

    @classmethod
    def _at(cls, address, rows, cols, pitch, dtype):
        place = address | (pitch * dtype.itemsize if rows > 1 else 0)
        return cls(rows, cols, pitch, type_of(dtype), min(16, place & -place) or 16)


@dataclass(frozen=True)
class Operands:
    """Of one product D = scale · A·B (+ C): A (m, k) or, where its elements lie `across`, (k, m); B (n, k) or (k, n);
    C, None where nothing is added, and D (m, n)."""

    a: Matrix
    b: Matrix
    c: Matrix | None
    d: Matrix
    a_across: bool = False
    b_across: bool = False

    def product(self, exact: bool) -> plans.Product:
        """What is planned for; `exact`: f32 is not multiplied as TF32."""
        m, k = (self.a.cols, self.a.rows) if self.a_across else (self.a.rows, self.a.cols)
        n = self.b.cols if self.b_across else self.b.rows
        given = (self.a, self.b, self.d) if self.c is None else (self.a, self.b, self.c, self.d)
        return plans.Product(m, n, k, self.a.element, self.d.element, self.a_across, self.b_across, self.c is not None,
                             exact, self.d.whole and all(matrix.aligned for matrix in given),
                             self.a.unit == self.b.unit == 16, self.a.apart and self.b.apart)

    def scalars(self, tiling: plans.Tiling | skinny_plan.Strips | few_plan.Cut) -> tuple:
        """Shape of kernels/device/gemm_general.cuh."""
        p, c = tiling.product, self.c or self.d
        run = min(4, self.d.unit // SIZES[self.d.element], c.unit // SIZES[c.element])
        sizes = self.a.pitch, self.b.pitch, c.pitch, self.d.pitch, p.m, p.n, p.k
        small = _load_unit(self.a), _load_unit(self.b), run, tiling.tiles
        return (*map(numpy.int64, sizes), *map(numpy.int32, small))


def of_forward(input, weight, residual, in_place, out_dtype) -> Operands:
    """Of forward: both along K."""
    x, w = Matrix.of(input), Matrix.of(weight)
    c = None if residual is None else Matrix.of(residual)
    return Operands(x, w, c, c if in_place else Matrix.new(x.rows, w.rows, out_dtype or input.dtype))


def of_backward(operands, flags) -> tuple[Operands | None, Operands | None]:
    """Of dgrad and wgrad, None where not required; `operands` and `flags` are those of products.backward."""
    grad_output, input, weight, grad_weight = operands
    for_input, for_weight, accumulates = flags
    dy, dgrad, wgrad = Matrix.of(grad_output), None, None
    if for_input:
        w = Matrix.of(weight)
        dgrad = Operands(dy, w, None, Matrix.new(dy.rows, w.cols, grad_output.dtype), b_across=True)
    if for_weight:
        x = Matrix.of(input)
        d = Matrix.new(dy.cols, x.cols, input.dtype) if grad_weight is None else Matrix.of(grad_weight)
        wgrad = Operands(dy, x, d if accumulates else None, d, a_across=True, b_across=True)
    return dgrad, wgrad


def _load_unit(matrix: Matrix) -> int:
    """Bytes that a load of the kernels moves at once."""
    return 16 if matrix.unit == 16 else 4 if matrix.unit >= 4 else SIZES[matrix.element]
