"""LayerNorm and RMSNorm, forward and backward: the twins of reference.normalization.

Every call is one launch. Forward reads x and writes y once; backward reads dz, x (and add) and writes dx once, and
adds up dgamma and dbeta in the same launch, in a fixed order. Rows that neither registers nor shared memory hold are
read again through the L2 cache: on Hopper those wider than 196,608 columns forward and 64,000 backward (more where
the dtypes allow), elsewhere 24,576 and 8,192. Any compute capability from 8.0. A tensor whose rows are not dense or do
not lie at one distance from each other, and a weight and bias of different dtypes, are copied first.

A quantized output takes one of four paths (see Path), which the quantizer chooses and `forced_path` forces. All give
the same values. UNFUSED takes two launches, the others one, but where `forced_path` asks for amax and cast `in_two`.
"""

import inspect
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from optimized import norm_forward
from optimized import plan as plans
from optimized.launch import Launch, allocate, chip, untraced
from optimized.norm_forward import computes, forced_path
from optimized.norm_operands import takes, widest_vector
from optimized.norm_quantize_plan import Path
from optimized.operands import Prepared, contiguous, pitch, regular, signature, type_of
from optimized.plan import Plan, Problem
from reference import tensors

_DTYPE_CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}  # DType of kernels/device/dtype.cuh
_prepared = Prepared()
__all__ = [
    "Path", "forced_path", "layernorm_bwd", "layernorm_fwd", "plan_of", "rmsnorm_bwd", "rmsnorm_bwd_add", "rmsnorm_fwd"
]


def layernorm_fwd(input, weight, bias, eps, quantizer=None, sm_margin=0, zero_centered_gamma=False):
    """reference.layernorm_fwd on a GPU: x is read once, also for its two passes."""
    if torch.compiler.is_dynamo_compiling():
        return untraced(layernorm_fwd)(input, weight, bias, eps, quantizer, sm_margin, zero_centered_gamma)
    options = {"eps": eps, "sm_margin": sm_margin, "zero_centered_gamma": zero_centered_gamma}
    return computes("layernorm_fwd", quantizer)("layernorm_fwd", input, weight, bias, options)


def rmsnorm_fwd(input, weight, eps, quantizer=None, sm_margin=0, zero_centered_gamma=False):
    """reference.rmsnorm_fwd on a GPU: x is read once."""
    if torch.compiler.is_dynamo_compiling():
        return untraced(rmsnorm_fwd)(input, weight, eps, quantizer, sm_margin, zero_centered_gamma)
    options = {"eps": eps, "sm_margin": sm_margin, "zero_centered_gamma": zero_centered_gamma}
    return computes("rmsnorm_fwd", quantizer)("rmsnorm_fwd", input, weight, None, options)


def layernorm_bwd(dz, x, mu, rsigma, gamma, sm_margin=0, zero_centered_gamma=False):
    """reference.layernorm_bwd on a GPU. The same bits in every run for one device and `sm_margin`."""
    return _backward("layernorm_bwd", (dz, x, None, mu, rsigma, gamma), sm_margin, zero_centered_gamma)


def rmsnorm_bwd(dz, x, rsigma, gamma, sm_margin=0, zero_centered_gamma=False):
    """reference.rmsnorm_bwd on a GPU. The same bits in every run for one device and `sm_margin`."""
    return _backward("rmsnorm_bwd", (dz, x, None, None, rsigma, gamma), sm_margin, zero_centered_gamma)


def rmsnorm_bwd_add(dz, x, add, rsigma, gamma, sm_margin=0, zero_centered_gamma=False):
    """reference.rmsnorm_bwd_add on a GPU. The same bits in every run for one device and `sm_margin`."""
    return _backward("rmsnorm_bwd_add", (dz, x, add, None, rsigma, gamma), sm_margin, zero_centered_gamma)


def plan_of(function: str, *args, chip: plans.Chip, **kwargs) -> Plan:
    """The plan that a call of `function` takes on `chip`; tensors may be on any device, "meta" included.

    Errors: those of the call, but for the device.
    """
    given = inspect.signature(globals()[function]).bind(*args, **kwargs)
    given.apply_defaults()
    a = given.arguments
    if function.endswith("_fwd"):
        return norm_forward.plan_of(function, **({"bias": None} | a), chip=chip)
    operands = [a["dz"], a["x"], a.get("add"), a.get("mu"), a["rsigma"], a["gamma"]]
    _check_backward(function, operands, a["sm_margin"], a["zero_centered_gamma"])
    rowwise = [None if t is None else regular(t) for t in operands[:3]]
    return plans.norm_backward(_backward_problem(function, *rowwise, a["gamma"]), chip, a["sm_margin"])


