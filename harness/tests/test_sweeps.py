"""Sweeps hold what they promise, and filters pick from them."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cases import DTYPES, FAMILIES, NORMS, PRODUCTS, RECIPES, Case, accepted, family_of, recipes
from harness.sweeps import (
    CI_BYTES, CI_FLOPS, SWEEPS, ci, edge, everything, llm, parse_shape, select, smoke, sweep, unlisted
)

PEERS = Path(__file__).parents[2] / "results/nvidia-h200/peers.csv"


def functions(cases):
    return {case.function for case in cases}


def norms(cases):
    return [case for case in cases if case.function in NORMS and case.recipe == "none"]


def elements(case):
    """Of the largest tensor."""
    if case.function in PRODUCTS:
        m, n, k = case.shape
        return max(m * n, m * k, n * k)
    return case.rows * case.hidden


def test_smoke_is_quick_and_covers_every_function():
    assert len(smoke()) == 53 and functions(smoke()) == set(FAMILIES)
    assert {case.recipe for case in smoke()} == set(RECIPES)
    assert max(map(elements, smoke())) <= 1 << 24


def test_llm_is_sixty_cases_with_every_unquantized_norm_of_the_peers():
    cases = norms(llm())
    assert len(cases) == len(set(cases)) == 60 and functions(cases) == set(NORMS)
    with PEERS.open(newline="") as file:
        listed = {(row["function"], row["shape"]) for row in csv.DictReader(file)
                  if row["function"] in FAMILIES}
    assert len([function for function, _ in listed if function in NORMS]) == 52
    plain = [case for case in llm() if case.dtype == "bf16" and case.recipe == "none" and not case.options]
    assert listed <= {(case.function, case.shape_text) for case in plain}


def test_ci_is_llm_without_what_takes_long():
    works = {case: family_of(case.function).work(case) for case in llm()}
    kept, left_out = ci(), [case for case in llm() if case not in ci()]
    assert len(kept) == 104 and functions(kept) == functions(llm()) and {case.recipe for case in kept} == set(RECIPES)
    assert all(works[case].bytes > CI_BYTES or works[case].flops > CI_FLOPS for case in left_out)
    assert max(works[case].bytes for case in kept) <= CI_BYTES and max(works[case].flops for case in kept) <= CI_FLOPS


def test_unlisted_is_every_function_at_hidden_sizes_in_between():
    cases = norms(unlisted())
    assert len(cases) == 5 * 5 * 4 and {case.dtype for case in cases} == {"bf16"}
    assert {case.hidden for case in cases} == {3072, 6144, 7168, 10240, 20480}
    assert {case.rows for case in cases} == {1, 7, 2048, 50000}


def test_edge_is_small_and_wide_ranging():
    cases = edge()
    assert len(cases) == len(set(cases)) and max(map(elements, cases)) <= 1 << 21
    assert {1, 2, 3, 1023, 16385, 131072, 300000} <= {case.hidden for case in cases}
    assert {0, 1, 7} <= {case.rows for case in cases}
    assert {case.option("layout") for case in cases} >= {"strided", "offset", "expanded", "transposed"}
    assert {len(case.shape) for case in cases} == {1, 2, 3, 4}
    for hidden in {case.hidden for case in norms(cases) if case.hidden >= 4095}:
        assert functions(case for case in norms(cases) if case.hidden == hidden) >= set(NORMS)


def test_edge_has_every_mix_of_dtypes():
    cases = edge()
    for function in ("layernorm_fwd", "rmsnorm_fwd"):
        mixes = {(case.dtype, case.option("gamma_dtype", case.dtype))
                 for case in cases if case.function == function}
        assert len(mixes) == len(DTYPES) ** 2
    assert len({(case.dtype, case.option("gamma_dtype", case.dtype), case.option("dz_dtype", case.dtype))
                for case in cases if "_bwd" in case.function}) == len(DTYPES) ** 3


def test_hidden_is_a_grid_without_gaps():
    cases = sweep("hidden")
    sizes = sorted({case.hidden for case in cases})
    assert (sizes[0], sizes[-1]) == (64, 65_536) and all(size % 8 == 0 for size in sizes)
    assert all(1.15 < wider / size < 1.35 for size, wider in zip(sizes, sizes[1:]))
    assert all(functions(case for case in cases if case.hidden == size) == set(NORMS) for size in sizes)
    assert all(1 << 24 <= math.prod(case.shape) < (1 << 24) + case.hidden for case in cases)


def test_all_holds_each_case_of_each_sweep_once():
    cases = everything()
    assert len(cases) == len(set(cases))
    assert set(cases) == {case for name in SWEEPS for case in sweep(name)}


def test_select_without_filters_keeps_everything():
    assert select(smoke()) == smoke()


def test_select_by_name():
    assert functions(select(llm(), function="rmsnorm_fwd,rmsnorm_bwd")) == {"rmsnorm_fwd", "rmsnorm_bwd"}
    assert functions(select(llm(), function=["layernorm_fwd"])) == {"layernorm_fwd"}
    assert [case.dtype for case in select(llm(), dtype="fp32")] == ["fp32"]
    assert select(llm(), recipe="none", function=NORMS) == norms(llm())
    assert {case.recipe for case in select(smoke(), recipe="mxfp8,nvfp4")} == {"mxfp8", "nvfp4"}


def test_select_by_keyword():
    assert [case.hidden for case in select(llm(), keyword="^rmsnorm_bwd_add 4096")] == [7168]
    assert select(llm(), keyword="nothing has this name") == []


@pytest.mark.parametrize("text", ["4096,8192", "4096x8192", " 4096 , 8192 "])
def test_select_by_shape(text):
    found = select(llm(), shape=text)
    assert {case.shape for case in found} == {(4096, 8192)} and len(found) == 4


def test_a_shape_of_ones_own_makes_cases_for_what_is_chosen():
    assert select(smoke(), shape="12x345", function="rmsnorm_bwd") == [Case("rmsnorm_bwd", (12, 345))]
    assert select(smoke(), shape=["3,4,500"], function="rmsnorm_bwd", dtype="fp16,fp32") == [
        Case("rmsnorm_bwd", (3, 4, 500), "fp16"), Case("rmsnorm_bwd", (3, 4, 500), "fp32")]
    assert functions(select(smoke(), shape="12x345")) == set(FAMILIES) - set(PRODUCTS)
    assert functions(select(smoke(), shape="12x34x0")) == set(PRODUCTS)
    mixed = select(llm(), shape=["4096x8192", "12x345"], function="rmsnorm_fwd", recipe="none")
    assert mixed == [Case("rmsnorm_fwd", (4096, 8192)), Case("rmsnorm_fwd", (12, 345))]


@pytest.mark.parametrize("filters, words", [
    ({"function": "rmsnorm"}, "unknown function 'rmsnorm'; known: layernorm_fwd, rmsnorm_fwd, "),
    ({"dtype": "bf16,fp8"}, "unknown dtype 'fp8'; known: bf16, fp16, fp32"),
    ({"recipe": "mxfp4"}, "unknown recipe 'mxfp4'; known: none, fp8_delayed, fp8_current, mxfp8, nvfp4"),
    ({"shape": "12,345", "recipe": "mxfp8", "function": "quantize"},
     "quantize 12x345 bf16 mxfp8: 345 cols are no multiple of the block, 32"),
    ({"keyword": "("}, "keyword '\\(' is not a regular expression"),
    ({"shape": "4096*8192"}, "shape '4096\\*8192' is not of the form 4096x8192"),
    ({"shape": ""}, "shape '' is not"),
    ({"shape": "4096,-1"}, "is not of the form"),
    ({"shape": "4096,0"}, "a hidden size of at least 1"),
])
def test_a_wrong_filter_is_one_clear_error(filters, words):
    with pytest.raises(ValueError, match=words):
        select(smoke(), **filters)


def test_an_unknown_sweep_lists_those_known():
    with pytest.raises(ValueError, match="unknown sweep 'cl'; known: smoke, ci, llm, unlisted, norms, "):
        sweep("cl")


def test_a_shape_may_have_no_rows_and_any_rank():
    assert parse_shape("0x8") == (0, 8) and parse_shape("8") == (8,)
    assert parse_shape("2,3,4,5") == (2, 3, 4, 5)


def test_every_sweep_holds_cases_that_their_functions_take():
    for case in everything():
        assert accepted(case) is case
    for name in ("smoke", "llm", "quantize", "edge"):
        quantized = {(case.function, case.recipe) for case in sweep(name) if case.recipe != "none"}
        assert quantized >= {(function, recipe) for function in ("quantize", "dequantize") for recipe in RECIPES[1:]}
    for name in ("smoke", "llm", "norms", "edge"):
        of_norms = {(case.function, case.recipe) for case in sweep(name) if case.function in NORMS}
        assert {recipe for _, recipe in of_norms} >= set(RECIPES[1:])


def test_llm_has_few_enough_quantized_cases():
    cases = [case for case in llm() if case.recipe != "none"]
    assert len(cases) == 38 and {elements(case) * 2 for case in cases} == {64 << 20, 4 << 20}


def test_norms_have_every_quantized_norm_of_the_peers():
    """Named as the peers' rows are: fp8d and fp8c are delayed and current scaling, rc is both ways."""
    cases = sweep("norms")
    assert len(cases) == len(set(cases)) <= 210 and functions(cases) == {"layernorm_fwd", "rmsnorm_fwd"}
    short = {"fp8_delayed": "fp8d", "fp8_current": "fp8c"}
    sides = {(): "", (("orientation", "both"),): "_rc"}
    held = {(f"{case.function}_{short.get(case.recipe)}{sides[case.options]}", case.shape_text)
            for case in cases if case.options in sides}
    with PEERS.open(newline="") as file:
        listed = {(row["function"], row["shape"]) for row in csv.DictReader(file)
                  if "norm_fwd_fp8" in row["function"]}
    assert len(listed) == 78 and listed <= held


