"""Machine code of every product on Hopper: tensor cores and copy engine do the work, nothing goes to local memory."""

import pytest
from cuda.pathfinder import find_nvidia_binary_utility

from harness.tests.test_specializations import instructions
from optimized import jit
from optimized.gemm_plan import TILES
from optimized.plan import H200

KERNELS = [("gemm.cu", f"gemm<{element}, {way}, {tile.spelled}, {results}>")
           for element in ("bf16", "f16") for (way, results), tiles in TILES.items() for tile in tiles]
PARTS = [("gemm_parts.cu", f"gemm_parts<{element}, 8>") for element in ("bf16", "f16")]
CORE = {"HGMMA", "UTMALDG", "UTMASTG", "USETMAXREG", "SYNCS"}


@pytest.fixture(scope="module")
def built():
    return jit.build(KERNELS + PARTS, H200.arch)


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
        assert ("LDSM" in used) == ("ScaleAdds" in request[1]) and ("UTMAREDG" in used) == ("Floats" in request[1])