@dataclass(frozen=True)
class _Ready:
    """What is kept of a call for the next one like it: `launch`, the shapes of x and gamma, the bytes of workspace."""

    launch: Launch
    shape: tuple[int, ...]
    gamma_shape: tuple[int, ...]
    workspace_bytes: int


def _backward(function, operands, sm_margin, zero_centered_gamma):
    if torch.compiler.is_dynamo_compiling():
        return untraced(_backward)(function, operands, sm_margin, zero_centered_gamma)
    try:
        key = (function, *[t if t is None else signature(t) for t in operands], sm_margin, type(sm_margin),
               zero_centered_gamma, type(zero_centered_gamma))
        ready = _prepared.get(key)
    except (AttributeError, TypeError, RuntimeError):
        ready = None
    dz, x, add, mu, rsigma, gamma = operands
    if ready is None:
        _check_backward(function, operands, sm_margin, zero_centered_gamma)
        takes(function, x=x, dz=dz, add=add, mu=mu, rsigma=rsigma, gamma=gamma)
        dense = (*[t if t is None else regular(t) for t in (dz, x, add)],
                 *[t if t is None else contiguous(t) for t in (mu, rsigma, gamma)])
        if any(a is not b for a, b in zip(operands, dense)):
            return _backward(function, dense, sm_margin, zero_centered_gamma)
        ready = _prepared.keep(key, _prepare_backward(function, operands, sm_margin, zero_centered_gamma))

    device = x.device
    dx = allocate(ready.shape, x.dtype, device)
    dgamma = allocate(ready.gamma_shape, gamma.dtype, device)
    dbeta = allocate(ready.gamma_shape, gamma.dtype, device) if function == "layernorm_bwd" else None
    workspace = allocate((ready.workspace_bytes // 4,), torch.float32, device)

    given = (x, dz, add, gamma, mu, rsigma, dx, dgamma, dbeta, workspace)
    ready.launch(*[0 if t is None else t.data_ptr() for t in given])
    return (dx, dgamma) if dbeta is None else (dx, dgamma, dbeta)


def _prepare_backward(function, operands, sm_margin, zero_centered_gamma) -> _Ready:
    dz, x, add, _, _, gamma = operands
    problem = _backward_problem(function, dz, x, add, gamma)
    plan = plans.norm_backward(problem, chip(x.device), sm_margin)
    scalars = (
        numpy.int64(problem.rows), numpy.int64(pitch(x)), numpy.int64(pitch(dz)),
        numpy.int64(0 if add is None else pitch(add)), numpy.int32(problem.cols), numpy.int32(plan.row_threads),
        numpy.float32(zero_centered_gamma), numpy.float32(1 / problem.cols),
        numpy.int32(_DTYPE_CODES[x.dtype if add is None else add.dtype]), numpy.int32(plan.stages),
        numpy.int32(plan.stage_bytes), numpy.int32(plan.stages_offset),
    )
    launch = Launch(plan, x.device, 10, scalars)
    return _Ready(launch, tuple(x.shape), tuple(gamma.shape), plan.workspace_bytes)


def _check_backward(function, operands, sm_margin, zero_centered_gamma):
    dz, x, add, mu, rsigma, gamma = operands
    tensors.norm_backward(
        function, x, gamma, like_x={"dz": dz} | ({"add": add} if function == "rmsnorm_bwd_add" else {}),
        statistics=({"mu": mu} if function == "layernorm_bwd" else {}) | {"rsigma": rsigma},
        sm_margin=sm_margin, zero_centered_gamma=zero_centered_gamma)


def _backward_problem(function, dz, x, add, gamma) -> Problem:
    norm = {"layernorm_bwd": "LayerNorm", "rmsnorm_bwd": "RmsNorm", "rmsnorm_bwd_add": "RmsNormAdd"}[function]
    cols, rowwise = x.shape[-1], [t for t in (x, dz, add) if t is not None]
    vector = widest_vector(cols, rowwise, [gamma])
    return Problem(norm, x.shape[:-1].numel(), cols, type_of(x.dtype), type_of(gamma.dtype), type_of(dz.dtype),
                   None if add is None else type_of(add.dtype), vector, _bulk(cols, rowwise, gamma))


def _bulk(cols: int, rowwise: list[Tensor], gamma: Tensor) -> bool:
    """Whether the copy engine can fetch rows and gamma, also in slabs of whole eights of columns."""
    return cols % 8 == 0 and gamma.data_ptr() % 16 == 0 and all(
        t.data_ptr() % 16 == 0 and pitch(t) * t.element_size() % 16 == 0 for t in rowwise)
