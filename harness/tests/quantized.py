"""Inputs that are hard to quantize, and what quantization gives by numpy and ml_dtypes, block after block.

Nothing here uses `reference`: float32 arithmetic is numpy's, casts are those of ml_dtypes, random bits are made with
Python's integers.
"""

import functools

import numpy as np
import torch

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
BLOCK = {"mxfp8": 32, "nvfp4": 16}
FLT_MAX = np.finfo(np.float32).max
SIGNS = np.float32([1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1])


def hard_inputs(shape, dtype, seed=0):
    """Tensors by name: random, and those that break what was not thought through."""
    generator = torch.Generator().manual_seed(seed)
    info = torch.finfo(dtype)
    normal = torch.randn(shape, generator=generator)
    exponents = torch.randint(-30, 30, shape, generator=generator).float()
    hit = torch.rand(shape, generator=generator) < 0.02
    smallest = torch.randint(-9, 10, shape, generator=generator) * (info.tiny * info.eps)
    made = {
        "normal": normal,
        "heavy": normal / torch.randn(shape, generator=generator).abs().clamp(min=1e-3),
        "wide": normal * 2.0 ** (exponents / (2 if dtype == torch.float16 else 1)),
        "zero": torch.zeros(shape),
        "minus zero": torch.full(shape, -0.0),
        "mostly zero": torch.where(hit, normal, 0.0),
        "largest": torch.full(shape, info.max) * normal.sign(),
        "one largest": _with_one(normal, info.max),
        "subnormal": smallest,
        "one outlier": _with_one(normal * 1e-3, 3e4),
        "nan": torch.where(hit, torch.nan, normal),
        "one nan": _with_one(normal, torch.nan),
        "all nan": torch.full(shape, -torch.nan),
        "inf": torch.where(hit, normal.sign() * torch.inf, normal),
        "inf and nan": torch.where(hit, torch.where(normal > 0, torch.inf, torch.nan), normal),
        "ties": torch.randint(-24, 25, shape, generator=generator) / 4,
        "channel outliers": normal * torch.where(torch.arange(shape[-1]) % 37 == 5, 100.0, 1.0),
    }
    return {name: values.to(dtype) for name, values in made.items()}


