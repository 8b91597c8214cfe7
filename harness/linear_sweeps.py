"""The cases of linear layers, their fusions and the pointwise operations, as each sweep has them."""

from collections.abc import Iterable

from harness.cases import DTYPES, Case

FUNCTIONS = ("linear_fwd", "linear_scale_add_fwd", "linear_bwd", "linear_scale_bwd")
MODELS = (
    *((m, n, k) for m in (512, 2048, 8192)
      for n, k in ((4096, 4096), (4096, 14336), (8192, 8192), (8192, 28672), (16384, 4096))),
    (8192, 5120, 5120), (4096, 1024, 1024), (2048, 2048, 2048), (16384, 2048, 2048), (1000, 4104, 4104),
)
"""M x N x K of well-known models, and one that tiles do not divide."""

_MAIN_GRAD = {"main_grad": "fp32"}
_ACCUMULATED = ((4096, 1024, 1024), (2048, 4096, 4096), (8192, 4096, 14336), (8192, 8192, 8192), (1000, 4104, 4104))
_UNLISTED = ((3072, 3072), (6144, 6144), (7168, 18432), (18432, 7168), (11008, 4096), (4096, 11008), (28672, 4096))
_EDGE = ((1, 1, 1), (7, 31, 33), (64, 64, 64), (33, 129, 65), (130, 260, 1000), (1, 4096, 512), (257, 3, 1023),
         (100, 1, 300), (300, 200, 7), (65, 511, 4104))
_EMPTY = ((0, 64, 32), (64, 0, 32), (64, 32, 0))


def smoke() -> list[Case]:
    """13 quick cases: every function at a size that fills a GPU and at one that tiles do not divide."""
    return [
        *(Case(function, (2048, 4096, 4096)) for function in FUNCTIONS),
        *(Case(function, (130, 260, 333), dtype)
          for function, dtype in zip(FUNCTIONS, ("fp16", "fp32", "bf16", "fp32"))),
        _case("linear_scale_bwd", (512, 1024, 2048), _MAIN_GRAD),
        *(Case(function, (4096, 4096)) for function in ("constant_scale", "add")),
        *(Case(function, (33, 1023), "fp32") for function in ("constant_scale", "add")),
    ]


def llm() -> list[Case]:
    """87 bf16 cases: every function at the sizes of models; some with a float32 buffer; what is fused on its own."""
    return [
        *(Case(function, shape) for function in FUNCTIONS for shape in MODELS),
        *(_case("linear_scale_bwd", shape, _MAIN_GRAD) for shape in _ACCUMULATED),
        *(Case(function, (8192, 4096)) for function in ("constant_scale", "add")),
    ]


def linear() -> list[Case]:
    """Every function at the sizes of models, in bf16, with float32 buffers, in fp16 and exact fp32."""
    return list(dict.fromkeys([
        *llm(),
        *(_case("linear_scale_bwd", shape, _MAIN_GRAD) for shape in MODELS),
        *(_case("linear_bwd", shape, _MAIN_GRAD) for shape in _ACCUMULATED),
        *(_case(function, (8192, 4096, 4096), {"gradients": one}) for function in FUNCTIONS[2:]
          for one in ("input", "weight")),
        *(_case("linear_scale_add_fwd", shape, {"in_place": False}) for shape in _ACCUMULATED),
        *(Case(function, shape, "fp16") for function in FUNCTIONS for shape in _ACCUMULATED[:3]),
        *(Case(function, shape, "fp32") for function in FUNCTIONS
          for shape in ((2048, 2048, 2048), (4096, 4096, 4096), (1000, 4104, 4104))),
        *(Case(function, (rows, 4096), dtype) for function in ("constant_scale", "add") for rows in (512, 16384)
          for dtype in DTYPES),
    ]))


def unlisted() -> list[Case]:
    """Sizes between the well-known ones, with one row, few, many, and a number that nothing divides: 84 bf16 cases."""
    shapes = [(m, n, k) for n, k in _UNLISTED for m in (1, 16, 100, 3000)]
    return [Case(function, shape) for function in ("linear_fwd", "linear_scale_add_fwd", "linear_scale_bwd")
            for shape in shapes]


def edge() -> list[Case]:
    """Odd, tiny and empty sizes, tails of K, rows that do not begin on 16 bytes; dtypes, layouts, options."""
    return list(dict.fromkeys([*_edge_shapes(), *_edge_layouts(), *_edge_options(), *_edge_pointwise()]))


def _edge_shapes() -> Iterable[Case]:
    for i, shape in enumerate((*_EDGE, *_EMPTY)):
        for j, function in enumerate(FUNCTIONS):
            yield Case(function, shape, list(DTYPES)[(i + j) % 3])


def _edge_layouts() -> Iterable[Case]:
    for function in FUNCTIONS:
        for layout in ("strided", "offset", "transposed"):
            yield _case(function, (70, 136, 264), {"layout": layout})
            yield _case(function, (33, 47, 61), {"layout": layout}, "fp32")


def _edge_options() -> Iterable[Case]:
    for dtype in DTYPES:
        for out in DTYPES:
            yield _case("linear_fwd", (65, 96, 200), {"out_dtype": out}, dtype)
        for main_grad in dict.fromkeys((dtype, "fp32")):
            yield _case("linear_bwd", (65, 96, 200), {"main_grad": main_grad}, dtype)
            yield _case("linear_scale_bwd", (100, 33, 47), {"main_grad": main_grad, "gradients": "weight"}, dtype)
        for one in ("input", "weight"):
            yield _case("linear_scale_bwd", (65, 96, 200), {"gradients": one}, dtype)
        yield _case("linear_scale_add_fwd", (65, 96, 200), {"in_place": False}, dtype)
    for layout in ("strided", "transposed"):
        yield _case("linear_bwd", (65, 96, 200), {"main_grad": "fp32", "layout": layout})
    yield _case("linear_bwd", (0, 32, 48), _MAIN_GRAD)


def _edge_pointwise() -> Iterable[Case]:
    for i, shape in enumerate(((1, 1), (7, 31), (130, 1000), (1025, 17), (0, 64), (3, 5, 129), (1000,))):
        for j, function in enumerate(("constant_scale", "add")):
            yield Case(function, shape, list(DTYPES)[(i + j) % 3])
    for i, layout in enumerate(("strided", "offset", "expanded", "transposed")):
        for function in ("constant_scale", "add"):
            yield _case(function, (64, 224), {"layout": layout}, list(DTYPES)[i % 3])
        if layout != "expanded":
            yield _case("add", (65, 223), {"layout": layout, "in_place": True}, list(DTYPES)[i % 3])
    yield _case("add", (33, 1024), {"in_place": True})


def _case(function: str, shape, options=None, dtype: str = "bf16") -> Case:
    return Case(function, shape, dtype, options=tuple((options or {}).items()))
