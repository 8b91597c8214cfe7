"""Encoding and decoding of every format, against ml_dtypes and against the definitions."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch

from reference import formats
from reference.formats import E4M3, E5M2

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")

ORACLE = {E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2}
BYTES = np.arange(256, dtype=np.uint8)
POWERS = 2.0 ** (np.arange(255) - 127.0)  # what E8M0's codes 0…254 stand for, in float64
GRIDS = [np.unique(BYTES.view(oracle).astype(np.float32)) for oracle in ORACLE.values()]
GRIDS.append(np.unique(BYTES[:16].view(ml_dtypes.float4_e2m1fn).astype(np.float32)))


def fp8_bytes(values, dtype):
    """The oracle: saturate, round as ml_dtypes does, and put 0x7F where the value is NaN."""
    largest = np.float32(formats.LARGEST[dtype])
    codes = np.clip(np.nan_to_num(values, nan=0, posinf=np.inf, neginf=-np.inf), -largest, largest)
    codes = codes.astype(ORACLE[dtype]).view(np.uint8)
    return np.where(np.isnan(values), 0x7F, codes)


def e2m1_codes(values):
    codes = np.clip(np.nan_to_num(values, nan=0), -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    return np.where(np.isnan(values), 7, codes)


def every(dtype):
    """Every value of a 16-bit dtype, as float32."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype).float().numpy()


def neighbourhood(grid):
    """Every value of a grid, every midpoint, what lies beyond the last, and the float32 neighbours of all of them."""
    grid = grid[np.isfinite(grid)]
    step = grid[-1] - grid[-2]
    beyond = np.float32([grid[-1] + step / 2, grid[-1] + step, 2 * grid[-1], np.finfo(np.float32).max, np.inf])
    points = np.concatenate((grid, (grid[1:] + grid[:-1]) / 2, beyond, -beyond, np.float32([-0.0, np.nan, -np.nan])))
    with np.errstate(over="ignore"):
        return np.concatenate([points, *(np.nextafter(points, np.float32(to)) for to in (-np.inf, np.inf))])


VALUES = {
    "float16": every(torch.float16),
    "bfloat16": every(torch.bfloat16),
    "boundaries": np.concatenate([neighbourhood(grid) for grid in GRIDS]),
    "subnormals": np.arange(-2000, 2001, dtype=np.float32) * np.float32(2.0**-149),
    "random": np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32),
}


@pytest.mark.parametrize("dtype", formats.FP8, ids=str)
def test_decode_fp8(dtype):
    ours = torch.from_numpy(BYTES).view(dtype).float().numpy()
    np.testing.assert_array_equal(ours, BYTES.view(ORACLE[dtype]).astype(np.float32))
    assert np.signbit(ours[128]) and ours[128] == 0
    assert np.nanmax(np.where(np.isinf(ours), 0, ours)) == formats.LARGEST[dtype]


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("dtype", formats.FP8, ids=str)
def test_encode_fp8(dtype, values):
    codes = formats.encode_fp8(torch.from_numpy(VALUES[values]), dtype)
    assert codes.dtype == dtype
    np.testing.assert_array_equal(codes.view(torch.uint8).numpy(), fp8_bytes(VALUES[values], dtype))


@pytest.mark.parametrize("dtype", formats.FP8, ids=str)
def test_fp8_codes_survive(dtype):
    """All but the NaNs, which become one, and E5M2's infinities, which saturate."""
    decoded = torch.from_numpy(BYTES).view(dtype).float()
    again = formats.encode_fp8(decoded, dtype).view(torch.uint8).numpy()
    expected = np.where(decoded.isnan(), 0x7F, np.where(decoded.isinf(), BYTES - 1, BYTES))
    np.testing.assert_array_equal(again, expected)


def test_decode_e2m1():
    codes = np.arange(16, dtype=np.uint8)
    values = formats.decode_e2m1(torch.from_numpy(codes)).numpy()
    oracle = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(values.view(np.uint32), oracle.view(np.uint32))
    assert tuple(values[:8]) == formats.E2M1_VALUES and max(values) == formats.E2M1_LARGEST


