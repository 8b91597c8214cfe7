"""Cases of norms with quantized outputs, and of norms over hidden sizes, for the sweeps."""

from collections.abc import Iterable

from harness.cases import DTYPES, NORMS, RECIPES, Case
from harness.cases.base import IN_TWO, PATHS
from harness.cases.recipes import fused_path

QUANTIZED = RECIPES[1:]
_FORWARD = ("layernorm_fwd", "rmsnorm_fwd")
_PER_TENSOR, _BLOCKS = QUANTIZED[:2], {"mxfp8": 32, "nvfp4": 16}
_ROW, _COLUMN, _BOTH = {}, {"orientation": "columnwise"}, {"orientation": "both"}
_SQUARES, _STOCHASTIC = {**_BOTH, "with_2d_quantization": True}, {**_BOTH, "stochastic_rounding": True}
_ROTATED = {**_BOTH, "with_rht": True}

MODELS = (
    *((4096, hidden) for hidden in (1024, 2048, 4096, 8192, 16384, 32768)),
    *((16384, hidden) for hidden in (1024, 2048, 4096, 8192, 16384)),
    (8192, 5120), (8192, 12288),
)
"""Tokens and hidden sizes of well-known models."""

_TABLE = (("layernorm_fwd", "fp8_delayed"), ("rmsnorm_fwd", "fp8_delayed"), ("rmsnorm_fwd", "fp8_current"),
          ("rmsnorm_fwd", "mxfp8"), ("layernorm_fwd", "nvfp4"))
HIDDEN_ELEMENTS = 1 << 24
_GAIN_SHAPES = ((4096, 4096), (4096, 8192), (16384, 8192))
_UNLISTED = ((50000, 3072), (2048, 7168), (7, 10240))


def smoke() -> list[Case]:
    """6 quick cases: every recipe both ways at a size that fills a GPU, two at an odd one."""
    return [
        *(_case(_FORWARD[i % 2], (4096, 4096), recipe, _BOTH) for i, recipe in enumerate(QUANTIZED)),
        _case("layernorm_fwd", (33, 1023), "fp8_current", _BOTH, "fp32"),
        _case("rmsnorm_fwd", (96, 1056), "mxfp8", _BOTH, "fp16"),
    ]


