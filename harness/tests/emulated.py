"""Launches that PyTorch carries out on the CPU, from the very plan, scalars and pointers that a kernel would get."""

import ctypes
import re

import numpy
import pytest
import torch

from optimized import pointwise, products
from optimized.operands import Prepared
from optimized.plan import Chip
from reference.tensors import QuantizedTensor

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
SM_80 = Chip("sm_80", 108, 166_912)  # where every product takes the general path, but for few rows of x
PRODUCT = re.compile(r"(Simt|TensorCore)<(?:(\w+), )?(AlongK|Across), (AlongK|Across), (\d+), (\d+)>, "
                     r"(Store|ScaleAdd)<(\w+)>")
FEW_ROWS = re.compile(r"gemm_skinny<(\w+), (1|2), (Store|ScaleAdd)<(\w+)>>")


def at(address, rows, cols, pitch, dtype):
    """The matrix in memory: a view, no copy."""
    if not rows * cols:
        return torch.empty(rows, cols, dtype=dtype)
    size = (rows - 1) * pitch + cols
    memory = (ctypes.c_char * (size * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).as_strided((rows, cols), (pitch, 1))


def number(slot):
    """The float32 in the place of a pointer."""
    return numpy.uint32(slot).view(numpy.float32).item()


def demand_unit(address, pitch_bytes, rows, unit):
    """What is moved `unit` bytes at once begins at a multiple of them, in every row."""
    assert address % unit == 0 and (rows < 2 or pitch_bytes % unit == 0)


def multiplied(plan, scalars):
    """The products of a plan, as PRODUCT finds them."""
    few = FEW_ROWS.fullmatch(plan.kernel)
    assert plan.source == ("gemm_skinny.cu" if few else "gemm_general.cu")
    if not few:
        return PRODUCT.findall(plan.kernel)
    element, blocks, epilogue, output = few.groups()
    m, n, _, a_unit, b_unit = map(int, scalars[4:9])
    assert 0 < m <= 8 * int(blocks) and plan.grid == -(-n // (16 * int(blocks))) and a_unit == b_unit == 16
    return [("TensorCore", element, "AlongK", "AlongK", "", "", epilogue, output)]


class Multiplies:
    """In the place of Launch for kernels/gemm_general.cu and gemm_skinny.cu. `log` keeps the plan and the pointers of
    each call."""

    def __init__(self, log, plan, device, pointers, scalars):
        self._log, self._plan, self._scalars = log, plan, scalars
        self._products = multiplied(plan, scalars)
        assert len(self._products) == pointers // 6 and len(scalars) == 11 * len(self._products)
        assert [type(scalar) for scalar in scalars] == ([numpy.int64] * 7 + [numpy.int32] * 4) * len(self._products)
        assert sum(int(scalars[i + 10]) for i in range(0, len(scalars), 11)) == plan.grid

    def __call__(self, *pointers):
        self._log.append((self._plan, pointers))
        for i, product in enumerate(self._products):
            self._multiply(product, pointers[6 * i:6 * i + 6], [int(s) for s in self._scalars[11 * i:11 * i + 11]])

    @staticmethod
    def _multiply(product, pointers, sizes):
        core, element, a_lies, b_lies, _, _, epilogue, output = product
        a_pitch, b_pitch, c_pitch, d_pitch, m, n, k, a_unit, b_unit, run, _ = sizes
        taken, given, out = DTYPES[element or "f32"], DTYPES["f32"], DTYPES[output]
        a_shape, b_shape = (k, m) if a_lies == "Across" else (m, k), (k, n) if b_lies == "Across" else (n, k)
        a, b = at(pointers[0], *a_shape, a_pitch, taken), at(pointers[1], *b_shape, b_pitch, taken)
        demand_unit(pointers[0], a_pitch * taken.itemsize, a_shape[0], a_unit)
        demand_unit(pointers[1], b_pitch * taken.itemsize, b_shape[0], b_unit)
        demand_unit(pointers[3], d_pitch * out.itemsize, m, run * out.itemsize)
        a, b = (a.t() if a_lies == "Across" else a).to(given), (b if b_lies == "Across" else b.t()).to(given)
        total = number(pointers[5]) * (a @ b)
        assert (epilogue == "ScaleAdd") == (pointers[2] != 0) and pointers[4] == 0
        if pointers[2]:
            demand_unit(pointers[2], c_pitch * out.itemsize, m, run * out.itemsize)
            total += at(pointers[2], m, n, c_pitch, out).to(given)
        at(pointers[3], m, n, d_pitch, out).copy_(total)


class Points:
    """In the place of Launch for kernels/pointwise.cu."""

    def __init__(self, log, plan, device, pointers, scalars):
        self._log, self._plan, self._sizes = log, plan, [int(scalar) for scalar in scalars]
        assert pointers == 4 and [type(scalar) for scalar in scalars] == [numpy.int64] * 5

    def __call__(self, *pointers):
        self._log.append((self._plan, pointers))
        op, element, run = re.fullmatch(r"pointwise<(\w+), (\w+), (\d+)>", self._plan.kernel).groups()
        (rows, cols, *pitches), dtype = self._sizes, DTYPES[element]
        for address, pitch in zip(pointers, pitches):
            demand_unit(address, pitch * dtype.itemsize, rows, int(run) * dtype.itemsize)
        a, y = (at(pointers[i], rows, cols, pitches[i], dtype) for i in (0, 2))
        b = at(pointers[1], rows, cols, pitches[1], dtype).float() if op == "Add" else None
        y.copy_(a.float() * number(pointers[3]) if b is None else a.float() + b)


@pytest.fixture
def launched(monkeypatch):
    """Plan and pointers of each launch of a product or of a pointwise operation, on the CPU."""
    log = []
    for module, launch in ((products, Multiplies), (pointwise, Points)):
        monkeypatch.setattr(module, "_prepared", Prepared())
        monkeypatch.setattr(module, "on_gpu", lambda *_: None)
        monkeypatch.setattr(module, "chip", lambda _: SM_80)
        monkeypatch.setattr(module, "Launch", lambda *given, launch=launch: launch(log, *given))
    monkeypatch.setattr(products, "dequantize", QuantizedTensor.dequantize)
    return log