@pytest.mark.parametrize("values", VALUES)
def test_encode_e2m1(values):
    codes = formats.encode_e2m1(torch.from_numpy(VALUES[values]))
    assert codes.dtype == torch.uint8
    np.testing.assert_array_equal(codes.numpy(), e2m1_codes(VALUES[values]))


def test_e2m1_ties_and_special_values():
    values = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.0, -0.25, 1e-45, -1e-45, torch.inf, -torch.inf])
    assert formats.encode_e2m1(values).tolist() == [0, 2, 2, 4, 4, 6, 6, 8, 8, 0, 8, 7, 15]
    nans = torch.tensor([0x7FC00000, -0x400000, 0x7F800001], dtype=torch.int32).view(torch.float32)
    assert formats.encode_e2m1(nans).tolist() == [7, 7, 7]


def test_stochastic_rounding_against_fractions():
    """The floor of |v| + step·r/256 on the grid, where the sum is exact."""
    grid = [Fraction(value) for value in formats.E2M1_VALUES]
    magnitudes = [n / 64 for n in range(0, 64 * 7, 3)] + [100.0]
    values = torch.tensor([sign * v for v in magnitudes for sign in (1, -1)])
    for bits in (0, 1, 127, 128, 200, 255):
        codes = formats.encode_e2m1_stochastic(values, torch.full(values.shape, bits, dtype=torch.uint8))
        for value, code in zip(values.tolist(), codes.tolist()):
            v = abs(Fraction(value))
            t = v + Fraction(bits, 256) * (Fraction(1, 2) if v < 2 else 1 if v < 4 else 2)
            expected = max(i for i, point in enumerate(grid) if point <= t)
            assert code == expected + 8 * (str(value)[0] == "-"), (value, bits)


def test_stochastic_rounding_is_unbiased():
    """Over all 256 bits the mean is the value, when that is a whole number of 256ths of its step."""
    values = torch.cat([torch.arange(0, 2, 1 / 512), torch.arange(2, 4, 1 / 256), torch.arange(4, 6, 1 / 128)])
    bits = torch.arange(256, dtype=torch.uint8)
    codes = formats.encode_e2m1_stochastic(values[:, None].expand(-1, 256), bits.expand(len(values), -1))
    assert torch.equal(formats.decode_e2m1(codes).mean(1), values)


def test_stochastic_rounding_keeps_what_is_exact():
    values = torch.tensor([*formats.E2M1_VALUES, -0.0, -0.5, -6, torch.inf, -torch.inf, torch.nan])
    for bits in (0, 255):
        codes = formats.encode_e2m1_stochastic(values, torch.full(values.shape, bits, dtype=torch.uint8))
        assert codes.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 7, 15, 7]


def test_stochastic_rounding_rounds_the_sum():
    """Sums with 255/512 just below ½: one that float32 holds, one that it rounds to ½."""
    values = torch.tensor([2.0**-9 - 2.0**-25, 2.0**-9 - 2.0**-33])
    assert formats.encode_e2m1_stochastic(values, torch.tensor([255, 255], dtype=torch.uint8)).tolist() == [0, 1]


def test_pack_e2m1():
    codes = torch.arange(16, dtype=torch.uint8).repeat(3, 2).roll(5, 1)
    packed = formats.pack_e2m1(codes)
    assert packed.shape == (3, 16)
    assert all(packed[0, i] == int(codes[0, 2 * i]) + 16 * int(codes[0, 2 * i + 1]) for i in range(16))
    assert torch.equal(formats.unpack_e2m1(packed), codes)
    everything = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(formats.pack_e2m1(formats.unpack_e2m1(everything)), everything)


def test_decode_e8m0():
    values = formats.decode_e8m0(torch.from_numpy(BYTES)).numpy()
    np.testing.assert_array_equal(values, BYTES.view(ml_dtypes.float8_e8m0fnu).astype(np.float32))
    np.testing.assert_array_equal(values[:255].astype(np.float64), POWERS)


