"""What must hold before an extra input is written."""

from torch._C._autograd import CreationMeta, _get_creation_meta

from reference.arguments import are_apart, are_tensors, is_apart_from_itself


def check_in_place(plan, tensors):
    """Refuse to write an extra input that shares memory with the pipeline's other tensors or within itself
    (ValueError), or that autograd would not let be written (RuntimeError, as PyTorch has it); and what is not dense
    (TypeError). Where the function that writes refuses some of it, that is left to the function."""
    for place, unseen in plan.checked:
        target = tensors[place]
        if plan.requires and (plan.requires[place] and target.is_leaf or target._is_view()):
            _may_be_written(plan, target)
        if unseen is None:
            continue
        try:
            begin, plain = target.data_ptr(), target.is_contiguous()
            end = begin + target.nbytes
            for other in unseen(tensors):
                first = other.data_ptr()  # nothing of a tensor lies before its first element
                if first < end and not (other.is_contiguous() and first + other.nbytes <= begin):
                    plain = False
        except RuntimeError:
            plain = False  # one of them is no dense tensor
        if not plain:
            _refuse_shared(plan, target, place, tensors)


def refuse_shared(plan, tensors):
    """Refuse the same, whoever has refused it already, in the words of the pipeline."""
    for _, place in plan.written:
        _refuse_shared(plan, tensors[place], place, tensors)


def _refuse_shared(plan, target, place, tensors):
    """Look at every element, and name what overlaps."""
    names = [*[f"extra input {index}" for index in range(plan.input)], "the input",
             *[f"parameter {index}" for index in range(len(plan.parameters))]]
    for name, each in zip(names, tensors):
        are_tensors("AddExtraInput", {name: each}, (each.dtype,))
    is_apart_from_itself("AddExtraInput", "the extra input", target)
    others = {name: each for index, (name, each) in enumerate(zip(names, tensors)) if index != place}
    are_apart("AddExtraInput", {"the extra input": target}, others)


def _may_be_written(plan, target):
    if target.requires_grad and target.is_leaf:
        raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
    base = target._base
    if base is not None and base.requires_grad and base.is_leaf:
        raise RuntimeError("a view of a leaf Variable that requires grad is being used in an in-place operation.")
    if target._is_view() and any(plan.requires) and _get_creation_meta(target) != CreationMeta.DEFAULT:
        raise RuntimeError("AddExtraInput: the extra input is a view that autograd lets nobody write: from a function "
                           "that gives several or is one's own, or made where no gradients are recorded")
    if target._is_view() and not plan.may_be_view:
        raise RuntimeError("AddExtraInput: the extra input is a view, which autograd lets be written only where it "
                           "comes first and becomes the one output of the pipeline")
