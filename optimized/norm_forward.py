"""Forward norms: the launches behind layernorm_fwd and rmsnorm_fwd, with and without a quantizer."""

from collections.abc import Callable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial

import numpy
import torch
from torch import Tensor

from optimized import norm_quantize_plan as plans_of_paths
from optimized import plan as plans
from optimized.launch import Launch, allocate, chip
from optimized.norm_operands import alike, forward_problem, on_16_bytes, takes
from optimized.norm_quantize_plan import Path
from optimized.operands import Prepared, pitch, regular, signature, type_of
from optimized.plan import Chip, Plan, Problem
from optimized.quantization import (
    CODES, assembled, options_of, outputs_of, pointers_of, quantize, scalars_of, within_extent, work_of
)
from reference import tensors
from reference.quantizers import Float8CurrentScalingQuantizer, Float8Quantizer, MXFP8Quantizer

_prepared = Prepared()
_forced: ContextVar[tuple[Path | None, bool]] = ContextVar("forced", default=(None, False))


@contextmanager
def forced_path(path: Path | None, in_two: bool = False):
    """Within it, forward norms of this thread take `path`, whatever they would choose; None: what they choose.

    `in_two`: what needs the amax of the tensor, current scaling and NVFP4, takes a launch for the amax and one for the
    cast, instead of one for both; for comparison.
    Errors: ValueError, by the call, where its quantizer makes the path impossible.
    """
    if not isinstance(path, Path | None):
        raise TypeError(f"forced_path: path is a {type(path).__name__}, but must be a Path or None")
    before = _forced.set((path, in_two))
    try:
        yield
    finally:
        _forced.reset(before)


@dataclass(frozen=True)
class _Ready:
    """What is kept of a call for the next one like it: `launch`, None where there is nothing to do; (shape, dtype) of
    the outputs, None for those that are not asked for; rows; the order of the kernel's pointers; and the launch before
    `launch`, with the same arguments, if any."""

    launch: Launch | None
    outputs: tuple
    rows: int
    order: Callable | None = None
    first: Launch | None = None


_UNFUSED = _Ready(None, (), 0)  # whose norm and quantization keep what they launch


def computes(function, quantizer):
    """What computes the norm with `quantizer`, given (function, input, weight, bias, options): (y, or what the
    quantizer makes of it; mu, None for RMSNorm; rsigma). Its caller calls it: one frame less on the way to the driver.
    """
    if quantizer is not None:
        return partial(_quantized, quantizer=quantizer)
    if _forced.get()[0] is not None:
        path_of(function, None)
    return _plain


def _plain(function, input, weight, bias, options, y_dtype=None):
    """`y_dtype`: None for input's."""
    try:
        key = (*_key(function, input, weight, bias, options), y_dtype)
        ready = _prepared.get(key)
    except (AttributeError, TypeError, RuntimeError):
        ready = None  # no dense tensor, or nothing that hashes: the checks say what is wrong
    if ready is None:
        tensors.norm_forward(function, input, weight, bias, quantizer=None, **options)
        takes(function, input=input, weight=weight, bias=bias)
        dense = _dense(input, weight, bias, None)
        if any(a is not b for a, b in zip((input, weight, bias), dense)):
            return _plain(function, *dense, options, y_dtype)
        ready = _prepared.keep(key, _prepare_plain(function, input, weight, bias, options, y_dtype))

    y = allocate(*ready.outputs[0], input.device)
    mu, rsigma = _statistics(function, ready.rows, input.device)

    if ready.launch is not None:
        ready.launch(input.data_ptr(), weight.data_ptr(), *_addresses(bias, y, mu, rsigma))
    return y, mu, rsigma


def _quantized(function, input, weight, bias, options, quantizer):
    try:
        key = (*_key(function, input, weight, bias, options), options_of(quantizer, input), _forced.get(),
               *_distances(quantizer, weight, bias))
        ready = _prepared.get(key)
    except (AttributeError, TypeError, RuntimeError):
        ready = None
    if ready is None:
        tensors.norm_forward(function, input, weight, bias, quantizer=quantizer, **options)
        path = path_of(function, quantizer)
        takes(function, input=input, weight=weight, bias=bias)
        within_extent(function, "input", input.shape)
        dense = _dense(input, weight, bias, quantizer)
        if any(a is not b for a, b in zip((input, weight, bias), dense)):
            return _quantized(function, *dense, options, quantizer)
        ready = _prepared.keep(key, _prepare(function, input, weight, bias, quantizer, options=options, path=path))
    if ready is _UNFUSED:
        return _unfused(function, input, weight, bias, quantizer, options)

    made = [None if each is None else allocate(*each, input.device) for each in ready.outputs]
    mu, rsigma = _statistics(function, ready.rows, input.device)

    pointers = ready.order(pointers_of(quantizer, made), *_addresses(input, weight, bias, mu, rsigma))
    if ready.first:
        ready.first(*pointers)
    ready.launch(*pointers)
    return assembled(quantizer, made, input), mu, rsigma


