"""The cases of quantize and dequantize, as each sweep has them."""

from collections.abc import Iterable

from harness.cases import DTYPES, RECIPES, Case

QUANTIZED = RECIPES[1:]
_PER_TENSOR, _BLOCKS = QUANTIZED[:2], {"mxfp8": 32, "nvfp4": 16}
_MB_64, _MB_268, _MB_4 = (8192, 4096), (16384, 8192), (1024, 2048)  # of bf16
_ROW, _COLUMN, _BOTH = {}, {"orientation": "columnwise"}, {"orientation": "both"}
_SQUARES = {**_BOTH, "with_2d_quantization": True}
_STOCHASTIC, _ROTATED = {**_BOTH, "stochastic_rounding": True}, {**_BOTH, "with_rht": True}


def smoke() -> list[Case]:
    """12 quick cases: every recipe both ways and back at a size that fills a GPU, and at an odd one."""
    odd = {"fp8_delayed": (33, 1023), "fp8_current": (33, 1023), "mxfp8": (96, 1056), "nvfp4": (48, 1040)}
    return [
        *(_case("quantize", (4096, 4096), recipe, _BOTH) for recipe in QUANTIZED),
        *(_case("dequantize", (4096, 4096), recipe) for recipe in QUANTIZED),
        *(_case("quantize", shape, recipe, _BOTH, "fp32") for recipe, shape in odd.items()),
    ]


def llm() -> list[Case]:
    """28 bf16 cases, larger than L2 and in it: every recipe rowwise, both ways and back; NVFP4's options."""
    return [
        *(_case("quantize", shape, recipe, options)
          for shape in (_MB_64, _MB_4) for recipe in QUANTIZED for options in (_ROW, _BOTH)),
        _case("quantize", _MB_64, "mxfp8", _COLUMN),
        *(_case("quantize", _MB_64, "nvfp4", options) for options in (_SQUARES, _STOCHASTIC, _ROTATED)),
        *(_case("dequantize", shape, recipe) for shape in (_MB_64, _MB_4) for recipe in QUANTIZED),
    ]


def quantize() -> list[Case]:
    """Every recipe and orientation, there and back, at 268, 64 and 4 MB of bf16; formats, options and dtypes; the
    shapes of some models."""
    everywhere = [case for shape in (_MB_64, _MB_268, _MB_4) for case in _table(shape)]
    return list(dict.fromkeys([
        *everywhere,
        *(_case("quantize", shape, "nvfp4", options) for shape in (_MB_64, _MB_4)
          for options in (_SQUARES, _STOCHASTIC, _ROTATED, _STOCHASTIC | _ROTATED)),
        *(_case("quantize", _MB_64, recipe, {**_BOTH, "format": "e5m2"}) for recipe in QUANTIZED[:3]),
        _case("quantize", _MB_64, "fp8_current", {**_BOTH, "force_pow_2_scales": True}),
        *(_case("quantize", _MB_4, recipe, _BOTH, dtype) for recipe in QUANTIZED for dtype in ("fp16", "fp32")),
        *(_case("quantize", shape, recipe, _BOTH) for recipe in QUANTIZED for shape in ((4096, 14336), (8192, 5120))),
    ]))


def edge() -> list[Case]:
    """Odd, tiny, wide and empty shapes, as far as blocks allow; dtypes, formats, options; layouts; ranks; and back."""
    return list(dict.fromkeys(
        [*_edge_per_tensor(), *_edge_blocks(), *_edge_dtypes(), *_edge_options(), *_edge_ranks(), *_edge_back()]))


def _case(function: str, shape, recipe: str, options=None, dtype: str = "bf16") -> Case:
    return Case(function, shape, dtype, recipe, tuple((options or {}).items()))


def _table(shape) -> Iterable[Case]:
    for recipe in QUANTIZED:
        yield from (_case("quantize", shape, recipe, options) for options in (_ROW, _COLUMN, _BOTH))
        yield from (_case("dequantize", shape, recipe, options) for options in (_ROW, _COLUMN))


def _edge_per_tensor() -> Iterable[Case]:
    shapes = ((1, 1), (7, 31), (33, 1023), (130, 5000), (1, 4097), (1025, 17))
    for i, shape in enumerate(shapes):
        for j, recipe in enumerate(_PER_TENSOR):
            options = (_BOTH, _ROW, _COLUMN)[(i + j) % 3]
            yield _case("quantize", shape, recipe, options, list(DTYPES)[(i + 2 * j) % 3])


def _edge_blocks() -> Iterable[Case]:
    """Rows, where blocks lie along them, of any number; columns likewise; tiles that end anywhere."""
    for recipe, block in _BLOCKS.items():
        for rows, blocks in ((1, 1), (33, 3), (130, 65)):
            yield _case("quantize", (rows, blocks * block), recipe, _ROW)
            yield _case("quantize", (blocks * block, rows), recipe, _COLUMN, "fp16")
        for rows, cols in ((1, 1), (5, 33), (3, 129)):
            yield _case("quantize", (rows * block, cols * block), recipe, _BOTH, "fp32")


def _edge_dtypes() -> Iterable[Case]:
    for i, recipe in enumerate(QUANTIZED):
        for j, dtype in enumerate(DTYPES):
            e5m2 = {"format": "e5m2"} if recipe != "nvfp4" and (i + j) % 2 else {}
            yield _case("quantize", (96, 160), recipe, {**(_BOTH if j else _ROW), **e5m2}, dtype)


def _edge_options() -> Iterable[Case]:
    for i, recipe in enumerate(QUANTIZED):
        for j, layout in enumerate(("strided", "offset", "expanded", "transposed")):
            yield _case("quantize", (64, 224), recipe, {**(_BOTH if (i + j) % 2 else _ROW), "layout": layout})
    for options in (_SQUARES, _STOCHASTIC, _ROTATED, _STOCHASTIC | _ROTATED):
        yield _case("quantize", (16, 16), "nvfp4", options)
        yield _case("quantize", (144, 1040), "nvfp4", options)
    yield _case("quantize", (33, 48), "nvfp4", {**_ROW, "stochastic_rounding": True}, "fp32")
    yield _case("quantize", (48, 80), "nvfp4", _SQUARES, "fp32")
    for format_ in ("e4m3", "e5m2"):
        yield _case("quantize", (33, 100), "fp8_current", {"force_pow_2_scales": True, "format": format_}, "fp32")


def _edge_ranks() -> Iterable[Case]:
    """One dimension, three, four; no elements at all."""
    for recipe in QUANTIZED:
        yield _case("quantize", (1024,), recipe, _ROW)
        yield from (_case("quantize", shape, recipe, _BOTH) for shape in ((3, 32, 64), (2, 2, 8, 96), (0, 64)))


def _edge_back() -> Iterable[Case]:
    for i, recipe in enumerate(QUANTIZED):
        for j, options in enumerate((_ROW, _COLUMN)):
            e5m2 = {"format": "e5m2"} if recipe != "nvfp4" and j else {}
            yield _case("dequantize", (96, 160), recipe, {**options, **e5m2}, list(DTYPES)[(i + j) % 3])
        yield from (_case("dequantize", shape, recipe) for shape in ((3, 32, 64), (0, 64), (1024,)))
        yield _case("dequantize", (130, 2080), recipe, dtype="fp32")
    for recipe in _PER_TENSOR:
        yield _case("dequantize", (33, 1023), recipe, _COLUMN)
    for recipe, block in _BLOCKS.items():
        yield _case("dequantize", (33, 3 * block), recipe)
        yield _case("dequantize", (3 * block, 33), recipe, _COLUMN)
