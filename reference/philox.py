"""The random bits of stochastic rounding: Philox-4×32-10, a function of (seed, offset, element index) alone.

One call of the generator serves 16 elements: its 16 output bytes, in little-endian order of words and bytes, are the
8 random bits of the elements 16·g … 16·g + 15, element 16·g + 4·w + b having bits 8·b … 8·b + 7 of output word w.

    key     = (seed mod 2³², ⌊seed/2³²⌋)
    counter = (g mod 2³², ⌊g/2³²⌋, offset mod 2³², ⌊offset/2³²⌋ + 2³¹·columnwise)

The index of an element counts in row-major order: of the (rows, cols) matrix for rowwise data, of the transposed
(cols, rows) matrix, with columnwise = 1, for columnwise data. With blocks of 16, one call serves one block.

Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
"""

import torch

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF


def philox(counter, key):
    """Philox-4×32-10: ten rounds of c ← (hi(M₁·c₂) ^ c₁ ^ k₀, lo(M₁·c₂), hi(M₀·c₀) ^ c₃ ^ k₁, lo(M₀·c₀)).

    Shapes: counter four int64 tensors of 32-bit words, key two ints -> four int64 tensors of 32-bit words.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = _product(c0, _MULTIPLIERS[0])
        high1, low1 = _product(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3


def rounding_bits(shape, *, seed, offset, columnwise, device):
    """The 8 random bits of each element of a matrix of `shape`, (rows, cols) or its transpose, in whole groups of 16.

    Shapes: -> `shape`, uint8. Units: seed a 64-bit, offset a 63-bit unsigned integer.
    """
    group = torch.arange(shape[0] * shape[1] // 16, device=device)
    return group_bits(group, seed=seed, offset=offset, columnwise=columnwise).reshape(shape)


def group_bits(group, *, seed, offset, columnwise):
    """The 8 random bits of each of the 16 elements of a group. Shapes: (groups,), int64 -> (groups, 16), uint8."""
    constant = [torch.full_like(group, word) for word in (offset & _WORD, offset >> 32 | columnwise << 31)]
    words = philox((group & _WORD, group >> 32, *constant), (seed & _WORD, seed >> 32))
    shifts = torch.arange(0, 32, 8, device=group.device)
    return (torch.stack(words, -1)[..., None] >> shifts & 255).to(torch.uint8).flatten(1)


def _product(word, multiplier):
    """High and low word of a 64-bit product, from two products that fit into 63 bits."""
    low, high = (word & 0xFFFF) * multiplier, (word >> 16) * multiplier
    return (high + (low >> 16)) >> 16, (low + ((high & 0xFFFF) << 16)) & _WORD
