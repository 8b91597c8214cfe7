"""Machine code of every product on Hopper: tensor cores and copy engine do the work, nothing goes to local memory."""

import re

import pytest
from cuda.pathfinder import find_nvidia_binary_utility

from harness.tests.test_specializations import instructions, machine_code
from optimized import jit
from optimized.gemm_tiles import TILES
from optimized.plan import H200

KERNELS = [("gemm.cu", f"gemm<{element}, {way}, {tile.spelled}, {results}{'Across' if tile.across else ''}>")
           for element in ("bf16", "f16") for (way, results), tiles in TILES.items() for tile in tiles]
FEW = [("gemm_few.cu", f"gemm_few<bf16, {sizes}<bf16>>") for sizes in ("64, 32, Store", "128, 256, ScaleAdd")]
CORE = {"HGMMA", "UTMALDG", "UTMASTG", "USETMAXREG", "SYNCS"}


@pytest.fixture(scope="module")
def built():
    return jit.build(KERNELS + FEW, H200.arch)


def test_nothing_spills(built):
    assert {kernel: b.spill_bytes + b.stack_bytes for (_, kernel), b in built.items()} == dict.fromkeys(
        (kernel for _, kernel in built), 0)
    assert not any(built[request].shared_bytes for request in KERNELS)


def test_registers_are_there_for_those_who_take_more(built):
    """What a CTA starts with is all that its warpgroups can share: 40 and twice 232. With fewer they would wait."""
    assert {built[request].registers for request in KERNELS} == {168} and 3 * 168 == 40 + 2 * 232


def test_tensor_cores_and_copy_engine(built, tmp_path):
    tool = find_nvidia_binary_utility("nvdisasm")
    if tool is None:
        pytest.skip("nvdisasm is not installed (pip install nvidia-cuda-nvdisasm)")
    for request in KERNELS:
        used = instructions(tool, built[request], tmp_path)
        assert CORE <= used, (request, CORE - used)
        assert used.isdisjoint({"LDL", "STL", "HMMA"}), request
        assert ("LDSM" in used) == ("ScaleAdds" in request[1])
        assert ("UTMAREDG" in used) == ("FloatResults" in request[1])


def test_loads_need_no_loops(built, tmp_path):
    """Threads that nobody elected go round a loop before each load, which brings what the copy engine is told to
    uniform registers for one after another. C and stores, which are fewer, may."""
    tool = find_nvidia_binary_utility("nvdisasm")
    if tool is None:
        pytest.skip("nvdisasm is not installed (pip install nvidia-cuda-nvdisasm)")
    for request in [each for each in KERNELS if each[1].endswith((" Stores>", "StoresAcross>"))] + FEW:
        code = machine_code(tool, built[request], tmp_path)
        assert "ELECT" in code and not re.search(r"UTMALDG(?:[^;]*;){1,4}?[^;]*BRA\.U\.ANY", code), request
