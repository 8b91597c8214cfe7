"""The general path of products: its plans, and the machine code of every kernel that they can ask for."""

import itertools
import re
import subprocess
from dataclasses import replace

import pytest
import torch
from cuda.pathfinder import find_nvidia_binary_utility

from harness import compile_report
from harness.cases import PRODUCTS
from harness.sweeps import sweep
from harness.tests.test_specializations import instructions
from optimized import fused, jit, linear
from optimized.linear_plan import COSTS, MAX_COLS, Product, Tiling, general, tilings
from optimized.plan import H200, Chip

SM_80 = Chip("sm_80", 108, 166_912)
SMALLEST = 101_376  # bytes of shared memory that a CTA can have from compute capability 8.0 on
FORWARD = Product(4096, 4096, 4096, "bf16", "bf16")


def forms(element, exact=True):
    """Every product, or pair, that a call can ask for."""
    outputs = dict.fromkeys((element, "f32"))
    one = Product(256, 256, 256, element, element, exact=exact)
    yield from ((replace(one, output=output),) for output in ("bf16", "f16", "f32"))
    yield (replace(one, adds=True),)
    dgrad = replace(one, b_across=True)
    yield (dgrad,)
    for output, adds in itertools.product(outputs, (False, True)):
        wgrad = replace(one, a_across=True, b_across=True, output=output, adds=adds)
        yield from ((wgrad,), (dgrad, wgrad))


def requests(kinds):
    """Source and kernel of each form, in every tile."""
    for element, exact in kinds:
        for products in forms(element, exact):
            simt = products[0].simt
            for tile in COSTS["mma" if element != "f32" else "simt" if exact else "tf32"]:
                for shares in itertools.product((1, 2) if simt else (1,), repeat=len(products)):
                    tiled = tuple(Tiling(product, *tile, each) for product, each in zip(products, shares))
                    yield "gemm_general.cu", general("linear_fwd", tiled, H200).kernel


EVERY = list(dict.fromkeys(requests((("bf16", True), ("f16", True), ("f32", True), ("f32", False)))))
BUILT = [one for i, one in enumerate(EVERY) if "<f16," not in one[1] or i % 6 == 0]  # f16 is like bf16
SOME = [one for one in BUILT if "true>" not in one[1]][::5]  # no clusters there


@pytest.fixture(scope="module")
def built():
    return jit.build(BUILT, H200.arch)


def is_clean(binary):
    return not binary.spill_bytes and not binary.stack_bytes and binary.registers <= 128 and not binary.shared_bytes


def test_every_kernel_keeps_to_registers(built):
    """128 of them, so that an SM holds two CTAs."""
    assert [kernel for (_, kernel), binary in built.items() if not is_clean(binary)] == []


def test_some_compile_for_sm_80():
    assert [kernel for (_, kernel), binary in jit.build(SOME, "sm_80").items() if not is_clean(binary)] == []


def test_machine_code_is_as_meant(built, tmp_path):
    """Nothing goes to local memory; copies pass the registers by; tensor cores multiply all but exact float32."""
    tool = find_nvidia_binary_utility("nvdisasm")
    if tool is None:
        pytest.skip("nvdisasm is not installed (pip install nvidia-cuda-nvdisasm)")
    for request in BUILT[::4]:
        used, simt = instructions(tool, built[request], tmp_path), "Simt" in request[1]
        assert used.isdisjoint({"LDL", "STL"}) and "LDGSTS" in used, request
        assert ("HMMA" in used) != simt and ("FFMA" in used or not simt), request
        assert ("LDSM" in used) == ("TensorCore<bf16" in request[1] or "TensorCore<f16" in request[1]), request


def test_the_loop_of_exact_float32_multiplies_most_of_the_time(built, tmp_path):
    """Of the instructions of a step of 16 elements of K, 1024 are the multiplications of 8 x 8 sums a thread. The loop
    around them ends a span, too."""
    tool = find_nvidia_binary_utility("nvdisasm")
    if tool is None:
        pytest.skip("nvdisasm is not installed (pip install nvidia-cuda-nvdisasm)")
    wanted = "gemm_general<Simt<AlongK, AlongK, 128, 128>, Store<f32>>"
    binary = built["gemm_general.cu", wanted]
    (tmp_path / "kernel.cubin").write_bytes(binary.image)
    shown = subprocess.run([tool, "-ndf", "-c", tmp_path / "kernel.cubin"], capture_output=True, text=True, check=True)
    section = next(part for part in shown.stdout.split(".section\t.text.")[1:] if part.startswith(f"{binary.symbol},"))
    lines, labels, shares = section.splitlines(), {}, []
    for number, line in enumerate(lines):
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = number
        if (jump := re.search(r"BRA.*?(\.L_x_\d+)", line)) and labels.get(jump[1], number) < number:
            body = re.findall(r"\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)", "\n".join(lines[labels[jump[1]]:number + 1]))
            shares.append(body.count("FFMA") / len(body))
    assert len(shares) >= 2 and max(shares) > 0.84 and sorted(shares)[-2] > 0.74