def llm() -> list[Case]:
    """10 bf16 cases of 64 MB: every recipe rowwise and both ways, two of them by two launches."""
    kinds = [(recipe, options) for recipe in QUANTIZED for options in (_ROW, _BOTH)]
    return [
        *(_case(_FORWARD[i // 2 % 2], (8192, 4096), *kind) for i, kind in enumerate(kinds)),
        *(_case(_FORWARD[i % 2], (8192, 4096), recipe, {**_BOTH, "path": "unfused"})
          for i, recipe in enumerate(("fp8_delayed", "fp8_current"))),
    ]


def norms() -> list[Case]:
    """What quantized norms must reach: every recipe, rowwise and both ways, at the sizes of well-known models and at
    others; and by two launches at some, so that the gain of each fusion is a row."""
    return list(dict.fromkeys([
        *(_case(*kind[:1], shape, *kind[1:], options)
          for shape in MODELS for kind in _TABLE for options in (_ROW, _BOTH)),
        *(_case(*kind[:1], shape, *kind[1:], _ROW) for shape in _UNLISTED for kind in _TABLE[1:4]),
        *_gains(),
        *(_case("rmsnorm_fwd", (4096, 8192), "nvfp4", options) for options in (_SQUARES, _STOCHASTIC, _ROTATED)),
        *(_case("rmsnorm_fwd", (4096, 8192), recipe, _COLUMN) for recipe in QUANTIZED),
    ]))


def hidden() -> list[Case]:
    """A fine grid of hidden sizes, multiples of 8 from 64 to 65,536, three to a doubling, with as many rows as make
    2^24 elements: 155 bf16 cases in which no size should fall out of line."""
    sizes = [8 * round(8 * 2 ** (i / 3)) for i in range(31)]
    return [Case(function, (-(-HIDDEN_ELEMENTS // size), size)) for function in NORMS for size in sizes]


def edge() -> list[Case]:
    """Odd, tiny, wide and empty shapes, as far as blocks allow; dtypes, formats, options; layouts; ranks; paths."""
    return list(dict.fromkeys([*_edge_per_tensor(), *_edge_blocks(), *_edge_options(), *_edge_ranks()]))


def _case(function: str, shape, recipe: str, options=None, dtype: str = "bf16") -> Case:
    return Case(function, shape, dtype, recipe, tuple((options or {}).items()))


def _gains() -> Iterable[Case]:
    """Each fused path beside the unfused one, and, where there is an amax, beside that of two launches."""
    for shape in _GAIN_SHAPES:
        for function, recipe in _TABLE[1:]:
            for options in (_ROW, _BOTH):
                fused = fused_path(_case(function, shape, recipe))
                for path in (fused, "unfused", *([fused + IN_TWO] if fused + IN_TWO in PATHS else [])):
                    yield _case(function, shape, recipe, {**options, "path": path})


def _edge_per_tensor() -> Iterable[Case]:
    shapes = ((1, 1), (7, 31), (33, 1023), (130, 5000), (1, 4097), (1025, 17), (3, 40000), (2, 300000))
    for i, shape in enumerate(shapes):
        for j, recipe in enumerate(_PER_TENSOR):
            options = (_BOTH, _ROW, _COLUMN)[(i + j) % 3]
            yield _case(_FORWARD[(i + j) % 2], shape, recipe, options, list(DTYPES)[(i + 2 * j) % 3])


def _edge_blocks() -> Iterable[Case]:
    for k, (recipe, block) in enumerate(_BLOCKS.items()):
        for i, (rows, blocks) in enumerate(((1, 1), (33, 3), (130, 65), (3, 640))):
            yield _case(_FORWARD[(i + k) % 2], (rows, blocks * block), recipe, _ROW)
            yield _case(_FORWARD[(i + k + 1) % 2], (blocks * block, rows), recipe, _COLUMN, "fp16")
        for i, (rows, cols) in enumerate(((1, 1), (5, 33), (3, 129), (1, 1029))):
            yield _case(_FORWARD[(i + k) % 2], (rows * block, cols * block), recipe, _BOTH, "fp32")


def _edge_options() -> Iterable[Case]:
    """Layouts, dtypes of gamma, zero-centered gamma, no bias, a margin of SMs; options of quantizers; paths."""
    mixes = ({"layout": "strided"}, {"layout": "offset"}, {"layout": "expanded"}, {"layout": "transposed"},
             {"gamma_dtype": "fp32"}, {"zero_centered_gamma": True}, {"sm_margin": 16}, {"path": "unfused"})
    for i, recipe in enumerate(QUANTIZED):
        for j, mix in enumerate(mixes):
            options = (_BOTH if (i + j) % 2 else _ROW) | mix
            yield _case(_FORWARD[(i + j // 2) % 2], (64, 224), recipe, options)
        yield _case("layernorm_fwd", (32, 96), recipe, {**_BOTH, "bias": False}, "fp16")
    for recipe, shape in (("fp8_current", (33, 100)), ("nvfp4", (96, 160))):
        path = fused_path(_case("layernorm_fwd", shape, recipe)) + IN_TWO
        yield from (_case("layernorm_fwd", shape, recipe, {**options, "path": path}) for options in (_ROW, _BOTH))
    for i, recipe in enumerate(QUANTIZED[:3]):
        yield _case(_FORWARD[i % 2], (96, 160), recipe, {**_BOTH, "format": "e5m2"}, list(DTYPES)[i])
    yield _case("rmsnorm_fwd", (33, 100), "fp8_current", {"force_pow_2_scales": True}, "fp32")
    for options in (_SQUARES, _STOCHASTIC, _ROTATED):
        yield _case("rmsnorm_fwd", (144, 1040), "nvfp4", options)


def _edge_ranks() -> Iterable[Case]:
    """One dimension, three; no elements at all."""
    for i, recipe in enumerate(QUANTIZED):
        yield _case(_FORWARD[i % 2], (1024,), recipe, _ROW)
        yield from (_case(_FORWARD[i % 2], shape, recipe, _BOTH) for shape in ((3, 32, 64), (0, 64)))
