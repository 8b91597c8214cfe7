"""What memory a case needs while it is checked and timed, from its shape alone."""

from collections.abc import Iterable

from harness.cases import DTYPES, PIPELINES, Case, family_of

ROTATED_BYTES = 3 * (64 << 20)
"""What a timed function rotates over, at least: three times the L2 cache of an H200, see harness.rotation."""

COPIED_BYTES = 256 << 20
"""What the copy rotates over, at least: see harness.implementations."""

REFERENCE_BYTES = 10
"""For each value that goes in or out, of the float32 temporaries of a reference: 3 to 10 were counted."""

ORACLE_BYTES, STRETCH_BYTES = 38, 2_000_000_000
"""For each value, of the float64 temporaries of the oracle: 17 to 38 were counted; and what a stretch holds at most."""


def needed_bytes(case: Case, implementations: Iterable[str], device: str = "cuda", timed: bool = True) -> int:
    """About what the case holds at its peak: while parity is checked, or, if more, while it is timed.

    Parity: inputs and a copy of them; outputs of the reference and of two poisoned runs; the temporaries of reference
    or oracle. Timing: inputs and, of each implementation, outputs for every turn of the rotation; the reference's
    temporaries; the copy's buffers. On a GPU all of that is alive, in the graphs' pools, while what was timed is
    confirmed: with fresh inputs, copies of outputs, and once more the reference's outputs and all temporaries.
    """
    work, names = family_of(case.function).work(case), tuple(implementations)
    in_bytes = case.recipe != "none" and case.function not in PIPELINES
    values = work.bytes // (1 if in_bytes else DTYPES[case.dtype].itemsize)
    temporaries = REFERENCE_BYTES * values
    oracle = min(ORACLE_BYTES * values, max(STRETCH_BYTES, temporaries))
    judging = work.read_bytes + 3 * work.written_bytes + max(temporaries, oracle)
    parity = work.read_bytes + judging
    if not timed:
        return parity
    on_gpu = device == "cuda"
    turns = 1 + ROTATED_BYTES // max(work.bytes, 1) if on_gpu else 1
    outputs = len([name for name in names if name != "copy"])
    timing = min(turns, 64) * (work.read_bytes + outputs * work.written_bytes) + temporaries
    if "copy" in names:
        timing += work.bytes + (COPIED_BYTES if on_gpu else 0)
    return max(parity, timing + (judging if on_gpu else 0))
