"""What contexts hold between forward and backward, as the flat list of tensors that autograd keeps."""

import functools
from types import NoneType
from typing import NamedTuple

from torch import Tensor, dtype
from torch.nn import Parameter

from reference.arguments import refuse
from reference.quantized import QuantizedTensor


class _Quantized(NamedTuple):
    """The place of the tensors of one quantized tensor, and the rest of it."""

    kind: type
    names: tuple
    values: dict


_TENSOR = object()  # the place of one tensor
_DENSE = {Tensor, Parameter, NoneType}  # isinstance takes as long as the rest of `flatten`


def flatten(contexts):
    """(tensors, forms) of what the contexts hold, and nothing afterwards. A form is None, or (type, places, number of
    tensors), with None for the type where places are what was saved, and None for places where all of it were tensors
    or None."""
    tensors, forms = [], []
    for ctx in contexts:
        saved, ctx.saved = ctx.saved, None
        if saved is None:
            forms.append(None)
        elif _is_plain(type(saved)):
            forms.append((None, saved, 0))
        else:
            for value in saved:
                if type(value) not in _DENSE and not isinstance(value, Tensor):
                    forms.append(_form(saved, tensors))
                    break
            else:
                tensors += saved
                forms.append((type(saved), None, len(saved)))
    return tensors, forms


def restore(contexts, tensors, forms):
    """Give the contexts back what `flatten` took from them."""
    taken = 0
    for ctx, form in zip(contexts, forms):
        if form is None:
            continue
        kind, places, count = form
        if kind is None:
            ctx.saved = places
            continue
        values = tensors[taken:taken + count]
        taken += count
        if places is not None:
            given = iter(values)
            values = [_fill(place, given) for place in places]
        ctx.saved = tuple.__new__(kind, values)


def _form(saved, tensors):
    """The form of what is not tensors alone, whose tensors go to `tensors`."""
    before = len(tensors)
    places = [_emptied(value, tensors) for value in saved]
    count = len(tensors) - before
    return (type(saved), places, count) if count else (None, saved, 0)


@functools.cache
def _is_plain(kind):
    """Whether all fields of a named tuple are declared as numbers or dtypes. TypeError for what is no tuple."""
    if not issubclass(kind, tuple):
        refuse(TypeError, "OperationContext", f"saved is a {kind.__name__}, but must be a tuple or None")
    fields = getattr(kind, "__annotations__", {}).values()
    return bool(fields) and all(field in (bool, int, float, dtype) for field in fields)


def _emptied(value, tensors):
    """The place of a value whose tensors go to `tensors`."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return _TENSOR
    if isinstance(value, QuantizedTensor):
        held = value.tensors()
        tensors += held.values()
        return _Quantized(type(value), tuple(held), {n: each for n, each in vars(value).items() if n not in held})
    if isinstance(value, (dict, list, set, tuple)):
        _holds_no_tensor(value)
    return value


def _holds_no_tensor(values):
    """TypeError for a tensor further inside, where autograd would not see that it is written."""
    for each in values.values() if isinstance(values, dict) else values:
        if isinstance(each, (Tensor, QuantizedTensor)):
            refuse(TypeError, "OperationContext", f"saved has a {type(values).__name__} of tensors, but must have "
                                                  "each by itself")
        if isinstance(each, (dict, list, set, tuple)):
            _holds_no_tensor(each)


def _fill(place, given):
    if place is _TENSOR:
        return next(given)
    if type(place) is _Quantized:
        return place.kind(**{name: next(given) for name in place.names}, **place.values)
    return place


def oriented(tensor, orientation):
    """A quantized tensor with the data of one orientation, "rowwise" or "columnwise", alone, where it has it."""
    other = {"rowwise": "columnwise", "columnwise": "rowwise"}[orientation]
    if getattr(tensor, f"{orientation}_data") is None or getattr(tensor, f"{other}_data") is None:
        return tensor
    kept = {name: None if name.startswith(other) else value for name, value in vars(tensor).items()}
    return type(tensor)(**kept)


def has(tensor, quantizer):
    """Whether a quantized tensor has the orientations that the quantizer makes."""
    return not ((quantizer.rowwise and tensor.rowwise_data is None)
                or (quantizer.columnwise and tensor.columnwise_data is None))


def dense(tensor, kernels):
    """A quantized tensor in the dtype that it stands for; any other as it is."""
    return kernels.dequantize(tensor, tensor.dtype) if isinstance(tensor, QuantizedTensor) else tensor
