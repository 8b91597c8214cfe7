"""The audit of a case: what its model says is read, written and computed, against the tensors themselves."""

from typing import Any

from torch import Tensor

from harness.cases import Call, Case, family_of
from harness.cases.base import tensors_in


def audit(case: Case, call: Call, results: Any) -> tuple[dict[str, int], str]:
    """({read_bytes, written_bytes} counted from the tensors, "" or one sentence why the case's model is wrong).

    Every tensor that goes in is read once and every one that comes out written once, wherever it stands: inside a
    tuple, or a field of a dataclass. What is updated in place counts both ways. Flops are the formula's, at the sizes
    of the tensors.
    """
    family = family_of(case.function)
    model = family.work(case)
    written = moved_bytes((results, family.in_place(call)))
    counted = {"read_bytes": moved_bytes(call.tensors()), "written_bytes": written}
    claims = (
        ("bytes read", model.read_bytes, counted["read_bytes"]),
        ("bytes written", model.written_bytes, counted["written_bytes"]),
        ("flops", model.flops, family.arithmetic(call)),
    )
    wrong = [f"{claimed:,} {what}, its tensors {found:,}" for what, claimed, found in claims if claimed != found]
    return counted, f"the model of the case says {'; '.join(wrong)}" if wrong else ""


def moved_bytes(values: Any) -> int:
    """Bytes of all tensors in `values`: a tensor that is there twice, and an element that is repeated with stride 0,
    count once; views that overlap otherwise count each."""
    distinct = {
        (each.untyped_storage()._cdata, each.storage_offset(), each.shape, each.stride(), each.dtype): each
        for each in tensors_in(values)
    }
    return sum(map(_bytes, distinct.values()))


def _bytes(tensor: Tensor) -> int:
    size = 1
    for length, stride in zip(tensor.shape, tensor.stride()):
        size *= length if stride or not length else 1
    return size * tensor.element_size()