def test_products_are_at_the_sizes_of_the_peers_and_between_them():
    for name, at_least in (("llm", 80), ("unlisted", 84), ("linear", 120), ("smoke", 9), ("edge", 90)):
        found = [case for case in sweep(name) if case.function in PRODUCTS]
        left_out = {"linear_bwd"} if name == "unlisted" else set()
        assert len(found) >= at_least and functions(found) >= set(PRODUCTS) - left_out
    assert {1, 16, 100, 3000} == {case.shape[0] for case in unlisted() if case.function in PRODUCTS}
    sides = {side for case in unlisted() if case.function in PRODUCTS for side in case.shape[1:]}
    assert sides >= {3072, 6144, 7168, 11008, 18432, 28672}


def test_norms_have_each_fused_path_beside_the_unfused_one():
    forced = [case for case in sweep("norms") if case.option("path")]
    pairs = {}
    for case in forced:
        rest = replace(case, options=tuple(option for option in case.options if option[0] != "path"))
        pairs.setdefault(rest, set()).add(case.option("path"))
    assert len(pairs) >= 20
    for case, paths in pairs.items():
        fused = recipes.fused_path(case)
        assert paths - {f"{fused}_in_two"} == {"unfused", fused}
        assert (f"{fused}_in_two" in paths) == recipes.seen_twice(case)