@pytest.mark.parametrize("values", ("float16", "bfloat16", "subnormals", "random", "powers"))
def test_encode_e8m0(values):
    """The first power of two that is not below the value."""
    powers = np.float32(POWERS)
    nearby = np.concatenate([powers, *(np.nextafter(powers, np.float32(to)) for to in (0, np.inf))])
    magnitudes = np.abs(nearby if values == "powers" else VALUES[values])
    codes = formats.encode_e8m0(torch.from_numpy(magnitudes)).numpy()
    with np.errstate(invalid="ignore"):  # signalling NaNs
        expected = np.minimum(np.searchsorted(POWERS, magnitudes.astype(np.float64)), 254)
    np.testing.assert_array_equal(codes, np.where(np.isnan(magnitudes), 255, expected))


def test_e8m0_codes_survive():
    codes = torch.from_numpy(BYTES)
    assert torch.equal(formats.encode_e8m0(formats.decode_e8m0(codes)), codes)


def test_e8m0_edges():
    edges = torch.tensor([0.0, 2.0**-149, 2.0**-127, 2.0**-127 + 2.0**-149, 2.0**-126, 2.0**127, 2.0**127 * 1.5,
                          torch.inf, torch.nan])
    assert formats.encode_e8m0(edges).tolist() == [0, 0, 0, 1, 1, 254, 254, 254, 255]


def test_nvfp4_scales():
    """The inverse of one another, defined at every amax."""
    biggest, tiniest = formats.FLT_MAX, 2.0**-149
    amax = torch.tensor([0.0, 1.0, 2688.0, 3.0, biggest, torch.inf, torch.nan, tiniest, 2688 / biggest / 2])
    encode = formats.nvfp4_encode_scale(amax)
    expected = [1.0, 2688.0, 1.0, 896.0, float(np.float32(2688) / np.float32(biggest)), 1.0, 1.0, biggest, biggest]
    assert encode.tolist() == expected
    np.testing.assert_array_equal(formats.nvfp4_decode_scale(amax).numpy(), np.float32(1) / encode.numpy())


def test_quotients_are_rounded_once():
    denominators = torch.from_numpy(VALUES["random"])
    for numerator in (1.0, 448.0, 57344.0, 2688.0):
        with np.errstate(all="ignore"):
            expected = np.float32(numerator) / VALUES["random"]
        np.testing.assert_array_equal(formats.divide(numerator, denominators).numpy(), expected)


def test_scale_shape():
    assert [formats.scale_shape(*shape) for shape in ((0, 0), (1, 1), (128, 4), (129, 5))] == [
        (0, 0), (128, 4), (128, 4), (256, 8)]


@pytest.mark.parametrize("shape", ((3, 4, 8), (8,), (0, 8), (2, 0)))
def test_matrix(shape):
    rows = int(np.prod(shape[:-1], dtype=int))
    assert formats.matrix(torch.empty(shape)).shape == (rows, shape[-1])


@pytest.mark.gpu
@pytest.mark.parametrize("values", VALUES)
def test_the_same_on_a_gpu(values):
    here = torch.from_numpy(VALUES[values])
    bits = torch.arange(here.numel()).to(torch.uint8)
    for encode in (lambda x: formats.encode_fp8(x, E4M3).view(torch.uint8), formats.encode_e2m1,
                   lambda x: formats.encode_fp8(x, E5M2).view(torch.uint8), lambda x: formats.encode_e8m0(x.abs()),
                   lambda x: formats.encode_e2m1_stochastic(x, bits.to(x.device)),
                   lambda x: formats.nvfp4_encode_scale(x.abs()).view(torch.int32)):
        assert torch.equal(encode(here.cuda()).cpu(), encode(here))


def test_every_byte_is_reached():
    """The sweeps above are worth something: they meet every code of every format but the other NaNs and infinities."""
    values = torch.from_numpy(np.concatenate(list(VALUES.values())))
    reached = {dtype: set(formats.encode_fp8(values, dtype).view(torch.uint8).tolist()) for dtype in formats.FP8}
    assert reached[E4M3] == set(range(256)) - {0xFF}
    assert reached[E5M2] == set(itertools.chain(range(0x7C), [0x7F], range(0x80, 0xFC)))
    assert set(formats.encode_e2m1(values).tolist()) == set(range(16))
    assert set(formats.encode_e8m0(values.abs()).tolist()) == set(range(256))
