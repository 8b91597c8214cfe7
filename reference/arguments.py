"""Checks of arguments that several functions share.

An error names function and argument, what was given and what is allowed.
"""

import math

import torch
from torch import Tensor, distributed

FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def refuse(error, function, text):
    """Raise `error`, with the name of the function in front of the text."""
    raise error(f"{function}: {text}")


def kind(value):
    """What a value of a wrong type is called in a message."""
    return f"a {type(value).__name__}"


def is_group(function, name, value):
    """ValueError unless the value is None or a process group that this rank is in."""
    if value is None or distributed.is_available() and isinstance(value, distributed.ProcessGroup):
        return
    foreign = distributed.is_available() and value is distributed.GroupMember.NON_GROUP_MEMBER
    allowed = "a group that this rank is in" if foreign else "a ProcessGroup"
    refuse(ValueError, function, f"{name} is {value!r}, but must be {allowed} or None")


def are_tensors(function, tensors, dtypes):
    """TypeError unless each value of the dict is a dense tensor of one of the dtypes."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            refuse(TypeError, function, f"{name} is {kind(tensor)}, but must be a torch.Tensor")
        if tensor.layout != torch.strided or tensor.is_nested:
            layout = "nested" if tensor.is_nested else tensor.layout
            refuse(TypeError, function, f"{name} is a {layout} tensor, but must be a dense, torch.strided one")
        is_dtype(function, name, tensor.dtype, dtypes)


def is_dtype(function, name, dtype, dtypes):
    """TypeError unless the dtype is one of the dtypes."""
    if not isinstance(dtype, torch.dtype):
        refuse(TypeError, function, f"{name} is {kind(dtype)}, but must be a torch.dtype")
    if dtype not in dtypes:
        refuse(TypeError, function, f"{name} is {dtype}, but must be {' or '.join(map(str, dtypes))}")


def on_one_device(function, tensors):
    """ValueError unless the tensors of the dict are on the device of the first."""
    (first, model), *rest = tensors.items()
    for name, tensor in rest:
        if tensor.device != model.device:
            refuse(ValueError, function,
                   f"{name} is on {tensor.device}, but must be on {first}'s device, {model.device}")


def are_apart(function, written, others):
    """ValueError where the one tensor of the dict `written` shares memory with a tensor of `others`.

    Tensors without memory, on the device "meta" or while `torch` compiles, are apart.
    """
    ((name, target),) = written.items()
    if target.is_meta or torch.compiler.is_compiling():
        return
    begin, end = _extent(target)
    for other, tensor in others.items():
        first, last = _extent(tensor)
        if begin < last and first < end and not _interleave(target, tensor):
            refuse(ValueError, function, f"{name}, which is written, overlaps {other} in memory, but must not")


def is_apart_from_itself(function, name, tensor):
    """ValueError where two elements of a tensor that is written share memory, or may: an expanded one."""
    if torch.compiler.is_compiling():
        return
    reach = 0
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size > 1):
        if stride <= reach and tensor.numel():
            refuse(ValueError, function, f"{name}, which is written, overlaps itself in memory: it has shape "
                                         f"{tuple(tensor.shape)} and strides {tensor.stride()}")
        reach += stride * (size - 1)


def _interleave(a, b):
    """Whether the runs of a lie between those of b: columns of one buffer, for instance."""
    (run, pitch), (other_run, other_pitch) = _runs(a), _runs(b)
    pitch = math.gcd(pitch, other_pitch)
    distance = (b.data_ptr() - a.data_ptr()) % pitch if pitch else 0
    return run <= distance and distance + other_run <= pitch


def _runs(tensor):
    """Bytes of the runs without a gap that a tensor is made of, and the unit of the distances between them."""
    size_bytes = run = tensor.element_size()
    pitch = 0
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size > 1):
        if stride * size_bytes <= run:
            run += stride * size_bytes * (size - 1)
        else:
            pitch = math.gcd(pitch, stride * size_bytes)
    return run, pitch


def _extent(tensor):
    """Addresses of the first byte and of the one behind the last."""
    first = tensor.data_ptr()
    if not tensor.numel():
        return first, first
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return first, first + (last + 1) * tensor.element_size()


def is_number(function, name, value, *, signed=False):
    """TypeError unless the value is a float or an int, ValueError unless float32 holds it and, if not `signed`, it is
    at least 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        refuse(TypeError, function, f"{name} is {kind(value)}, but must be a float")
    largest = torch.finfo(torch.float32).max
    if not (-largest if signed else 0) <= value <= largest:
        limit = "" if signed else " and at least 0"
        refuse(ValueError, function, f"{name} is {value}, but must be finite in float32{limit}")


def is_integer(function, name, value, *, least=0, below=None):
    """TypeError unless the value is an int, ValueError unless it is at least `least`, and below `below`."""
    if isinstance(value, bool) or not isinstance(value, int):
        refuse(TypeError, function, f"{name} is {kind(value)}, but must be an int")
    if value < least or (below is not None and value >= below):
        limit = "" if below is None else f" and below {below}"
        refuse(ValueError, function, f"{name} is {value}, but must be at least {least}{limit}")


def is_flag(function, name, value):
    """TypeError unless the value is True or False."""
    if not isinstance(value, bool):
        refuse(TypeError, function, f"{name} is {kind(value)}, but must be a bool")
