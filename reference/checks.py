"""What each function accepts. Every error names the function, the argument, what was given and what is allowed."""

import math

import torch
from torch import Tensor

FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def norm_forward(function, input, weight, bias, *, eps, quantizer, sm_margin, zero_centered_gamma):
    """Refuse the arguments that a forward norm does not take: TypeError for types and dtypes, else ValueError."""
    _floats(function, {"input": input, "weight": weight} | ({} if bias is None else {"bias": bias}))
    if quantizer is not None:
        _refuse(TypeError, function, f"quantizer is {_kind(quantizer)}, but only None is supported: "
                                     "this version has no quantized output")
    _number(function, eps)
    _options(function, sm_margin, zero_centered_gamma)
    _hidden(function, "input", input, {"weight": weight})
    if bias is not None:
        _hidden(function, "input", input, {"bias": bias})
        if bias.dtype != weight.dtype:
            _refuse(TypeError, function, f"bias is {bias.dtype}, but must have weight's dtype, {weight.dtype}")


def norm_backward(function, x, gamma, *, like_x, statistics, sm_margin, zero_centered_gamma):
    """Refuse the arguments that a backward norm does not take: TypeError for types and dtypes, else ValueError.

    `like_x` names the tensors that must have x's shape, `statistics` those that hold one float32 per row.
    """
    _floats(function, {"x": x, "gamma": gamma} | like_x | statistics)
    _options(function, sm_margin, zero_centered_gamma)
    _hidden(function, "x", x, {"gamma": gamma})
    for name, tensor in like_x.items():
        if tensor.shape != x.shape:
            _refuse(ValueError, function, f"{name} has shape {tuple(tensor.shape)}, but must have x's, {tuple(x.shape)}")
    if "add" in like_x and like_x["add"].dtype != x.dtype:
        _refuse(TypeError, function, f"add is {like_x['add'].dtype}, but must have x's dtype, {x.dtype}")
    rows = x.shape[:-1].numel()
    for name, tensor in statistics.items():
        if tensor.dtype != torch.float32:
            _refuse(TypeError, function, f"{name} is {tensor.dtype}, but must be torch.float32")
        if tensor.numel() != rows:
            _refuse(ValueError, function, f"{name} has {tensor.numel()} elements, but x has {rows} rows")


def _refuse(error, function, text):
    raise error(f"{function}: {text}")


def _kind(value):
    return f"a {type(value).__name__}"


def _floats(function, tensors):
    """Each is a tensor of a supported dtype, all on one device."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            _refuse(TypeError, function, f"{name} is {_kind(tensor)}, but must be a torch.Tensor")
        if tensor.dtype not in FLOATS:
            _refuse(TypeError, function, f"{name} is {tensor.dtype}, but must be torch.bfloat16, float16 or float32")
    (first, model), *rest = tensors.items()
    for name, tensor in rest:
        if tensor.device != model.device:
            _refuse(ValueError, function, f"{name} is on {tensor.device}, but must be on {first}'s device, {model.device}")


def _hidden(function, name, tensor, vectors):
    """`tensor` has rows of at least one element, and each vector has one element for each of them."""
    if tensor.dim() == 0:
        _refuse(ValueError, function, f"{name} has no dimensions, but needs at least one: (..., H)")
    hidden = tensor.shape[-1]
    if hidden == 0:
        _refuse(ValueError, function, f"{name} has rows of 0 elements, but needs at least 1")
    for vector, values in vectors.items():
        if values.numel() != hidden:
            _refuse(ValueError, function, f"{vector} has {values.numel()} elements, but {name} has rows of {hidden}")


def _number(function, eps):
    if isinstance(eps, bool) or not isinstance(eps, (int, float)):
        _refuse(TypeError, function, f"eps is {_kind(eps)}, but must be a float")
    if not 0 <= eps < math.inf:
        _refuse(ValueError, function, f"eps is {eps}, but must be finite and at least 0")


def _options(function, sm_margin, zero_centered_gamma):
    if isinstance(sm_margin, bool) or not isinstance(sm_margin, int):
        _refuse(TypeError, function, f"sm_margin is {_kind(sm_margin)}, but must be an int")
    if sm_margin < 0:
        _refuse(ValueError, function, f"sm_margin is {sm_margin}, but must be at least 0")
    if not isinstance(zero_centered_gamma, bool):
        _refuse(TypeError, function, f"zero_centered_gamma is {_kind(zero_centered_gamma)}, but must be a bool")
