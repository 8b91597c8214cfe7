"""The figure of the products of linear layers."""

import pytest
from matplotlib import image

from harness import linear_sweeps, plots_products
from harness.cases import PRODUCTS, Case
from harness.report import compose
from harness.table import cases
from harness.tests import synthetic

NAMES = ("optimized", "cublas", "unfused")


def rows(asked):
    return [synthetic.gpu_row(case, name) for case in asked for name in NAMES
            if name != "unfused" or case.function in ("linear_scale_add_fwd", "linear_scale_bwd")]


def products():
    return [case for case in linear_sweeps.llm() if case.function in PRODUCTS]


def test_a_report_shows_it(tmp_path):
    text = compose(rows(products()), synthetic.RUNS, tmp_path)
    assert image.imread(tmp_path / "products.png")[..., :3].std() > 0.02 and "plots/products.svg" in text


def test_a_panel_a_function_and_a_bar_for_each_implementation():
    found = cases(rows(products()))
    axes = plots_products.percent_of_limit(found).axes
    assert [title for panel in axes if (title := panel.get_title(loc="left"))] == list(linear_sweeps.FUNCTIONS)
    for panel, function in zip(axes, linear_sweeps.FUNCTIONS):
        shown = [label.get_text() for label in panel.get_xticklabels()]
        assert sorted(shown) == sorted("x".join(map(str, shape)) for shape in linear_sweeps.MODELS)
        for index, name in enumerate(name for name in NAMES if name != "unfused" or "scale" in function):
            heights = [bar.get_height() for bar in panel.containers[index]]
            expected = {of[name]["shape"]: of[name]["percent_of_limit"] for of in found.values()
                        if of["optimized"]["function"] == function and not of["optimized"]["options"]}
            assert heights == pytest.approx([expected[shape] for shape in shown])


def test_only_plain_products_in_bf16_count():
    asked = [Case("linear_fwd", (2048, 2048, 2048), "fp32"), Case("rmsnorm_fwd", (4096, 4096)),
             Case("linear_bwd", (2048, 2048, 2048), options=(("main_grad", "fp32"),))]
    assert plots_products.percent_of_limit(cases([synthetic.gpu_row(case, "optimized") for case in asked])) is None


def test_the_largest_are_shown_where_there_are_many():
    asked = [Case("linear_fwd", (128 * i, 1024, 1024)) for i in range(1, plots_products.MOST_BARS + 9)]
    panel = plots_products.percent_of_limit(cases(rows(asked))).axes[0]
    shown = [label.get_text() for label in panel.get_xticklabels()]
    assert shown == [case.shape_text for case in asked[-plots_products.MOST_BARS:]]