def _from_registers(of_quantizer, x, gamma, beta, mu, rsigma) -> tuple[int, ...]:
    """As norm_forward.cu and norm_shared.cu take pointers for FP8 and MXFP8."""
    scale, amax, scale_inv, data, scales, *_ = of_quantizer
    return scale, amax, scale_inv, scales, x, gamma, beta, data, mu, rsigma


def _by_rows(of_quantizer, x, gamma, beta, mu, rsigma) -> tuple[int, ...]:
    """As norm_current.cu does."""
    _, _, scale_inv, data, *_, workspace, _, _ = of_quantizer
    return scale_inv, workspace, x, gamma, beta, data, mu, rsigma


def _by_parts(of_quantizer, x, gamma, beta, mu, rsigma) -> tuple[int, ...]:
    """As norm_quantize.cu does."""
    return gamma, beta, mu, rsigma, x, *of_quantizer


def _unfused(function, input, weight, bias, quantizer, options):
    """Two launches. With delayed scaling y is float32 in between, so that its bytes are those of the other paths."""
    if not isinstance(quantizer, Float8Quantizer):
        y, *statistics = _plain(function, input, weight, bias, options)
        return quantize(y, quantizer), *statistics
    y, *statistics = _plain(function, input, weight, bias, options, torch.float32)
    return replace(quantize(y, quantizer), dtype=input.dtype), *statistics


def path_of(function: str, quantizer) -> Path:
    """The path that a call takes now. Errors: ValueError for a forced one that the quantizer makes impossible."""
    forced, _ = _forced.get()
    if forced is None:
        return plans_of_paths.choose(quantizer)
    if why := plans_of_paths.refusal(forced, quantizer):
        raise ValueError(f"{function}: cannot take the path {forced.name}: {why}")
    return forced


def plan_of(function, input, weight, bias, *, quantizer, chip: Chip, **options) -> Plan:
    """The plan of a call; of an unfused one that of its norm: quantize plans for itself. Of two launches the last."""
    tensors.norm_forward(function, input, weight, bias, quantizer=quantizer, **options)
    path, operands = path_of(function, quantizer), _dense(input, weight, bias, quantizer)
    if quantizer is None or path is Path.UNFUSED:
        y_dtype = torch.float32 if isinstance(quantizer, Float8Quantizer) else None
        return _plan_plain(function, *operands, options=options, chip=chip, y_dtype=y_dtype)[1]
    return _plan_fused(function, *operands, quantizer, options=options, chip=chip)[2][-1]


def _prepare_plain(function, input, weight, bias, options, y_dtype) -> _Ready:
    outputs = ((tuple(input.shape), y_dtype or input.dtype),)
    here = chip(input.device)
    problem, plan = _plan_plain(function, input, weight, bias, options=options, chip=here, y_dtype=y_dtype)
    if problem.rows == 0:
        return _Ready(None, outputs, 0)
    return _Ready(Launch(plan, input.device, 6, _scalars(problem, plan, input, options)), outputs, problem.rows)


