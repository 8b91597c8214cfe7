"""What PyTorch has for the functions of linear layers: one call of cuBLAS for each product, and separate operations.

Tensors are matrices, as the cases have them. alpha and beta belong to cuBLAS's own epilogue; by which of its
interfaces, its own or cuBLASLt's, is PyTorch's choice (torch.backends.cuda.preferred_blas_library).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from harness.cases import Call, Case

Run = Callable[[Call], tuple]


def cublas(case: Case) -> Run:
    """One call of cuBLAS for each product: scale and sum are its alpha and beta. Only of CUBLAS."""
    return _run(CUBLAS[case.function])


def unfused(case: Case) -> Run:
    """PyTorch's operations one after the other: product, scale, sum. Only of UNFUSED."""
    return _run(UNFUSED[case.function])


def _run(function: Callable) -> Run:
    def run(call: Call) -> tuple:
        with torch.no_grad():
            results = function(*call.args, **call.kwargs)
        return results if isinstance(results, tuple) else (results,)

    return run


def _linear_fwd(input, weight, out_dtype=None) -> Tensor:
    return torch.mm(input, weight.t()) if out_dtype in (None, input.dtype) else _widened(input, weight.t(), out_dtype)


def _linear_scale_add_fwd(input, weight, residual, scale, in_place=True) -> Tensor:
    if in_place:
        return residual.addmm_(input, weight.t(), beta=1, alpha=scale)
    return torch.addmm(residual, input, weight.t(), beta=1, alpha=scale)


def _linear_bwd(grad_output, input, weight, **options) -> tuple:
    return _linear_scale_bwd(grad_output, input, weight, 1.0, **options)


def _linear_scale_bwd(grad_output, input, weight, scale, **options) -> tuple:
    grad_input = None if weight is None else _scaled(grad_output, weight, scale)
    if input is None:
        return grad_input, None
    buffer = options.get("grad_weight")
    if buffer is None:
        return grad_input, _scaled(grad_output.t(), input, scale)
    return grad_input, _accumulated(buffer, grad_output.t(), input, scale)


def _unfused_scale_add(input, weight, residual, scale, in_place=True) -> Tensor:
    scaled = torch.mm(input, weight.t()).mul_(scale)
    return residual.add_(scaled) if in_place else residual + scaled


def _unfused_scale_bwd(grad_output, input, weight, scale, **options) -> tuple:
    return _linear_bwd(grad_output * scale, input, weight, **options)


def _constant_scale(input, scale) -> Tensor:
    return torch.mul(input, scale).contiguous()


def _add(input, other, out=None) -> Tensor:
    return torch.add(input, other).contiguous() if out is None else torch.add(input, other, out=out)


def _scaled(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """scale · a b: with beta 0 what addmm adds to is never read."""
    if scale == 1.0:
        return torch.mm(a, b)
    out = a.new_empty(a.shape[0], b.shape[1])
    return torch.addmm(out, a, b, beta=0, alpha=scale, out=out)


def _accumulated(buffer: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """buffer + scale · a b, in place; a buffer of float32 beside 16-bit operands where PyTorch has that."""
    if buffer.dtype == a.dtype:
        return buffer.addmm_(a, b, beta=1, alpha=scale)
    if buffer.device.type == "cuda" and buffer.dtype == torch.float32:
        return torch.addmm(buffer, a, b, out_dtype=torch.float32, beta=1, alpha=scale, out=buffer)
    return buffer.add_(torch.mm(a.float(), b.float()), alpha=scale)


def _widened(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    if a.device.type == "cuda" and a.dtype != torch.float32:
        return torch.mm(a, b, out_dtype=torch.float32).to(dtype)
    return torch.mm(a.float(), b.float()).to(dtype)


CUBLAS = {"linear_fwd": _linear_fwd, "linear_scale_add_fwd": _linear_scale_add_fwd, "linear_bwd": _linear_bwd,
          "linear_scale_bwd": _linear_scale_bwd}
UNFUSED = {"linear_scale_add_fwd": _unfused_scale_add, "linear_scale_bwd": _unfused_scale_bwd,
           "constant_scale": _constant_scale, "add": _add}
