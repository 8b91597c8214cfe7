"""Named lists of cases, and the filters that pick from them."""

import itertools
import math
import re
from collections.abc import Callable, Iterable

from harness import linear_sweeps, norm_sweeps, pipeline_sweeps, quantization_sweeps
from harness.cases import DTYPES, FAMILIES, NORMS, RECIPES, Case, Work, accepted, family_of, known

_UNLISTED_HIDDEN = (3072, 6144, 7168, 10240, 20480)
_EDGE_HIDDEN = (1, 2, 3, 7, 31, 33, 63, 100, 127, 129, 255, 1000, 1023, 1025, 4095, 4097, 5000, 16383, 16385,
                20480, 33000, 65536, 70000, 131072, 200000, 300000)
_EDGE_ROWS = (1, 7, 33, 130, 1025)
_EDGE_ELEMENTS = 1 << 21
CI_BYTES, CI_FLOPS = 200 << 20, 1 << 39
MAX_ELEMENTS = 1 << 60
"""Of a shape: PyTorch counts the bytes of a tensor in 63 bits."""


def smoke() -> list[Case]:
    """53 quick cases: every norm at a size that fills a GPU, at two modest ones and at an odd one; every recipe of
    quantize, dequantize and the forward norms; every function of linear layers; two pipelines."""
    shapes = (((4096, 4096), "bf16"), ((512, 2048), "bf16"), ((256, 8192), "fp16"), ((33, 1023), "fp32"))
    norms = [Case(function, shape, dtype) for function in NORMS for shape, dtype in shapes]
    return norms + norm_sweeps.smoke() + quantization_sweeps.smoke() + linear_sweeps.smoke() + pipeline_sweeps.smoke()


def llm() -> list[Case]:
    """188 cases at the sizes of well-known models: 60 norms, hidden 1024 to 32768, 2048 to 16384 tokens, mostly bf16;
    10 of norms with a quantized output; 28 of quantize and dequantize; 87 of linear layers; 3 pipelines."""
    listed = [Case(function, shape) for function in NORMS[:4] for shape in norm_sweeps.MODELS]
    return listed + [
        Case("rmsnorm_bwd_add", (8192, 3072)),
        Case("rmsnorm_bwd_add", (4096, 7168)),
        Case("rmsnorm_bwd_add", (16384, 4096)),
        Case("rmsnorm_fwd", (4096, 20480)),
        Case("rmsnorm_fwd", (8192, 6144), options=(("gamma_dtype", "fp32"),)),
        Case("layernorm_fwd", (8192, 10240), "fp16"),
        Case("rmsnorm_bwd", (2048, 28672)),
        Case("layernorm_bwd", (4096, 4096), "fp32"),
        *norm_sweeps.llm(),
        *quantization_sweeps.llm(),
        *linear_sweeps.llm(),
        *pipeline_sweeps.llm(),
    ]


def ci() -> list[Case]:
    """The cases of `llm` that move at most CI_BYTES and take at most CI_FLOPS, for a gate to wait for. What multiplies
    longer is at the power limit, where a run measures the clock that the GPU fell to."""
    return [case for case in llm() if _ends_soon(family_of(case.function).work(case))]


def unlisted() -> list[Case]:
    """Sizes between the well-known ones, with one row, few, many and very many: 100 norms and 84 of linear layers."""
    shapes = [(rows, hidden) for hidden in _UNLISTED_HIDDEN for rows in (1, 7, 2048, 50000)]
    return [Case(function, shape) for function in NORMS for shape in shapes] + linear_sweeps.unlisted()


linear, pipelines = linear_sweeps.linear, pipeline_sweeps.pipelines
quantize, norms, hidden = quantization_sweeps.quantize, norm_sweeps.norms, norm_sweeps.hidden


def edge() -> list[Case]:
    """Odd, tiny, wide and empty shapes; every mix of dtypes; layouts; ranks; options. Little memory each."""
    norms = [*_edge_shapes(), *_edge_dtypes(), *_edge_options(), *_edge_ranks()]
    return norms + norm_sweeps.edge() + quantization_sweeps.edge() + linear_sweeps.edge() + pipeline_sweeps.edge()


def everything() -> list[Case]:
    """All cases of all sweeps, each once."""
    sweeps = smoke, llm, unlisted, norms, hidden, quantize, linear, pipelines, edge
    return list(dict.fromkeys(case for sweep in sweeps for case in sweep()))


SWEEPS: dict[str, Callable[[], list[Case]]] = {
    "smoke": smoke, "ci": ci, "llm": llm, "unlisted": unlisted, "norms": norms, "quantize": quantize, "linear": linear,
    "pipelines": pipelines, "hidden": hidden, "edge": edge, "all": everything,
}
"""Name of a sweep -> the function that lists its cases."""


def sweep(name: str) -> list[Case]:
    """The cases of a named sweep; ValueError, with the names known, where there is none of that name."""
    return SWEEPS[known("sweep", name, SWEEPS)]()