def _prepare(function, input, weight, bias, quantizer, *, options, path) -> _Ready:
    if path is Path.UNFUSED:
        return _UNFUSED
    rows, here = input.shape[:-1].numel(), chip(input.device)
    problem, work, (*before, plan) = _plan_fused(function, input, weight, bias, quantizer, options=options, chip=here)
    workspace = ((plan.workspace_bytes // 4,), torch.float32) if plan.workspace_bytes else None
    outputs, norm = (*outputs_of(input, quantizer), workspace), _scalars(problem, plan, input, options)
    if work is None and plan.source != "norm_current.cu":
        return _Ready(Launch(plan, input.device, 10, norm), outputs, rows, _from_registers)
    if work is None:
        scalars = (*norm, numpy.int32(quantizer.force_pow_2_scales), numpy.float32(quantizer.amax_epsilon),
                   numpy.int32(plan.stages))
        return _Ready(Launch(plan, input.device, 8, scalars), outputs, rows, _by_rows)
    *_, row_threads, eps, inverse_cols = norm
    scalars = (*scalars_of(work, input, quantizer), eps, inverse_cols, row_threads)
    first = Launch(before[0], input.device, 17, scalars) if before else None
    return _Ready(Launch(plan, input.device, 17, scalars), outputs, rows, _by_parts, first)


def _plan_plain(function, input, weight, bias, *, options, chip: Chip, y_dtype) -> tuple[Problem, Plan]:
    output = None if y_dtype is None else f"Store<{type_of(y_dtype)}>"
    problem = forward_problem(function, input, weight, bias, options["zero_centered_gamma"], output)
    return problem, plans.norm_forward(problem, chip, options["sm_margin"])


def _plan_fused(function, input, weight, bias, quantizer, *, options, chip: Chip):
    """The problem, the work where two passes are needed (None where not), and the plans of the launches."""
    problem = forward_problem(function, input, weight, bias, options["zero_centered_gamma"])
    if not quantizer.columnwise and (plan := _plan_rowwise(problem, quantizer, options["sm_margin"], chip)):
        return problem, None, (plan,)
    work = plans_of_paths.of_norm(work_of(input, quantizer), problem.cols % 8 == 0 and on_16_bytes(input))
    asked = problem, work, chip, options["sm_margin"]
    if work.twice and _forced.get()[1]:
        return problem, work, plans_of_paths.in_two_launches(*asked)
    return problem, work, (plans_of_paths.slabs(*asked) or plans_of_paths.in_two_passes(*asked),)


def _plan_rowwise(problem: Problem, quantizer, sm_margin: int, chip: Chip) -> Plan | None:
    """Where each row is quantized by who normalizes it, all of it being on the chip."""
    cast = {Float8Quantizer: "ToFp8<{}>", MXFP8Quantizer: "ToMxfp8<{}, {}>"}.get(type(quantizer))
    code = CODES[quantizer.dtype]
    if cast:
        return plans_of_paths.from_registers(replace(problem, output=cast.format(code, problem.x)), chip, sm_margin)
    if isinstance(quantizer, Float8CurrentScalingQuantizer) and not _forced.get()[1]:
        return plans_of_paths.by_rows(problem, code, chip, sm_margin)
    return None


def _scalars(problem: Problem, plan: Plan, input: Tensor, options) -> tuple:
    return (
        numpy.int64(problem.rows), numpy.int64(pitch(input)), numpy.int32(problem.cols),
        numpy.int32(plan.row_threads), numpy.float32(options["eps"]), numpy.float32(1 / problem.cols),
    )


def _statistics(function: str, rows: int, device) -> tuple[Tensor | None, Tensor]:
    mu = allocate((rows,), torch.float32, device) if function == "layernorm_fwd" else None
    return mu, allocate((rows,), torch.float32, device)


def _key(function, input, weight, bias, options) -> tuple:
    eps, margin, centered = options["eps"], options["sm_margin"], options["zero_centered_gamma"]
    return (function, signature(input), signature(weight), bias if bias is None else signature(bias), eps, type(eps),
            margin, type(margin), centered, type(centered))


def _distances(quantizer, *others: Tensor | None) -> tuple:
    """How far the amax of delayed scaling lies from each tensor that shares its storage."""
    if not isinstance(quantizer, Float8Quantizer):
        return ()
    amax, storage = quantizer.amax.data_ptr(), quantizer.amax.untyped_storage().data_ptr()
    return tuple(amax - t.data_ptr() if t is not None and t.untyped_storage().data_ptr() == storage else None
                 for t in others)


def _addresses(*given: Tensor | None) -> list[int]:
    return [0 if t is None else t.data_ptr() for t in given]


def _dense(input: Tensor, weight: Tensor, bias: Tensor | None, quantizer) -> tuple[Tensor, Tensor, Tensor | None]:
    """The operands as kernels read them."""
    gains = alike(weight, bias)
    return regular(input), *(gains if quantizer is None else map(_on_16_bytes, gains))


def _on_16_bytes(t: Tensor | None) -> Tensor | None:
    """`t` itself, or a copy that begins at a multiple of 16 bytes."""
    return t if t is None or t.data_ptr() % 16 == 0 else t.clone()