def test_quantize_is_the_table_of_what_quantization_must_reach():
    cases = sweep("quantize")
    assert len(cases) == len(set(cases)) <= 100
    for size in (64 << 20, 256 << 20, 4 << 20):
        found = [case for case in cases if elements(case) * 2 == size and case.dtype == "bf16"]
        for recipe in RECIPES[1:]:
            there = {recipes.orientations(case) for case in found
                     if (case.function, case.recipe) == ("quantize", recipe)}
            assert there == {("rowwise",), ("columnwise",), ("rowwise", "columnwise")}
    assert {key for case in cases for key, _ in case.options} == {key for options in recipes.OPTIONS.values()
                                                                   for key in options}


def test_edge_has_odd_sizes_layouts_and_options_of_every_recipe():
    cases = [case for case in edge() if case.function == "quantize"]
    for recipe in RECIPES[1:]:
        found = [case for case in cases if case.recipe == recipe]
        assert {len(case.shape) for case in found} == {1, 2, 3, 4} and {case.dtype for case in found} == set(DTYPES)
        assert {case.option("layout") for case in found} >= {"strided", "offset", "expanded", "transposed"}
        assert any(case.rows % 128 and case.hidden % 128 for case in found) and any(not case.rows for case in found)


def test_a_shape_of_ones_own_comes_with_every_recipe_that_takes_it():
    found = select(smoke(), shape="64x96", function="quantize")
    assert [case.recipe for case in found] == list(RECIPES[1:])
    assert {case.recipe for case in select(smoke(), shape="33x48", function="dequantize")} == {
        "fp8_delayed", "fp8_current", "nvfp4"}