def select(cases: Iterable[Case], *, function=None, dtype=None, recipe=None, shape=None,
           keyword=None) -> list[Case]:
    """The cases that pass every filter given, in their order.

    `function`, `dtype`, `recipe`: a name, several with commas, or a list of names. `keyword`: a regular
    expression searched in the case's name. `shape`: "4096,8192" or "4096x8192", or a list of such; a shape
    that none of the cases has gives new ones of that shape, for the functions, dtypes and recipes chosen: all
    functions, bf16 and all recipes that a function takes unless said otherwise. Errors: ValueError for an unknown
    name, a malformed shape or a malformed expression, and where no function takes the shape.
    """
    functions, dtypes = _names("function", function, FAMILIES), _names("dtype", dtype, DTYPES)
    recipes, pattern = _names("recipe", recipe, RECIPES), _pattern(keyword)
    kept = [case for case in cases
            if (not functions or case.function in functions) and (not dtypes or case.dtype in dtypes)
            and (not recipes or case.recipe in recipes)]
    if shape is not None:
        asked = [parse_shape(text) for text in ([shape] if isinstance(shape, str) else shape)]
        new = [each for each in asked if all(case.shape != each for case in kept)]
        kept = [case for case in kept if case.shape in asked] + _fitting(itertools.product(
            functions or FAMILIES, new, dtypes or ["bf16"], recipes or RECIPES))
    return [case for case in kept if pattern.search(case.name)]


def _fitting(given: Iterable[tuple]) -> list[Case]:
    """The cases of (function, shape, dtype, recipe) whose function takes that recipe. ValueError for a shape that the
    recipe does not take, where not one is left."""
    found, wrong = [], None
    for case in (Case(*each) for each in given):
        if case.recipe in family_of(case.function).recipes:
            try:
                found.append(accepted(case))
            except ValueError as error:
                wrong = wrong or ValueError(f"{case.name}: {error}")
    if wrong and not found:
        raise wrong
    return found


def parse_shape(text: str) -> tuple[int, ...]:
    """(4096, 8192) from "4096,8192" or "4096x8192"; ValueError unless all are counts, H is at least 1 (but may be 0 as
    the last of three, K), and a tensor can have that many elements."""
    parts = [part.strip() for part in re.split("[,x]", text)]
    if not all(part.isascii() and part.isdigit() for part in parts) or int(parts[-1]) < (len(parts) != 3):
        raise ValueError(f"shape {text!r} is not of the form 4096x8192, with a hidden size of at least 1")
    shape = tuple(map(int, parts))
    if math.prod(max(size, 1) for size in shape) > MAX_ELEMENTS:
        raise ValueError(f"shape {text!r} has more elements than a tensor can have")
    return shape


def _ends_soon(work: Work) -> bool:
    return work.bytes <= CI_BYTES and work.flops <= CI_FLOPS


def _names(kind: str, given, all_names) -> list[str]:
    names = [] if given is None else given.split(",") if isinstance(given, str) else list(given)
    return [known(kind, name.strip(), all_names) for name in names]


def _pattern(keyword: str | None) -> re.Pattern:
    try:
        return re.compile(keyword or "")
    except re.error as error:
        raise ValueError(f"keyword {keyword!r} is not a regular expression: {error}") from None


def _edge_shapes() -> Iterable[Case]:
    """Every hidden size with every function; row counts and dtypes take turns, within the memory allowed."""
    for i, hidden in enumerate(_EDGE_HIDDEN):
        fitting = [rows for rows in _EDGE_ROWS if rows * hidden <= _EDGE_ELEMENTS]
        for j, function in enumerate(NORMS):
            yield Case(function, (fitting[(i + j) % len(fitting)], hidden), list(DTYPES)[(i + 2 * j) % 3])


def _edge_dtypes() -> Iterable[Case]:
    """Every mix of dtypes: of x and gamma forward; of x, gamma and dz backward, where functions take
    turns."""
    mixes = [(x, gamma) for x in DTYPES for gamma in DTYPES if x != gamma]
    for function in NORMS[:2]:
        yield from (Case(function, (33, 1000), x, options=(("gamma_dtype", gamma),)) for x, gamma in mixes)
    triples = [(x, gamma, dz) for x in DTYPES for gamma in DTYPES for dz in DTYPES if not x == gamma == dz]
    for i, (x, gamma, dz) in enumerate(triples):
        options = (("gamma_dtype", gamma), ("dz_dtype", dz))
        yield Case(NORMS[2 + i % 3], (33, 1023 + i % 2), x, options=options)


def _edge_options() -> Iterable[Case]:
    """Layouts, zero-centered gamma, no bias, a margin of SMs, an eps that outweighs rounding."""
    for function in NORMS:
        for layout in ("strided", "offset", "expanded", "transposed"):
            yield Case(function, (65, 1024), options=(("layout", layout),))
            yield Case(function, (7, 333), "fp32", options=(("layout", layout),))
        yield Case(function, (33, 2048), options=(("zero_centered_gamma", True),))
        mixed = (("gamma_dtype", "fp32"), ("zero_centered_gamma", True))
        yield Case(function, (33, 999), "fp16", options=mixed)
        yield Case(function, (513, 1024), options=(("sm_margin", 16),))
    for hidden in (1024, 31):
        yield Case("layernorm_fwd", (33, hidden), options=(("bias", False),))
    for function in NORMS[:2]:
        yield Case(function, (65, 1024), options=(("eps", 0.25),))


def _edge_ranks() -> Iterable[Case]:
    """One dimension, three, four; no rows at all."""
    for function in NORMS:
        for shape in ((1024,), (3, 5, 2048), (2, 1, 3, 129), (0, 4096), (2, 0, 7)):
            yield Case(function, shape)
