"""What the functions of matrix products, and the pointwise ones fused with them, accept."""

from torch import Tensor

from reference.arguments import (
    FLOATS, are_apart, are_tensors, is_apart_from_itself, is_dtype, is_flag, is_number, on_one_device, refuse
)
from reference.quantized import QuantizedTensor


def dense(operand):
    """A quantized operand in the dtype that it stands for; any other as it is."""
    return operand.dequantize() if isinstance(operand, QuantizedTensor) else operand


def linear_forward(function, input, weight, *, out_dtype=None):
    """Refuse what linear_fwd does not take: TypeError for types and dtypes, ValueError for the rest."""
    _operands(function, {"input": input, "weight": weight})
    if out_dtype is not None:
        is_dtype(function, "out_dtype", out_dtype, FLOATS)
    _is_matrix(function, weight)
    _has_inner(function, "input", input, "weight", weight.shape[1])


def linear_scale_add_forward(function, input, weight, residual, *, scale, in_place):
    """Refuse what linear_scale_add_fwd does not take: TypeError for types and dtypes, ValueError for the rest."""
    linear_forward(function, input, weight)
    is_scale(function, scale)
    is_flag(function, "in_place", in_place)
    operands = {"input": input, "weight": weight}
    _like(function, {"residual": residual}, "output", (*input.shape[:-1], weight.shape[0]), input)
    if in_place:
        _is_written(function, {"residual": residual}, operands)


def linear_backward(function, grad_output, input, weight, *, input_requires_grad, weight_requires_grad, grad_weight,
                    accumulate_into_grad_weight):
    """Refuse what linear_bwd does not take: TypeError for types and dtypes, ValueError for the rest.

    What no gradient that is asked for needs may be None: `input` without the weight's, `weight` without the input's.
    """
    is_flag(function, "input_requires_grad", input_requires_grad)
    is_flag(function, "weight_requires_grad", weight_requires_grad)
    is_flag(function, "accumulate_into_grad_weight", accumulate_into_grad_weight)
    optional = {} if input is None and not weight_requires_grad else {"input": input}
    optional |= {} if weight is None and not input_requires_grad else {"weight": weight}
    operands = {"grad_output": grad_output} | optional
    _operands(function, operands)
    if "weight" in operands:
        _is_matrix(function, weight)
        _has_inner(function, "grad_output", grad_output, "weight", weight.shape[0])
    if "input" in operands:
        _has_rows(function, grad_output, input)
        if "weight" in operands:
            _has_inner(function, "input", input, "weight", weight.shape[1])
    if accumulate_into_grad_weight and grad_weight is None:
        refuse(ValueError, function, "grad_weight is None, but accumulate_into_grad_weight needs a tensor to add to")
    if grad_weight is not None:
        _takes_gradient(function, grad_weight, operands)


def scaled(function, input, scale):
    """Refuse what constant_scale does not take: TypeError for types and dtypes, ValueError for the rest."""
    are_tensors(function, {"input": input}, FLOATS)
    is_scale(function, scale)


def added(function, input, other, *, out):
    """Refuse what add does not take: TypeError for types and dtypes, ValueError for the rest.

    `out` may be `input` or `other` itself, but nothing that shares only some of its memory.
    """
    are_tensors(function, {"input": input}, FLOATS)
    _like(function, {"other": other}, "input", input.shape, input)
    if out is not None:
        _like(function, {"out": out}, "input", input.shape, input)
        others = {name: t for name, t in (("input", input), ("other", other)) if not _is_same(out, t)}
        _is_written(function, {"out": out}, others)


def is_scale(function, scale):
    """TypeError unless the scale is a float or an int, ValueError unless it is finite in float32."""
    is_number(function, "scale", scale, signed=True)


def _operands(function, operands):
    """Dense tensors or quantized ones, of one dtype (that which a quantized one stands for) and on one device."""
    for name, operand in operands.items():
        if isinstance(operand, QuantizedTensor):
            operand.check(f"{function}: {name}", operand.dtype)
        else:
            are_tensors(function, {name: operand}, FLOATS)
            if operand.dim() == 0:
                refuse(ValueError, function, f"{name} has no dimensions, but needs at least one: (..., columns)")
    (first, model), *rest = operands.items()
    for name, operand in rest:
        if operand.dtype != model.dtype:
            refuse(TypeError, function,
                   f"{name} is {operand.dtype}, but must have the dtype of {first}, {model.dtype}")
    on_one_device(function, operands)


def _is_matrix(function, weight):
    if len(weight.shape) != 2:
        refuse(ValueError, function, f"weight has shape {tuple(weight.shape)}, but must have two dimensions: (N, K)")


def _has_inner(function, name, tensor, other, size):
    """The last dimension of `tensor` is `size`, as `other` has it."""
    if tensor.shape[-1] != size:
        refuse(ValueError, function, f"{name} has shape {tuple(tensor.shape)}, hence rows of {tensor.shape[-1]}, but "
                                     f"{other} needs rows of {size}")


def _has_rows(function, grad_output, input):
    if grad_output.shape[:-1] != input.shape[:-1]:
        refuse(ValueError, function, f"input has shape {tuple(input.shape)}, but must have grad_output's but for the "
                                     f"last dimension, {(*grad_output.shape[:-1], '...')}")


def _takes_gradient(function, grad_weight, operands):
    """grad_weight: float32 or of the weight's dtype, of the weight's shape, apart from the operands and from itself."""
    model = next(iter(operands.values()))
    are_tensors(function, {"grad_weight": grad_weight}, FLOATS)
    is_dtype(function, "grad_weight", grad_weight.dtype, tuple(dict.fromkeys((model.dtype, FLOATS[-1]))))
    on_one_device(function, {"grad_output": model, "grad_weight": grad_weight})
    if "weight" in operands:
        shape = tuple(operands["weight"].shape)
    else:
        shape = (model.shape[-1], operands["input"].shape[-1]) if "input" in operands else tuple(grad_weight.shape)
    if tuple(grad_weight.shape) != shape:
        refuse(ValueError, function,
               f"grad_weight has shape {tuple(grad_weight.shape)}, but must have weight's, {shape}")
    _is_written(function, {"grad_weight": grad_weight}, operands)


def _like(function, given, model_name, shape, model):
    """The tensor of the dict `given` has the shape, and the dtype and device of `model`."""
    are_tensors(function, given, FLOATS)
    ((name, tensor),) = given.items()
    if tensor.dtype != model.dtype:
        refuse(TypeError, function, f"{name} is {tensor.dtype}, but must have the dtype of input, {model.dtype}")
    on_one_device(function, {"input": model} | given)
    if tensor.shape != shape:
        refuse(ValueError, function,
               f"{name} has shape {tuple(tensor.shape)}, but must have that of {model_name}, {tuple(shape)}")


def _is_written(function, written, operands):
    """The one tensor of the dict `written` shares memory with no operand, nor within itself."""
    ((name, tensor),) = written.items()
    is_apart_from_itself(function, name, tensor)
    parts = {}
    for other, operand in operands.items():
        if isinstance(operand, QuantizedTensor):
            parts |= {f"{other}.{field}": value for field, value in operand.tensors().items()}
        else:
            parts[other] = operand
    are_apart(function, written, parts)


def _is_same(a: Tensor, b: Tensor) -> bool:
    """Whether both are the same elements in the same order."""
    return a is b or (not a.is_meta and a.data_ptr() == b.data_ptr() and a.stride() == b.stride())
