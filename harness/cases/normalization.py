"""LayerNorm and RMSNorm, forward and backward: inputs, work and oracle."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from harness import oracle
from harness.cases import recipes
from harness.cases import values as of
from harness.cases.base import DTYPES, FUSED, IN_TWO, RECIPES, Call, Case, Common, Expected, Work, known

CHUNK = 1 << 23
"""Elements of a stretch: the float64 temporaries of a quantized output take about 1 GB."""

DEFAULT_EPS = 1e-5
_ARITHMETIC = 2.0**-18  # what float32 arithmetic on a row may be off by, of the row's unit
_OPTIONS = ("bias", "dz_dtype", "eps", "gamma_dtype", "layout", "sm_margin", "zero_centered_gamma")
_X_KINDS = ("zero_row", "constant_row", "largest", "subnormals", "outlier", "nan", "inf")
_DZ_KINDS = {"dz_zero_row": "zero_row", "dz_largest": "largest_product", "dz_nan": "nan", "dz_inf": "inf"}


class _Norm(Common):
    """What forward and backward share. `centered` is LayerNorm; `flops` is arithmetic per element of the
    input."""

    def __init__(self, outputs: tuple[str | None, ...], centered: bool, flops: int):
        self.outputs, self.centered, self.flops = outputs, centered, flops

    recipes, allowance, options = ("none",), None, _OPTIONS

    def check(self, case: Case) -> None:
        """ValueError where the function does not take the recipe, an option, or the shape."""
        if case.recipe not in self.recipes:
            raise ValueError(f"{case.function} takes no recipe but none")
        recipes.check(case, self.options)

    def in_place(self, call: Call) -> dict[str, Tensor]:
        """The amax of delayed scaling."""
        return recipes.amax_of(call)

    def oracle(self, call: Call) -> dict[str, Tensor]:
        """The outputs whole, float64, keyed by name; rows are (rows, H) whatever the rank of the input."""
        parts = {}
        for part in self.expected(call):
            parts.setdefault(part.name, []).append(part.value)
        return {name: torch.cat(stretches) for name, stretches in parts.items()}

    def arithmetic(self, call: Call) -> int:
        """`flops` for each element of the input."""
        return self.flops * self._x(call).numel()

    def _inputs(self, case: Case, device, seed: int):
        """Two functions that draw a tensor shaped like the input, and one shaped like gamma."""
        layout, source = case.option("layout", "contiguous"), of.generator(device, seed)

        def activation(dtype: str, spoiled: str | None = None) -> Tensor:
            drawn = of.drawn_shape(case.shape, layout)
            tensor = of.normal(drawn, DTYPES[dtype], device, source, outliers=True)
            if spoiled:
                of.spoil(_rows(tensor), spoiled)
            return of.lay_out(tensor, layout, case.shape)

        def weight(center: float) -> Tensor:
            dtype = DTYPES[case.option("gamma_dtype", case.dtype)]
            tensor = of.normal((case.hidden,), dtype, device, source).mul_(0.2).add_(center)
            return of.lay_out(tensor, layout, tensor.shape)

        return activation, weight

    def _keywords(self, case: Case) -> dict:
        names = ("sm_margin", "zero_centered_gamma")
        return {name: case.option(name) for name in names if case.option(name) is not None}


class Forward(_Norm):
    """layernorm_fwd(input, weight, bias, eps) -> y, mu, rsigma; rmsnorm_fwd(input, weight, eps) -> y, None,
    rsigma. With a recipe, y is what its quantizer makes of it; `path` then is the one that is forced."""

    recipes, allowance, options = RECIPES, FUSED, (*_OPTIONS, "path")

    def check(self, case: Case) -> None:
        """ValueError where the recipe does not take the dtype, an option, the path or the shape."""
        super().check(case)
        recipes.check_flags(case)
        path = case.option("path", "unfused")
        if case.recipe == "none" and case.option("path"):
            raise ValueError("without a recipe there is no path to force")
        if path not in ("unfused", recipes.fused_path(case), recipes.fused_path(case) + IN_TWO):
            raise ValueError(f"recipe {case.recipe} cannot take the path {path}")

    def adversarial(self, case: Case) -> tuple[str, ...]:
        """Kinds of values for the input, and of state for its quantizer; none where it has no rows."""
        return _X_KINDS + recipes.STATES.get(case.recipe, ()) if math.prod(case.shape) else ()

    def make(self, case: Case, device, seed: int, values: str = "normal") -> Call:
        """Inputs of `case` on `device` from `seed`, with adversarial `values` in x where they are asked
        for."""
        self.check(case)
        states = recipes.STATES.get(case.recipe, ())
        known("kind of values", values, ("normal", *_X_KINDS, *states))
        activation, weight = self._inputs(case, device, seed)
        x, gamma = activation(case.dtype, values if values in _X_KINDS else None), weight(_center(case))
        bias = (weight(0.0) if case.option("bias", True) else None,) if self.centered else ()
        keywords = self._keywords(case)
        if case.recipe != "none":
            state = values if values in states else "normal"
            keywords["quantizer"] = recipes.quantizer(case, device, of.generator(device, seed + 1), seed, state)
        return Call((x, gamma, *bias, case.option("eps", DEFAULT_EPS)), keywords)

    def expected(self, call: Call) -> Iterator[Expected]:
        """y, mu and rsigma, a stretch of rows at a time. A quantized y may have been rounded to input's dtype before,
        unless scaling is delayed."""
        x, gamma, *bias, eps = call.args
        gain, bias = _gain(call, gamma), bias[0].double() if bias and bias[0] is not None else None
        for where in _stretches(x):
            part = oracle.forward(_rows(x)[where].double(), gain, bias, eps, self.centered)
            for name, (value, unit) in part.items():
                slack = self._slack(call, value, unit) if name == "y" else None
                yield Expected(name, where, value, unit, slack)

    def _slack(self, call: Call, value: Tensor, unit: Tensor) -> Tensor | None:
        quantizer = recipes.quantizer_of(call)
        if quantizer is None:
            return None
        rounding = 0.0 if recipes.amax_of(call) else torch.finfo(call.args[0].dtype).eps / 2
        return rounding * value.abs().nan_to_num(posinf=0.0) + _ARITHMETIC * unit

    def passes(self, case: Case, l2_bytes: int) -> int:
        """Bytes that must cross the memory's pins: the input twice where it is read twice and does not fit in L2."""
        size = math.prod(case.shape) * DTYPES[case.dtype].itemsize
        return self.work(case).bytes + (size if recipes.seen_twice(case) and size > l2_bytes else 0)

    def work(self, case: Case) -> Work:
        """Read x, gamma, beta and the quantizer's state; write y, float32 statistics and the amax."""
        size, weight_size = _size(case, "dtype"), _size(case, "gamma_dtype")
        weights = 2 if self.centered and case.option("bias", True) else 1
        read = _distinct(case) * size + weights * case.hidden * weight_size
        y = math.prod(case.shape) * size if case.recipe == "none" else recipes.stored_bytes(case)
        state_read, state_written = recipes.state_bytes(case)
        written = y + case.rows * 4 * (2 if self.centered else 1) + state_written
        return Work(read + state_read, written, self.flops * math.prod(case.shape))

    def _x(self, call: Call) -> Tensor:
        return call.args[0]


