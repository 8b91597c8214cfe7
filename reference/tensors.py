"""Tensors as arguments: what each function accepts.

An error names function and argument, what was given and what is allowed.
"""

import torch
from torch import Tensor

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
STATISTICS = (torch.float32,)


def norm_forward(function, input, weight, bias, *, eps, quantizer, sm_margin, zero_centered_gamma):
    """Refuse what a forward norm does not take: TypeError for types and dtypes, ValueError for the rest."""
    vectors = {"weight": weight} | ({} if bias is None else {"bias": bias})
    _tensors(function, {"input": input} | vectors, FLOATS)
    _one_device(function, {"input": input} | vectors)
    if quantizer is not None:
        _refuse(TypeError, function, f"quantizer is {_kind(quantizer)}, but only None is supported: "
                                     "this version has no quantized output")
    _number(function, eps)
    _options(function, sm_margin, zero_centered_gamma)
    _hidden(function, "input", input, vectors)


def norm_backward(function, x, gamma, *, like_x, statistics, sm_margin, zero_centered_gamma):
    """Refuse what a backward norm does not take: TypeError for types and dtypes, ValueError for the rest.

    `like_x` names the tensors that must have x's shape, `statistics` those that hold one float32 per row.
    """
    _tensors(function, {"x": x, "gamma": gamma} | like_x, FLOATS)
    _tensors(function, statistics, STATISTICS)
    _one_device(function, {"x": x, "gamma": gamma} | like_x | statistics)
    _options(function, sm_margin, zero_centered_gamma)
    _hidden(function, "x", x, {"gamma": gamma})
    for name, tensor in like_x.items():
        if tensor.shape != x.shape:
            _refuse(ValueError, function,
                    f"{name} has shape {tuple(tensor.shape)}, but must have x's, {tuple(x.shape)}")
    rows = x.shape[:-1].numel()
    for name, tensor in statistics.items():
        if tensor.numel() != rows:
            _refuse(ValueError, function, f"{name} has {tensor.numel()} elements, but x has {rows} rows")


def _refuse(error, function, text):
    raise error(f"{function}: {text}")


def _kind(value):
    return f"a {type(value).__name__}"


def _tensors(function, tensors, dtypes):
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            _refuse(TypeError, function, f"{name} is {_kind(tensor)}, but must be a torch.Tensor")
        if tensor.layout != torch.strided or tensor.is_nested:
            layout = "nested" if tensor.is_nested else tensor.layout
            _refuse(TypeError, function, f"{name} is a {layout} tensor, but must be a dense, torch.strided one")
        if tensor.dtype not in dtypes:
            allowed = " or ".join(map(str, dtypes))
            _refuse(TypeError, function, f"{name} is {tensor.dtype}, but must be {allowed}")


def _one_device(function, tensors):
    (first, model), *rest = tensors.items()
    for name, tensor in rest:
        if tensor.device != model.device:
            _refuse(ValueError, function,
                    f"{name} is on {tensor.device}, but must be on {first}'s device, {model.device}")


def _hidden(function, name, tensor, vectors):
    """`tensor` has rows of at least one element, and each vector has one element for each of them."""
    if tensor.dim() == 0:
        _refuse(ValueError, function, f"{name} has no dimensions, but needs at least one: (..., H)")
    hidden = tensor.shape[-1]
    if hidden == 0:
        _refuse(ValueError, function, f"{name} has rows of 0 elements, but needs at least 1")
    for vector, values in vectors.items():
        if values.numel() != hidden:
            _refuse(ValueError, function,
                    f"{vector} has {values.numel()} elements, but {name} has rows of {hidden}")


def _number(function, eps):
    if isinstance(eps, bool) or not isinstance(eps, (int, float)):
        _refuse(TypeError, function, f"eps is {_kind(eps)}, but must be a float")
    if not 0 <= eps <= torch.finfo(torch.float32).max:
        _refuse(ValueError, function, f"eps is {eps}, but must be finite in float32 and at least 0")


def _options(function, sm_margin, zero_centered_gamma):
    if isinstance(sm_margin, bool) or not isinstance(sm_margin, int):
        _refuse(TypeError, function, f"sm_margin is {_kind(sm_margin)}, but must be an int")
    if sm_margin < 0:
        _refuse(ValueError, function, f"sm_margin is {sm_margin}, but must be at least 0")
    if not isinstance(zero_centered_gamma, bool):
        _refuse(TypeError, function,
                f"zero_centered_gamma is {_kind(zero_centered_gamma)}, but must be a bool")