@pytest.mark.parametrize("chip", (H200, SM_80), ids=lambda chip: chip.arch)
@pytest.mark.parametrize("size", (1, 100, 1000, 4096, 20000))
@pytest.mark.parametrize("kind", (("bf16", True), ("f16", True), ("f32", True), ("f32", False)), ids=str)
def test_every_element_of_d_is_in_one_tile(kind, size, chip):
    for products in forms(*kind):
        sized = tuple(replace(product, m=size, n=max(1, size // 3), k=size) for product in products)
        tiled = tilings(sized, chip)
        assert [tiling.product for tiling in tiled] == list(sized) and len({tiling.m for tiling in tiled}) == 1
        for tiling in tiled:
            covered = -(-tiling.product.m // tiling.m) * -(-tiling.product.n // tiling.n)
            assert tiling.tiles == covered > 0
        plan, sizes = general("linear_fwd", tiled, chip), {1, max(tiling.shares for tiling in tiled)}
        assert {tiling.shares for tiling in tiled} <= sizes and (chip is H200 and products[0].simt or sizes == {1})
        assert plan.cluster == max(sizes) and plan.grid % plan.cluster == 0 and plan.block == 256
        assert 0 <= plan.grid - sum(tiling.tiles * tiling.shares for tiling in tiled) < len(tiled) * plan.cluster
        assert plan.shared_bytes <= SMALLEST
        assert plan.variant.startswith("general ") and plan.programmatic == (chip is H200)
        assert ("gemm_general.cu", plan.kernel) in EVERY


def test_tiles_are_small_where_large_ones_would_leave_the_chip_idle():
    assert [(t.m, t.n) for t in tilings((FORWARD,), H200)] == [(128, 128)]
    for m, n in ((1, 4096), (512, 512), (128, 8192)):
        assert [(t.m, t.n) for t in tilings((replace(FORWARD, m=m, n=n),), H200)] == [(64, 64)]
    floats = replace(FORWARD, element="f32", output="f32")
    assert [[(t.m, t.n) for t in tilings((replace(floats, m=m),), SM_80)] for m in (64, 256, 4096)] == [
        [(64, 64)], [(128, 64)], [(128, 128)]]


def test_exact_float32_shares_few_long_tiles():
    """By CTAs of a cluster, where there are clusters; not where tiles are many, and not wgrad's, which are short."""
    one = replace(FORWARD, element="f32", output="f32")

    def shares(products, chip=H200):
        return [tiling.shares for tiling in tilings(products, chip)]

    assert [shares((replace(one, m=m),)) for m in (16, 128, 512, 4096)] == [[8], [2], [2], [1]]
    assert shares((replace(one, m=64),), SM_80) == [1]
    dgrad, wgrad = replace(one, m=128, b_across=True), replace(one, k=128, a_across=True, b_across=True)
    assert shares((dgrad, wgrad)) == [4, 1]
    for m, n, k in ((1, 128, 256), (32, 512, 128)):
        assert shares((replace(dgrad, m=m, n=k, k=n), replace(wgrad, m=n, n=k, k=m))) == [8, 1], "wgrad's K is short"
    padded = general("linear_bwd", (Tiling(replace(wgrad, m=129, n=128), 128, 128), Tiling(dgrad, 128, 128, 4)), H200)
    assert padded.grid == 4 + 4 * 32 and padded.cluster == 4, "clusters of a tile begin behind whole ones"


def test_a_result_of_nothing_has_a_grid_all_the_same():
    assert general("linear_fwd", tilings((replace(FORWARD, m=0),), H200), H200).grid == 1


def test_too_many_tiles_are_refused():
    huge = replace(FORWARD, m=1 << 31, n=1 << 28)
    with pytest.raises(ValueError, match="linear_fwd: the result has .* tiles, but optimized takes at most 2147483647"):
        general("linear_fwd", tilings((huge,), H200), H200)


def test_rows_too_long_for_a_corner_are_refused():
    """It multiplies tiles across by eight in 32 bits."""
    for n in (1 << 35, 1 << 36):
        with pytest.raises(ValueError, match=f"linear_bwd: the result has {n} columns, but optimized takes at most"):
            general("linear_bwd", tilings((FORWARD, replace(FORWARD, m=1, n=n)), SM_80), SM_80)
    widest = Tiling(replace(FORWARD, m=1, n=MAX_COLS), 64, 64)
    assert 8 * general("linear_fwd", (widest,), H200).grid < 1 << 32


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


def test_the_plan_says_which_path():
    x, w, y = meta(256, 333), meta(130, 333), meta(256, 130)
    assert linear.plan_of("linear_fwd", x, w, chip=H200).variant == "general mma 64x64"
    assert "Simt" in linear.plan_of("linear_fwd", x.float(), w.float(), chip=H200).kernel
    assert fused.plan_of("linear_scale_add_fwd", x, w, y, 0.5, chip=SM_80).variant.startswith("general")
    assert not linear.plan_of("linear_fwd", meta(4096, 4096), meta(4096, 4096), chip=H200).variant.startswith("general")
    assert linear.plan_of("linear_fwd", meta(4096, 4096), meta(4096, 4096), chip=SM_80).variant.startswith("general")
    both = linear.plan_of("linear_bwd", y, x, w, chip=SM_80)
    assert both.kernel.startswith("gemm_general_pair<") and both.grid == 4 * 6 + 3 * 6


def test_sweeps_ask_for_few_of_the_kernels():
    planned, refused = compile_report.plans([case for case in sweep("all") if case.function in PRODUCTS], SM_80)
    asked = {plan.kernel for plan in planned.values() if plan.source == "gemm_general.cu"}
    assert not refused and asked <= {kernel for _, kernel in EVERY} and len(asked) <= 80
    assert {plan.source for plan in planned.values()} == {"gemm_general.cu", "gemm_skinny.cu"}
