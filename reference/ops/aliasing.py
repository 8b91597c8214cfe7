"""What must hold before an extra input is written."""

from reference.arguments import are_apart, is_apart_from_itself


def check_in_place(plan, input, parameters, extra_inputs):
    """Refuse to write an extra input that shares memory with the pipeline's other tensors or within itself (ValueError),
    or that autograd would not let be written (RuntimeError, as PyTorch has it)."""
    for _, place in plan.written:
        target = extra_inputs[place]
        if plan.requires:
            _may_be_written(target)
        begin, end, plain = target.data_ptr(), target.data_ptr() + target.nbytes, target.is_contiguous()
        for other in (input, *parameters, *extra_inputs[:place], *extra_inputs[place + 1:]):
            first = other.data_ptr()
            plain = plain and other.is_contiguous() and (end <= first or first + other.nbytes <= begin)
        if not plain:
            is_apart_from_itself("AddExtraInput", "the extra input", target)
            others = {"the input": input} | {f"parameter {index}": each for index, each in enumerate(parameters)}
            others |= {f"extra input {index}": each for index, each in enumerate(extra_inputs) if index != place}
            are_apart("AddExtraInput", {"the extra input": target}, others)


def _may_be_written(target):
    if target.requires_grad and target.is_leaf:
        raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
    base = target._base
    if base is not None and base.requires_grad and base.is_leaf:
        raise RuntimeError("a view of a leaf Variable that requires grad is being used in an in-place operation.")
