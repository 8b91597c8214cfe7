"""The products of linear layers: from tensors to launches.

Operands are read as they lie, and never transposed in memory. 16-bit operands whose rows begin at multiples of 16 bytes
and lie apart take on Hopper optimized.few, in forward with up to 4096 rows, or optimized.gemm; what those leave of
forward with up to 16 rows takes kernels/gemm_skinny.cu. The general path takes any shape, pitch and alignment from
compute capability 8.0 on; it multiplies bf16 and fp16 on tensor cores, fp32 exactly, or as TF32 where
torch.backends.cuda.matmul says so. The same bits in every run; but a row's may depend on how many rows there are. An
operand whose rows are not dense or do not lie at one distance from each other is copied first, one that is written
copied back; a quantized operand is dequantized first.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from optimized import few, few_plan, gemm, gemm_plan, skinny_plan
from optimized import linear_plan as plans
from optimized.launch import Launch, allocate, chip, untraced
from optimized.matrices import POINTERS, Operands, of_backward, of_forward
from optimized.operands import (
    Prepared, bump, in_memory, lie_apart, on_gpu, pitch, regular, signature, slot, span_bytes, written_back
)
from optimized.plan import Chip, Plan
from optimized.quantization import dequantize
from reference.formats import FLT_MAX
from reference.tensors import QuantizedTensor
from reference.tensors import products as checks

_prepared = Prepared()


def forward(function, input, weight, residual=None, scale=1.0, *, in_place=False, out_dtype=None):
    """scale · (input · weightᵀ), and the residual where the function adds one."""
    if torch.compiler.is_dynamo_compiling():
        return untraced(forward)(function, input, weight, residual, scale, in_place=in_place, out_dtype=out_dtype)
    try:
        key = (function, signature(input), signature(weight), None if residual is None else signature(residual),
               in_place, type(in_place), out_dtype, _exact(input))
        ready = _prepared.get(key)
    except (AttributeError, TypeError, RuntimeError):
        ready = None  # no dense tensor, or nothing that hashes: the checks say what is wrong
    if ready is None or not _is_scale(scale) or in_place and not ready.writes_apart(residual, input, weight):
        _check_forward(function, input, weight, residual, scale=scale, in_place=in_place, out_dtype=out_dtype)
        _check_place(function, input=input, weight=weight, residual=residual)
    if ready is None:
        dense = (_dense(input), _dense(weight), None if residual is None else _dense(residual))
        if any(a is not b for a, b in zip((input, weight, residual), dense)):
            output = forward(function, *dense, scale, in_place=in_place, out_dtype=out_dtype)
            return written_back(output, residual) if in_place and output is not residual else output
        ready = _prepared.keep(key, _prepare_forward(function, input, weight, residual, in_place, out_dtype))

    output = residual if in_place else allocate(ready.shapes[0], ready.dtype, input.device)

    if ready.launch is not None:
        ready.launch(input.data_ptr(), weight.data_ptr(), 0 if residual is None else residual.data_ptr(),
                     output.data_ptr(), 0, slot(scale))
    if in_place:
        bump(residual)
    return output


def backward(function, grad_output, input, weight, scale=1.0, *, grad_weight, flags):
    """scale · (grad_output · weight) and scale · (grad_outputᵀ · input), or None.

    `flags`: input_requires_grad, weight_requires_grad, accumulate_into_grad_weight.
    """
    if torch.compiler.is_dynamo_compiling():
        return untraced(backward)(function, grad_output, input, weight, scale, grad_weight=grad_weight, flags=flags)
    operands = grad_output, input, weight, grad_weight
    try:
        key = (function, *[t if t is None else signature(t) for t in operands], flags, *map(type, flags),
               _exact(grad_output))
        ready = _prepared.get(key)
    except (AttributeError, TypeError, RuntimeError):
        ready = None
    if ready is None or not _is_scale(scale) or (
            grad_weight is not None and not ready.writes_apart(grad_weight, grad_output, input, weight)):
        _check_backward(function, operands, scale, flags)
        _check_place(function, grad_output=grad_output, input=input, weight=weight, grad_weight=grad_weight)
    for_input, for_weight, accumulates = flags
    if ready is None:
        dense = _all_dense(operands, flags)
        if any(a is not b for a, b in zip(operands, dense)):
            dx, dw = backward(function, *dense[:3], scale, grad_weight=dense[3], flags=flags)
            return dx, dw if dw is None or grad_weight is None or dw is grad_weight else written_back(dw, grad_weight)
        ready = _prepared.keep(key, _prepare_backward(function, operands, flags))

    device = grad_output.device
    dx = allocate(ready.shapes[0], ready.dtype, device) if for_input else None
    dw = grad_weight if for_weight else None
    if for_weight and dw is None:
        dw = allocate(ready.shapes[1], ready.dtype, device)

    if ready.launch is not None:
        dy, alpha, (first, second) = grad_output.data_ptr(), slot(scale), ready.live
        to = dw.data_ptr() if second else 0
        ready.launch(*(dy, weight.data_ptr(), 0, dx.data_ptr(), 0, alpha) if first else (),
                     *(dy, input.data_ptr(), to if accumulates else 0, to, 0, alpha) if second else ())
    if for_weight and grad_weight is not None:
        bump(grad_weight)
    return dx, dw


def planned(function: str, given, chip: Chip) -> Plan:
    """The plan of a call of `function` with the bound arguments `given`; quantized operands count as dequantized. Its
    variant names the operands that are copied."""
    products, exact = _bound(function, given)
    described = tuple(each.product(exact) for each in products)
    way = _way(described, chip)
    plan = way.plan_of(described, chip) if way else _tiled(function, described, chip)[1]
    return replace(plan, variant=", ".join((plan.variant, *(f"{name} copied" for name in _copied(given.arguments)))))


def asked(function: str, given) -> tuple[plans.Product, ...]:
    """The products of such a call, as plans see them."""
    products, exact = _bound(function, given)
    return tuple(each.product(exact) for each in products)


def _copied(arguments) -> list[str]:
    """Names of the operands that are needed and that are not as kernels read them."""
    unused = set() if arguments.get("input_requires_grad", True) else {"weight"}
    unused |= set() if arguments.get("weight_requires_grad", True) else {"input", "grad_weight"}
    return [name for name, t in arguments.items()
            if isinstance(t, Tensor) and name not in unused and (pitch(t) is None or t.is_neg())]


def _bound(function: str, given) -> tuple[tuple[Operands, ...], bool]:
    """The operands of each product of a call, and whether float32 is multiplied as such."""
    given.apply_defaults()
    a = {name: torch.empty(value.shape, dtype=value.dtype, device="meta") if isinstance(value, QuantizedTensor) else
         value for name, value in given.arguments.items()}
    scale = a.get("scale", 1.0)
    if "grad_output" not in a:
        options = {"in_place": a.get("in_place", False), "out_dtype": a.get("out_dtype")}
        operands = a["input"], a["weight"], a.get("residual")
        _check_forward(function, *operands, scale=scale, **options)
        products = (of_forward(*map(_dense, operands), **options),)
    else:
        operands = tuple(a[name] for name in ("grad_output", "input", "weight", "grad_weight"))
        flags = a["input_requires_grad"], a["weight_requires_grad"], a["accumulate_into_grad_weight"]
        _check_backward(function, operands, scale, flags)
        products = tuple(filter(None, of_backward(tuple(map(_dense, operands)), flags)))
    return products, _exact(operands[0])


@dataclass(frozen=True)
class _Ready:
    """What is kept of a call for the next one like it: `launch` (None where there is nothing to do), of backward with
    which of dgrad and wgrad are `live`; the shapes and the dtype of the outputs; the bytes that the written tensor, if
    one is given, and the operands span."""

    launch: Launch | None
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    spans: tuple[int, ...]
    live: tuple[bool, ...] = ()

    def writes_apart(self, written: Tensor, *operands: Tensor | None) -> bool:
        """Whether they have no byte in common; where they may, the checks look closer."""
        address, (size, *sizes) = written.data_ptr(), self.spans
        for t, its in zip(operands, sizes):  # all() of a generator takes half as long again
            if t is not None and not lie_apart(address, size, t.data_ptr(), its):
                return False
        return True


def _prepare_forward(function, input, weight, residual, in_place, out_dtype) -> _Ready:
    product = of_forward(input, weight, residual, in_place, out_dtype)
    launch = _launch(function, (product,), _exact(input), input.device) if product.d.rows and product.d.cols else None
    shape = (*input.shape[:-1], weight.shape[0])
    return _Ready(launch, (shape,), out_dtype or input.dtype, _spans(residual, input, weight))


def _prepare_backward(function, operands, flags) -> _Ready:
    grad_output, input, weight, grad_weight = operands
    products = of_backward(operands, flags)
    live = tuple(each is not None and each.d.rows * each.d.cols > 0 and not (each.c and each.a.rows == 0)
                 for each in products)  # nothing to add is no reason to touch what is there
    launched = tuple(each for each, lives in zip(products, live) if lives)
    launch = _launch(function, launched, _exact(grad_output), grad_output.device) if launched else None
    cols = next((t.shape[-1] for t in (input, weight) if t is not None), 0)
    shapes = (*grad_output.shape[:-1], cols), (grad_output.shape[-1], cols)
    return _Ready(launch, shapes, grad_output.dtype, _spans(grad_weight, grad_output, input, weight), live)


def _way(products: tuple[plans.Product, ...], chip: Chip):
    """gemm or few, whichever does the products; None for the paths whose kernels take addresses and shapes alone."""
    return gemm if gemm_plan.takes(products, chip) else few if few_plan.takes(products, chip) else None


def _tiled(function: str, products: tuple[plans.Product, ...], chip: Chip) -> tuple[tuple, Plan]:
    """Tilings, or Strips, and the plan, on the paths whose kernels take addresses and shapes alone."""
    if skinny_plan.takes(products):
        strips = skinny_plan.Strips(*products)
        return (strips,), skinny_plan.skinny(strips, chip)
    tiled = plans.tilings(products, chip)
    return tiled, plans.general(function, tiled, chip)


def _launch(function: str, products: tuple[Operands, ...], exact: bool, device: torch.device) -> Launch:
    """A launch that takes, for each product, the addresses of A, B, C (0: none), D and a factor in device memory (0:
    none), and the scale."""
    here, described = chip(device), tuple(each.product(exact) for each in products)
    if way := _way(described, here):
        return way.launch(products, device)
    tiled, plan = _tiled(function, described, here)
    scalars = sum((each.scalars(tiling) for each, tiling in zip(products, tiled)), ())
    return Launch(plan, device, POINTERS * len(products), scalars)


def _check_forward(function, input, weight, residual, *, scale, in_place, out_dtype):
    if function == "linear_fwd":
        checks.linear_forward(function, input, weight, out_dtype=out_dtype)
    else:
        checks.linear_scale_add_forward(function, input, weight, residual, scale=scale, in_place=in_place)


def _check_backward(function, operands, scale, flags):
    grad_output, input, weight, grad_weight = operands
    for_input, for_weight, accumulates = flags
    checks.linear_backward(function, grad_output, input, weight, input_requires_grad=for_input,
                           weight_requires_grad=for_weight, grad_weight=grad_weight,
                           accumulate_into_grad_weight=accumulates)
    if function == "linear_scale_bwd":
        checks.is_scale(function, scale)


def _check_place(function, **operands):
    on_gpu(function, *next(iter(operands.items())))
    in_memory(function, **operands)


def _is_scale(scale) -> bool:
    return type(scale) is float and -FLT_MAX <= scale <= FLT_MAX


def _exact(t: Tensor) -> bool:
    """Whether float32 is multiplied as such: what PyTorch's own products are told."""
    return t.dtype != torch.float32 or torch.backends.cuda.matmul.fp32_precision != "tf32"


def _dense(t):
    """An operand as kernels read it: quantized ones dequantized, and none but rows at one distance."""
    return t if t is None else regular(dequantize(t, t.dtype) if isinstance(t, QuantizedTensor) else t)


def _all_dense(operands, flags) -> tuple:
    """Backward's operands; those that no required gradient needs are left alone, or dropped if they are quantized."""
    for_input, for_weight, _ = flags
    needed = for_input or for_weight, for_weight, for_input, for_weight
    return tuple(_dense(t) if used else None if isinstance(t, QuantizedTensor) else t
                 for t, used in zip(operands, needed))


def _spans(*tensors: Tensor | None) -> tuple[int, ...]:
    return tuple(0 if t is None else span_bytes(t) for t in tensors)
