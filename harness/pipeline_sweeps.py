"""The cases of whole pipelines, as each sweep has them."""

from harness.cases import RECIPES, Case

TOKENS, HIDDEN = (2048, 4096, 8192, 16384), (2048, 4096, 8192)


def smoke() -> list[Case]:
    """2 quick cases: a block that fills a GPU, and one with a recipe."""
    return [Case("residual_block", (2048, 2048)), Case("residual_block", (512, 1024), recipe="mxfp8")]


def llm() -> list[Case]:
    """3 bf16 cases: a small block, a middling and a large one."""
    return [Case("residual_block", shape) for shape in ((2048, 2048), (8192, 4096), (16384, 8192))]


def pipelines() -> list[Case]:
    """Every number of tokens with every hidden size in bf16, some with every recipe, one in fp16 and in fp32."""
    return [
        *(Case("residual_block", (tokens, hidden)) for tokens in TOKENS for hidden in HIDDEN),
        *(Case("residual_block", shape, recipe=recipe) for shape in ((4096, 4096), (16384, 8192))
          for recipe in RECIPES[1:]),
        *(Case("residual_block", (4096, 4096), dtype) for dtype in ("fp16", "fp32")),
    ]


def edge() -> list[Case]:
    """One row, odd sizes, every dtype; every recipe at sizes that tiles do not divide."""
    plain = [Case("residual_block", shape, dtype)
             for shape, dtype in (((1, 512), "bf16"), ((33, 129), "fp16"), ((130, 1000), "fp32"), ((7, 31), "bf16"))]
    return plain + [Case("residual_block", (96, 160), recipe=recipe) for recipe in RECIPES[1:]]
