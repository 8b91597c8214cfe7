"""The generator against published answers, and the stream of random bits against its definition in plain integers."""

import pytest
import torch

from harness.tests.quantized import philox_block, random_byte
from reference import philox

# Random123's kat_vectors: counter, key, result
KNOWN = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
)
STREAMS = [(seed, offset, columnwise) for seed in (0, 1, 2**32, 2**64 - 1) for offset in (0, 1, 2**32, 2**63 - 1)
           for columnwise in (False, True)]


@pytest.mark.parametrize("counter, key, result", KNOWN)
def test_known_answers(counter, key, result):
    words = philox.philox([torch.tensor([word]) for word in counter], key)
    assert tuple(int(word) for word in words) == result
    assert philox_block(counter, key) == result


@pytest.mark.parametrize("seed, offset, columnwise", STREAMS)
def test_stream(seed, offset, columnwise):
    bits = philox.rounding_bits((3, 32), seed=seed, offset=offset, columnwise=columnwise, device="cpu")
    assert bits.dtype == torch.uint8 and bits.shape == (3, 32)
    assert bits.flatten().tolist() == [random_byte(i, seed, offset, columnwise) for i in range(96)]


def test_groups_beyond_32_bits():
    groups = [0, 2**32 - 1, 2**32, 2**32 + 5, 2**59 - 1]
    bits = philox.group_bits(torch.tensor(groups), seed=9, offset=2**33, columnwise=True)
    assert bits.tolist() == [[random_byte(16 * g + i, 9, 2**33, True) for i in range(16)] for g in groups]


def test_streams_differ():
    streams = {(seed, offset, columnwise): philox.rounding_bits((1, 64), seed=seed, offset=offset,
                                                              columnwise=columnwise, device="cpu")
               for seed, offset, columnwise in STREAMS}
    assert len({tuple(bits.flatten().tolist()) for bits in streams.values()}) == len(STREAMS)


def test_element_index_alone_counts():
    """Not the shape: a larger matrix of the same row length begins with the same bits."""
    small, large = (philox.rounding_bits((rows, 48), seed=5, offset=7, columnwise=False, device="cpu")
                    for rows in (2, 9))
    assert torch.equal(small, large[:2])
    flat = philox.rounding_bits((1, 96), seed=5, offset=7, columnwise=False, device="cpu")
    assert torch.equal(small.flatten(), flat.flatten())


def test_bits_are_uniform():
    """χ² of 256 byte values, and the correlation of neighbours, within five standard deviations."""
    n = 2**18
    bits = philox.rounding_bits((256, n // 256), seed=1, offset=0, columnwise=False, device="cpu").flatten()
    counts = torch.bincount(bits.int(), minlength=256).double()
    chi2 = ((counts - n / 256).square() / (n / 256)).sum()
    assert abs(chi2 - 255) < 5 * (2 * 255) ** 0.5
    centred = bits.double() - 127.5
    assert abs((centred[1:] * centred[:-1]).mean() / centred.square().mean()) < 5 / n**0.5


def test_nothing():
    assert philox.rounding_bits((0, 16), seed=0, offset=0, columnwise=False, device="cpu").shape == (0, 16)
