"""Train a small transformer of scaled-residual blocks on synthetic text, on each table, and compare the losses.

A block is x + s·Attention(norm(x)), then x + s·MLP(norm(x)), with s = 1/√(2·blocks). What lies between attention and
activation are pipelines of the op graph, whose last three operations are one product that is scaled and added to a
copy of x in place: x itself is what the norm before needs for its backward. Beside the tables the same model runs in
plain PyTorch.
"""

import contextlib
import math
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import nn
from torch.nn import functional

import reference
from reference import ops, recipes

RECIPES = {"none": None, "fp8_delayed": recipes.DelayedScaling(), "fp8_current": recipes.Float8CurrentScaling(),
           "mxfp8": recipes.MXFP8BlockScaling(), "nvfp4": recipes.NVFP4BlockScaling()}
VOCABULARY, LENGTH, BATCH = 64, 64, 8
WINDOW = 20
"""Steps whose mean losses are compared."""


@dataclass(frozen=True)
class Size:
    """Of the model: heads divide hidden."""

    hidden: int = 64
    heads: int = 4
    blocks: int = 2


class Block(nn.Module):
    """One block on one table; without a table, the same operations in plain PyTorch."""

    def __init__(self, size: Size, kernels: ModuleType | None):
        super().__init__()
        hidden, self.size, self.plain = size.hidden, size, kernels is None
        scale, table = 1 / math.sqrt(2 * size.blocks), kernels or reference

        def add_scaled():
            return ops.ConstantScale(scale), ops.AddExtraInput(in_place=True)

        self.project = ops.Sequential(ops.RMSNorm(hidden), ops.BasicLinear(hidden, 3 * hidden), kernels=table)
        self.mix = ops.Sequential(ops.BasicLinear(hidden, hidden), *add_scaled(), kernels=table)
        self.mlp = ops.Sequential(ops.RMSNorm(hidden), ops.BasicLinear(hidden, 4 * hidden), nn.GELU(),
                                  ops.BasicLinear(4 * hidden, hidden), *add_scaled(), kernels=table)

    def forward(self, x):
        """(batch, length, hidden), the same."""
        run = _plain if self.plain else lambda pipeline, *tensors: pipeline(*tensors)
        x = run(self.mix, self._attention(run(self.project, x)), x.clone())
        return run(self.mlp, x, x.clone())

    def _attention(self, qkv):
        heads = (*qkv.shape[:-1], self.size.heads, -1)
        q, k, v = (each.reshape(heads).transpose(1, 2) for each in qkv.chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).flatten(2)


class Model(nn.Module):
    """Characters to logits of the next one."""

    def __init__(self, size: Size, kernels: ModuleType | None):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, size.hidden)
        self.position = nn.Parameter(torch.randn(LENGTH, size.hidden) * 0.1)
        self.blocks = nn.ModuleList(Block(size, kernels) for _ in range(size.blocks))

    def forward(self, text):
        """(batch, length) -> (batch, length, VOCABULARY), the embedding being the last layer, too."""
        x = self.embedding(text) + self.position
        for block in self.blocks:
            x = block(x)
        return functional.rms_norm(x, x.shape[-1:]) @ self.embedding.weight.t() / math.sqrt(x.shape[-1])


def _plain(pipeline, x, *extra_inputs):
    """The pipeline's operations as PyTorch has them."""
    extra = list(extra_inputs)
    for op in pipeline:
        if isinstance(op, ops.RMSNorm):
            x = functional.rms_norm(x, x.shape[-1:], op.weight, op.eps)
        elif isinstance(op, ops.BasicLinear):
            x = functional.linear(x, op.weight)
        elif isinstance(op, ops.ConstantScale):
            x = x * op.scale
        else:
            x = x + extra.pop() if isinstance(op, ops.AddExtraInput) else op(x)
    return x


def text(steps: int, seed: int):
    """Batches (steps, BATCH, LENGTH + 1) of a chain in which two characters make some of the next ones likely."""
    source = torch.Generator().manual_seed(seed)
    likely = torch.rand((VOCABULARY, VOCABULARY), generator=source).pow(64)
    likely /= likely.sum(-1, keepdim=True)
    found = [torch.randint(VOCABULARY, (steps * BATCH,), generator=source)]
    for place in range(LENGTH):
        before = found[-1] if place % 4 else (found[-1] + found[max(place - 3, 0)]) % VOCABULARY
        found.append(torch.multinomial(likely[before], 1, generator=source).flatten())
    return torch.stack(found, -1).view(steps, BATCH, LENGTH + 1)


def train(kernels: ModuleType | None, *, steps: int, recipe=None, device="cpu", size: Size = Size(), seed: int = 0):
    """The loss of each step, on one table, or in plain PyTorch where it is None."""
    torch.manual_seed(seed)
    model = Model(size, kernels).to(device, torch.float32 if device == "cpu" and recipe is None else torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for batch in text(steps, seed).to(device):
        with recipes.autocast(recipe is not None, recipe=recipe):
            logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


@contextlib.contextmanager
def one_thread():
    """Tensors on the CPU are so small that threads would wait for one another most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def windows(losses):
    """The mean loss of each WINDOW steps."""
    return [sum(part) / len(part) for part in (losses[i:i + WINDOW] for i in range(0, len(losses), WINDOW))]


def agree(curves: dict[str, list[float]], within: float) -> tuple[bool, float]:
    """Whether each mean of each curve is as near to the first's as `within` of it; the largest distance."""
    first, *others = (windows(losses) for losses in curves.values())
    distances = [abs(a - b) / a for other in others for a, b in zip(first, other)]
    return all(distance <= within for distance in distances), max(distances, default=0.0)


def run(steps: int = 200, recipe: str = "none", tables: str = "all") -> int:
    """Train on every table that runs here, print the curves, and say whether they agree: 0, or 1 where not."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    known = {"reference": reference, "torch": None}
    if device == "cuda":
        import optimized
        known = {"reference": reference, "optimized": optimized, "torch": None}
    names = list(known) if tables == "all" else [tables, "torch"]
    if tables not in ("all", *known):
        print(f"The {tables} table needs a CUDA GPU, and none was found.")
        return 1
    print(f"{steps} steps of {BATCH} texts of {LENGTH} characters on {device}, recipe {recipe}", flush=True)
    with one_thread():
        curves = {name: train(known[name], steps=steps, recipe=RECIPES[recipe] if known[name] else None, device=device)
                  for name in names}
    print("steps".rjust(10), *(name.rjust(10) for name in names))
    for index, means in enumerate(zip(*map(windows, curves.values()))):
        last = min((index + 1) * WINDOW, steps)
        print(f"{index * WINDOW + 1}–{last}".rjust(10), *(f"{mean:10.4f}" for mean in means))
    same, distance = agree(curves, 0.02 if recipe == "none" else 0.05)
    learnt = steps < WINDOW or all(losses[-1] < 0.9 * losses[0] for losses in curves.values())
    print(f"The losses {'agree' if same else 'do not agree'}: at most {100 * distance:.2f} % apart."
          + ("" if learnt else " They do not fall."))
    return 0 if same and learnt else 1
