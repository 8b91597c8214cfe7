"""Every specialization of the norms that the sweeps ask for compiles for an H200, keeps to registers, and fits; those
of quantization, whose tests are their own, are few."""

import functools
import re
import subprocess
from itertools import product

import pytest
from cuda.pathfinder import find_nvidia_binary_utility

from harness import compile_report
from harness.cases import NORMS
from harness.sweeps import sweep
from optimized import jit
from optimized.norm_quantize_plan import SLAB_STATIC_BYTES, slabs
from optimized.plan import H200, STATIC_SHARED_BYTES, Chip, Problem
from optimized.quantize_plan import Work

SM_80 = Chip("sm_80", 108, 166_912)
MOST, MOST_OF_QUANTIZATION, MOST_OF_QUANTIZED_NORMS = 600, 300, 300
STATIC_SHARED_ALONE_BYTES = 24 << 10  # of norm_quantize.cu, which has no other: three CTAs fit on the smallest SM
CTA_BYTES = 1024  # of shared memory that each CTA costs besides
REGISTERS = 65_536  # of an SM, given to warps in units of 8 a thread
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)")


@pytest.fixture(scope="module")
def planned():
    """Request -> its plans, over every norm of every sweep."""
    return plans_by_request(norms("all"), H200)


def norms(name):
    return [case for case in sweep(name) if case.function in NORMS and case.recipe == "none"]


def quantized_norms(name):
    return [case for case in sweep(name) if case.function in NORMS and case.recipe != "none"]


def plans_by_request(cases, chip):
    (found, refused), by_request = compile_report.plans(cases, chip), {}
    assert refused == {}
    for plan in found.values():
        by_request.setdefault(compile_report.request(plan), []).append(plan)
    return by_request


