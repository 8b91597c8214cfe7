"""What the normalization functions give in exact arithmetic, as near as float64 comes.

Written from the formulas alone: neither from `reference` nor with `torch.nn.functional`. Every function takes
rows (rows, H) that already are float64 and returns, for each output, its value and its unit.

A unit is the magnitude that an error of that output is measured against. It is the largest |value| of the
row; where a formula cancels, so that the terms are larger than what remains of them, it is the largest term,
because no arithmetic that rounds the terms can do better:

- y: the row's largest |y|, or |mu|·rsigma·max|g|, if that is larger;
- dx: the row's largest |dx|, or rsigma·max|w|, or max|add|;
- mu: the larger of |mu| and 1/rsigma, the row's spread; rsigma: itself;
- dgamma, dbeta: per column, the larger of |sum| and the root of the sum of the squared terms, which is what a
  sum of that many terms with random signs comes to.
"""

from torch import Tensor


def forward(x: Tensor, gain: Tensor, bias: Tensor | None, eps: float, centered: bool) -> dict:
    """y, rsigma and, when `centered` (LayerNorm), mu.

    mu = x₀ + mean(x − x₀), or 0; rsigma = 1/√(mean((x − mu)²) + eps); y = (x − mu)·rsigma·gain + bias.
    Shapes: x (rows, H), gain and bias (H,) -> {"y": (rows, H), "mu", "rsigma": (rows,)}, each a pair value,
    unit.
    """
    first = x[:, :1]
    mu = first + (x - first).mean(-1, keepdim=True) if centered else x.new_zeros(len(x), 1)
    deviation = x - mu
    rsigma = 1 / (deviation.square().mean(-1, keepdim=True) + eps).sqrt()
    y = deviation * rsigma * gain
    if bias is not None:
        y = y + bias
    unit = _largest(y).maximum(mu.abs() * rsigma * gain.abs().max())
    outputs = {"y": (y, unit), "rsigma": (rsigma.flatten(), rsigma.abs().flatten())}
    if centered:
        outputs["mu"] = (mu.flatten(), mu.abs().maximum(1 / rsigma).flatten())
    return outputs


def backward(grad: Tensor, normalized: Tensor, rsigma: Tensor, gain: Tensor, centered: bool) -> dict:
    """dx before anything is added to it, and its unit.

    w = grad·gain; dx = rsigma·(w − mean(w) − x̂·mean(w·x̂)), without mean(w) unless `centered`.
    Shapes: grad and normalized (= x̂) (rows, H), rsigma (rows, 1), gain (H,) -> a pair (rows, H), (rows, 1).
    """
    weighted = grad * gain
    rest = weighted - weighted.mean(-1, keepdim=True) if centered else weighted
    dx = rsigma * (rest - normalized * (weighted * normalized).mean(-1, keepdim=True))
    return dx, _largest(dx).maximum(rsigma.abs() * _largest(weighted))


def normalize(x: Tensor, mu: Tensor | None, rsigma: Tensor) -> Tensor:
    """x̂ = (x − mu)·rsigma from the given statistics, (rows, 1) each; without mu, x·rsigma."""
    return x * rsigma if mu is None else (x - mu) * rsigma


def plus(dx: Tensor, unit: Tensor, add: Tensor) -> tuple[Tensor, Tensor]:
    """dx + add, and the larger of the units of the two."""
    total = dx + add
    return total, unit.maximum(_largest(add)).maximum(_largest(total))


class ColumnSum:
    """Σ over rows, gathered over stretches of rows, with the unit of such a sum."""

    def __init__(self, gain: Tensor):
        self.total, self.squares = gain.new_zeros(gain.shape), gain.new_zeros(gain.shape)

    def add(self, terms: Tensor) -> None:
        """Take in terms (rows, H)."""
        self.total += terms.sum(0)
        self.squares += terms.square().sum(0)

    def result(self) -> tuple[Tensor, Tensor]:
        """The sums (H,) and their units (H,)."""
        return self.total, self.total.abs().maximum(self.squares.sqrt())


def _largest(rows: Tensor) -> Tensor:
    """The largest finite magnitude of each row, (rows, 1)."""
    return rows.abs().nan_to_num(nan=0.0, posinf=0.0).amax(-1, keepdim=True)