class Backward(_Norm):
    """layernorm_bwd(dz, x, mu, rsigma, gamma), rmsnorm_bwd(dz, x, rsigma, gamma), rmsnorm_bwd_add(dz, x, add,
    …)."""

    def __init__(self, outputs, centered: bool, flops: int, adds: bool = False):
        super().__init__(outputs, centered, flops)
        self.adds = adds

    def adversarial(self, case: Case) -> tuple[str, ...]:
        """Kinds of values for x, and those for dz; none where there are no rows."""
        return (*_X_KINDS, *_DZ_KINDS) if math.prod(case.shape) else ()

    def make(self, case: Case, device, seed: int, values: str = "normal") -> Call:
        """Inputs of `case`; mu and rsigma are what float32 arithmetic makes of x, as the forward pass saves
        them."""
        known("kind of values", values, ("normal", *_X_KINDS, *_DZ_KINDS))
        activation, weight = self._inputs(case, device, seed)
        x = activation(case.dtype, values if values in _X_KINDS else None)
        dz = activation(case.option("dz_dtype", case.dtype), _DZ_KINDS.get(values))
        add = (activation(case.dtype),) if self.adds else ()
        layout = case.option("layout", "contiguous")
        statistics = self._statistics(x, case.option("eps", DEFAULT_EPS))
        saved = (of.lay_out(each, layout, each.shape) for each in statistics)
        return Call((dz, x, *add, *saved, weight(_center(case))), self._keywords(case))

    def expected(self, call: Call) -> Iterator[Expected]:
        """dx a stretch of rows at a time, then the sums over all rows."""
        dz, x, *between, gamma = call.args
        gain = _gain(call, gamma)
        add = between.pop(0) if self.adds else None
        rsigma, mu = between[-1], between[0] if self.centered else None
        dgamma, dbeta = oracle.ColumnSum(gain), oracle.ColumnSum(gain)
        for where in _stretches(x):
            grad, scale = _rows(dz)[where].double(), _column(rsigma, where)
            normalized = oracle.normalize(_rows(x)[where].double(), _column(mu, where), scale)
            dx = oracle.backward(grad, normalized, scale, gain, self.centered)
            yield Expected("dx", where, *(oracle.plus(*dx, _rows(add)[where].double()) if self.adds else dx))
            dgamma.add(grad * normalized)
            dbeta.add(grad)
        yield Expected("dgamma", slice(None), *dgamma.result())
        if self.centered:
            yield Expected("dbeta", slice(None), *dbeta.result())

    def work(self, case: Case) -> Work:
        """Read dz, x, add, the statistics and gamma; write dx, dgamma and dbeta."""
        size, weight_size = _size(case, "dtype"), _size(case, "gamma_dtype")
        rows = _size(case, "dz_dtype") + size * (2 if self.adds else 1)
        statistics, sums = (2, 2) if self.centered else (1, 1)
        read = _distinct(case) * rows + statistics * case.rows * 4 + case.hidden * weight_size
        written = math.prod(case.shape) * size + sums * case.hidden * weight_size
        return Work(read, written, self.flops * math.prod(case.shape))

    def _x(self, call: Call) -> Tensor:
        return call.args[1]

    def _statistics(self, x: Tensor, eps: float) -> list[Tensor]:
        """mu, where centered, and rsigma of every row: float32, (rows,)."""
        parts = []
        for where in _stretches(x):
            rows = _rows(x)[where].float().contiguous()  # so that the layout leaves no trace in the sums
            mu = rows[:, :1] + (rows - rows[:, :1]).mean(-1, keepdim=True) if self.centered else 0.0
            rsigma = 1 / ((rows - mu).square().mean(-1) + eps).sqrt()
            parts.append((mu.flatten(), rsigma) if self.centered else (rsigma,))
        return [torch.cat(columns) for columns in zip(*parts)]