def _with_one(values, value):
    """One element in the middle replaced."""
    values = values.clone()
    if values.numel():
        values.view(-1)[values.numel() // 2] = value
    return values


def near_powers(dtype):
    """Every power of two of the dtype, subnormal ones included, and its two neighbours, largest first."""
    info = torch.finfo(dtype)
    bits = {torch.float32: torch.int32}.get(dtype, torch.int16)
    powers = 2.0 ** torch.arange(int(np.log2(info.tiny * info.eps)), int(np.log2(info.max)) + 1, dtype=torch.float64)
    codes = powers.to(dtype).view(bits)
    values = torch.cat([codes - 1, codes, codes + 1]).view(dtype)
    return values[values.isfinite() & (values > 0)]


def fp8(values, dtype):
    """float32 numpy values as bytes of an FP8 format."""
    largest, oracle = _oracle(dtype)
    with np.errstate(invalid="ignore"):
        codes = np.clip(np.where(np.isnan(values), 0, values), -largest, largest).astype(oracle).view(np.uint8)
    return np.where(np.isnan(values), np.uint8(0x7F), codes)


def e2m1(values):
    """float32 numpy values as E2M1 codes."""
    import ml_dtypes

    codes = np.clip(np.where(np.isnan(values), 0, values), -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    return np.where(np.isnan(values), np.uint8(7), codes)


def e2m1_stochastic(values, bits):
    """float32 numpy values as E2M1 codes, by the floor of |v| + step·bits/256 on the grid."""
    grid = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    v = np.abs(values)
    step = np.select([v < 2, v < 4], [np.float32(0.5), np.float32(1)], np.float32(2))
    t = v + step * (bits.astype(np.float32) / np.float32(256))
    codes = np.searchsorted(grid, t, side="right").astype(np.uint8) - 1 + 8 * np.signbit(values)
    return np.where(np.isnan(values), 7, codes).astype(np.uint8)


def _oracle(dtype):
    import ml_dtypes

    if dtype == torch.float8_e4m3fn:
        return np.float32(448), ml_dtypes.float8_e4m3fn
    return np.float32(57344), ml_dtypes.float8_e5m2


def philox_block(counter, key):
    """Philox-4×32-10 in Python's integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 % 2**32, (p0 >> 32) ^ c[3] ^ k[1], p0 % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return tuple(c)


@functools.lru_cache(maxsize=None)
def random_byte(index, seed, offset, columnwise):
    """The random bits of one element."""
    group = index // 16
    counter = (group % 2**32, group >> 32, offset % 2**32, (offset >> 32) + 2**31 * columnwise)
    word = philox_block(counter, (seed % 2**32, seed >> 32))[index % 16 // 4]
    return word >> 8 * (index % 4) & 255


def amax(values):
    """max|values|, NaN where there is one, 0 over nothing."""
    return np.float32(0) if values.size == 0 else np.float32(np.max(np.abs(values)))


def padded(scales):
    """Zeros up to multiples of 128 and 4."""
    rows, blocks = scales.shape
    return np.pad(scales, ((0, -rows % 128), (0, -blocks % 4)))


def mxfp8_rows(y, dtype):
    """(bytes, padded scale codes) of a float32 matrix with blocks along its rows."""
    data, scales = np.zeros(y.shape, np.uint8), np.zeros((y.shape[0], y.shape[1] // 32), np.uint8)
    powers = 2.0 ** (np.arange(255) - 127.0)
    for row, block in np.ndindex(scales.shape):
        part = y[row, 32 * block : 32 * block + 32]
        wanted = amax(part) * (np.float32(1) / _oracle(dtype)[0])
        code = 255 if np.isnan(wanted) else min(int(np.searchsorted(powers, np.float64(wanted))), 254)
        factor = np.float32(np.nan if code == 255 else 2.0 ** (127 - code))
        with np.errstate(all="ignore"):
            data[row, 32 * block : 32 * block + 32] = fp8(part * factor, dtype)
        scales[row, block] = code
    return data, padded(scales)


def nvfp4_rows(y, bits=None, square=False):
    """(packed codes, padded scale bytes, amax) of a float32 matrix with blocks along its rows."""
    one, rows, blocks = np.float32(1), y.shape[0], y.shape[1] // 16
    codes, scales, biggest = np.zeros(y.shape, np.uint8), np.zeros((rows, blocks), np.uint8), amax(y)
    with np.errstate(all="ignore"):
        encode = np.float32(2688) / biggest
        encode = one if np.isnan(encode) or biggest == 0 or encode == 0 else min(encode, FLT_MAX)
        for row, block in np.ndindex(rows, blocks):
            part = slice(16 * block, 16 * block + 16)
            seen = y[row - row % 16 : row - row % 16 + 16, part] if square else y[row, part]
            scale = fp8(np.minimum(amax(seen) * (encode * (one / np.float32(6))), FLT_MAX), torch.float8_e4m3fn)
            decoded = np.atleast_1d(scale).view(_oracle(torch.float8_e4m3fn)[1]).astype(np.float32)[0]
            scaled = y[row, part] * np.minimum(one / (decoded * (one / encode)), FLT_MAX)
            codes[row, part] = e2m1(scaled) if bits is None else e2m1_stochastic(scaled, bits[row, part])
            scales[row, block] = scale
    return codes[:, ::2] + 16 * codes[:, 1::2], padded(scales), biggest


def hadamard_rows(y):
    """Each 16 elements of a row times diag(signs)·H₁₆/4, in float32 as four butterflies, rounded to bfloat16."""
    v = [y[:, i::16] * SIGNS[i] for i in range(16)]
    with np.errstate(all="ignore"):
        for stride in (1, 2, 4, 8):
            v = [v[i ^ stride] - v[i] if i & stride else v[i] + v[i ^ stride] for i in range(16)]
        wide = np.stack([part * np.float32(0.25) for part in v], -1).reshape(y.shape)
    return torch.from_numpy(wide).bfloat16().float().numpy()