def complaints(plans, binary, chip):
    """What is wrong with a specialization, in words."""
    block, dynamic = max(plan.block for plan in plans), max(plan.shared_bytes for plan in plans)
    registers = -(-binary.registers // 8) * 8 * block
    if binary.spill_bytes or binary.stack_bytes:
        yield f"{binary.spill_bytes} bytes of spills, {binary.stack_bytes} of stack"
    if not 0 < registers <= REGISTERS:
        yield f"{block} threads of {binary.registers} registers do not fit on an SM"
    most = STATIC_SHARED_ALONE_BYTES if plans[0].source == "norm_quantize.cu" and not dynamic else STATIC_SHARED_BYTES
    if plans[0].source == "norm_slab.cu":
        most = SLAB_STATIC_BYTES[4 if ", f32, " in plans[0].kernel else 2] - CTA_BYTES
    if binary.shared_bytes > most:
        yield f"{binary.shared_bytes} bytes of static shared memory; plans count with {most}"
    if binary.shared_bytes + dynamic > chip.shared_bytes:
        yield f"{binary.shared_bytes} + {dynamic} bytes of shared memory"


def assert_compiles(by_request, chip):
    built = jit.build(by_request, chip.arch)
    wrong = [f"{kernel}: {complaint}" for (source, kernel), binary in built.items()
             for complaint in complaints(by_request[source, kernel], binary, chip)]
    assert not wrong, "\n".join(wrong)


def test_there_are_not_too_many(planned):
    assert 0 < len(planned) <= MOST


@pytest.mark.parametrize("chip", [H200, SM_80], ids=lambda chip: chip.arch)
def test_quantization_asks_for_few(chip):
    asked = [case for case in sweep("all") if case.function not in NORMS]
    assert 0 < len(plans_by_request(asked, chip)) <= MOST_OF_QUANTIZATION


@pytest.mark.parametrize("chip", [H200, SM_80], ids=lambda chip: chip.arch)
def test_quantized_norms_ask_for_few(chip):
    assert 0 < len(plans_by_request(quantized_norms("all"), chip)) <= MOST_OF_QUANTIZED_NORMS


@pytest.mark.parametrize("share", range(4))
def test_quantized_norms_compile_without_spills(share):
    asked = plans_by_request(quantized_norms("all"), H200)
    assert_compiles({request: asked[request] for request in sorted(asked)[share::4]}, H200)


def test_some_quantized_norms_compile_without_spills_for_sm_80():
    assert_compiles(plans_by_request(quantized_norms("edge")[::12], SM_80), SM_80)


@pytest.mark.parametrize("x, widest", (("bf16", 40_960), ("f32", 20_480)))
def test_slabs_compile_without_spills(x, widest):
    """Of CTAs that share an SM and of those that do not: what the sweeps do not ask for, too."""
    asked = {}
    for norm, scheme, cols in product(("RmsNorm", "LayerNorm"), (("Mxfp8", "E4M3"), ("Fp8", "E5M2", "Delayed")),
                                      (1024, widest)):
        work = Work(scheme, x, 64, cols, tiles=True, columns=True)
        plan = slabs(Problem(norm, 64, cols, x, "f32", zero_centered=True), work, H200)
        asked[plan.source, plan.kernel] = [plan]
    assert len({plan.block for plan, in asked.values()}) == 2 and len(asked) == 8
    assert_compiles(asked, H200)


def test_all_compile_without_spills(planned):
    assert_compiles(planned, H200)


def test_some_compile_without_spills_for_sm_80():
    cases = [*norms("smoke"), *norms("edge")[::20]]
    assert_compiles(plans_by_request(cases, SM_80), SM_80)


def instructions(tool, binary, folder):
    """The opcodes of one kernel's machine code."""
    return set(INSTRUCTION.findall(machine_code(tool, binary, folder)))


def machine_code(tool, binary, folder):
    """Of one kernel, as text."""
    return sections(tool, binary.image, folder)[binary.symbol]


@functools.lru_cache(maxsize=32)
def sections(tool, image, folder):
    """Machine code of each kernel in `image`, which may have several."""
    file = folder / "kernel.cubin"
    file.write_bytes(image)
    shown = subprocess.run([tool, "-ndf", "-c", str(file)], capture_output=True, text=True, check=True)
    return {part.split(",", 1)[0]: part for part in shown.stdout.split(".section\t.text.")[1:]}


def test_machine_code_is_as_meant(planned, tmp_path):
    """Of one kernel of each kind: local memory is not touched; rings and rows in shared memory, and they alone, use the
    copy engine; clusters, and they alone, store into each other's shared memory."""
    tool = find_nvidia_binary_utility("nvdisasm")
    if tool is None:
        pytest.skip("nvdisasm is not installed (pip install nvidia-cuda-nvdisasm)")
    kinds = {}
    for request, (plan, *_) in planned.items():
        kinds.setdefault((plan.source, plan.variant, "LayerNorm" in plan.kernel), request)
    assert len(kinds) >= 12
    binaries = jit.build(kinds.values(), H200.arch)
    for request in kinds.values():
        (plan, *_), used = planned[request], instructions(tool, binaries[request], tmp_path)
        assert "EXIT" in used and used.isdisjoint({"LDL", "STL"}), plan.kernel
        assert ("UBLKCP" in used) == ("Ringed" in plan.kernel or plan.variant == "Shared"), plan.kernel
        assert ("STAS" in used) == (plan.cluster > 1), plan.kernel


@pytest.mark.parametrize("scope", ["Group", "Cluster", "Lanes<32>"])
def test_rings_and_partial_sums_move_what_lies_together(scope, tmp_path):
    """No loop brings what the copy engine is told to uniform registers, as it does for threads that nobody elected; no
    store of sums is narrower than 16 bytes."""
    tool = find_nvidia_binary_utility("nvdisasm")
    if tool is None:
        pytest.skip("nvdisasm is not installed (pip install nvidia-cuda-nvdisasm)")
    request = "norm_backward.cu", f"norm_backward<LayerNorm, bf16, bf16, bf16, 8, 3, {scope}, Ringed, 512>"
    code = machine_code(tool, jit.build([request], H200.arch)[request], tmp_path)
    assert "ELECT" in code and not re.search(r"UBLKCP(?:[^;]*;){1,4}?[^;]*BRA\.U\.ANY", code)
    assert not re.search(r"STG\.E(?:\.64)? desc", code)