FAMILIES = {
    "layernorm_fwd": Forward(("y", "mu", "rsigma"), centered=True, flops=9),
    "rmsnorm_fwd": Forward(("y", None, "rsigma"), centered=False, flops=4),
    "layernorm_bwd": Backward(("dx", "dgamma", "dbeta"), centered=True, flops=13),
    "rmsnorm_bwd": Backward(("dx", "dgamma"), centered=False, flops=9),
    "rmsnorm_bwd_add": Backward(("dx", "dgamma"), centered=False, flops=10, adds=True),
}


def _rows(tensor: Tensor) -> Tensor:
    """(..., H) as (rows, H), also where there are no rows."""
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])


def _stretches(x: Tensor) -> Iterator[slice]:
    """Slices that cover the rows of x, each of about CHUNK elements; one empty slice where there are none."""
    rows, hidden = math.prod(x.shape[:-1]), x.shape[-1]
    step = max(1, CHUNK // hidden)
    for start in range(0, max(rows, 1), step):
        yield slice(start, min(start + step, rows))


def _column(statistics: Tensor | None, where: slice) -> Tensor | None:
    return None if statistics is None else statistics.reshape(-1)[where].double().unsqueeze(-1)


def _gain(call: Call, gamma: Tensor) -> Tensor:
    gain = gamma.double().flatten()
    return 1 + gain if call.kwargs.get("zero_centered_gamma") else gain


def _center(case: Case) -> float:
    """What gamma lies about, so that the gain lies about 1."""
    return 0.0 if case.option("zero_centered_gamma", False) else 1.0


def _size(case: Case, key: str) -> int:
    """Bytes of an element of the dtype that `key` names."""
    return DTYPES[case.option(key, case.dtype)].itemsize


def _distinct(case: Case) -> int:
    """How many different elements a tensor shaped like the input has in memory."""
    return math.prod(of.drawn_shape(case.shape, case.option("layout", "contiguous")))
