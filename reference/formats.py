"""Number formats: E4M3, E5M2, E2M1 and E8M0, each with its largest value, exact encoding and decoding.

Casts to E4M3, E5M2 and E2M1 round to nearest, ties to even, and saturate: finite overflow and ±Inf become ± the largest
value. The sign of zero is kept. NaN becomes 0x7F in the FP8 formats and code 7 in E2M1, whatever its sign. Nothing
is flushed, and every quotient is correctly rounded. Results stay on the device of their arguments.

Source: Micikevicius et al., "FP8 Formats for Deep Learning", arXiv:2209.05433; OCP "Microscaling Formats (MX)
Specification", version 1.0, for E2M1 and E8M0 (whose rounding here is up, not down); NVFP4 has the formats of both.
"""

import torch

E4M3, E5M2 = FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
LARGEST = {E4M3: 448.0, E5M2: 57344.0}
E2M1_LARGEST = 6.0
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
NAN_FP8, NAN_E2M1, NAN_E8M0 = 0x7F, 7, 255
FLT_MAX = torch.finfo(torch.float32).max
MXFP8_BLOCK = 32
NVFP4_BLOCK = 16


def matrix(tensor):
    """(..., cols) as (rows, cols), rows the product of the leading dimensions."""
    return tensor.reshape(tensor.shape[:-1].numel(), tensor.shape[-1])


def divide(numerator, denominator):
    """numerator / denominator, correctly rounded, of a number and a float32 tensor.

    Both operands are tensors because `torch` multiplies by a rounded reciprocal when one of them is a number.
    """
    return torch.div(torch.full_like(denominator, numerator), denominator)


def scale_shape(outer, blocks):
    """(⌈outer/128⌉·128, ⌈blocks/4⌉·4), the padded shape of an array of `blocks` scales for each of `outer` rows."""
    return -(-outer // 128) * 128, -(-blocks // 4) * 4


def encode_fp8(values, dtype):
    """float32 `values` cast to `dtype`, E4M3 or E5M2. Shapes: any -> the same."""
    codes = values.clamp(-LARGEST[dtype], LARGEST[dtype]).to(dtype).view(torch.uint8)
    return torch.where(values.isnan(), NAN_FP8, codes).view(dtype)


def encode_e2m1(values):
    """float32 `values` as E2M1 codes 0…15, one a byte: bit 3 the sign, bits 0…2 an index of E2M1_VALUES.

    The magnitude's code is the number of midpoints below it; a midpoint itself goes to the even neighbour.
    Shapes: any -> the same, uint8.
    """
    v = values.abs()
    passed = (v > 0.25, v >= 0.75, v > 1.25, v >= 1.75, v > 2.5, v >= 3.5, v > 5.0)
    return _with_sign(values, sum(step.to(torch.uint8) for step in passed))


def encode_e2m1_stochastic(values, bits):
    """float32 `values` as E2M1 codes, rounded up with a probability of the distance from the value below, in 256ths.

    t = fma(bits/256, step(|v|), |v|), with step the distance of E2M1's values at |v|: ½ below 2, 1 below 4, 2 above;
    the code is that of the largest value ≤ t, with the sign of v.
    Shapes: values and bits any, the same -> the same, uint8. Units: bits 0…255.
    """
    v = values.abs()
    step = torch.where(v < 2, 0.5, torch.where(v < 4, 1.0, 2.0))
    t = bits.float() / 256 * step + v  # the product is exact, so that this is the fma
    return _with_sign(values, sum((t >= value).to(torch.uint8) for value in E2M1_VALUES[1:]))


def decode_e2m1(codes):
    """E2M1 codes 0…15, one a byte, as float32: exponent e and mantissa m are m/2 for e = 0, else (1 + m/2)·2^(e − 1).

    Shapes: any -> the same.
    """
    exponent, mantissa = codes.int() >> 1 & 3, codes.int() & 1
    halves = torch.where(exponent == 0, mantissa, (2 + mantissa) << (exponent - 1).clamp(min=0))
    return torch.where(codes & 8 != 0, -0.5, 0.5) * halves


def pack_e2m1(codes):
    """Two codes a byte, the even column in the low nibble. Shapes: (..., cols) -> (..., cols/2), uint8."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def unpack_e2m1(packed):
    """The inverse of pack_e2m1. Shapes: (..., cols/2) -> (..., cols), uint8."""
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)


def encode_e8m0(values):
    """float32 `values` ≥ 0 rounded up to a power of two, as code = exponent + 127, saturating.

    Zero and what is ≤ 2⁻¹²⁷ become 0, what is > 2¹²⁷ and Inf 254, NaN 255. Shapes: any -> the same, uint8.
    """
    bits = values.contiguous().view(torch.int32) & 0x7FFFFFFF
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    subnormal = mantissa > 0x400000  # exponent 0: the mantissa counts 2⁻¹⁴⁹, and 0x400000 of them are 2⁻¹²⁷
    rounded = torch.where(exponent == 0, subnormal, exponent + (mantissa != 0)).clamp(max=254)
    return torch.where(values.isnan(), NAN_E8M0, rounded).to(torch.uint8)


def decode_e8m0(codes):
    """2^(code − 127) as float32, exactly: code 0 is 2⁻¹²⁷, 255 NaN. Shapes: uint8, any -> the same."""
    bits = torch.where(codes == 0, 0x400000, codes.int() << 23)
    return torch.where(codes == NAN_E8M0, 0x7FC00000, bits).int().view(torch.float32)


def nvfp4_encode_scale(amax):
    """S_enc = min(448·6 / amax, FLT_MAX), 1 where amax or the quotient is 0 or amax is NaN. Shapes: any -> the same."""
    quotient = divide(LARGEST[E4M3] * E2M1_LARGEST, amax).clamp(max=FLT_MAX)
    return torch.where((amax == 0) | (quotient == 0) | amax.isnan(), 1.0, quotient)


def nvfp4_decode_scale(amax):
    """1/S_enc(amax), by which NVFP4's block scales are multiplied. Shapes: any -> the same."""
    return divide(1.0, nvfp4_encode_scale(amax))


def _with_sign(values, magnitudes):
    """Codes of E2M1 from those of the magnitudes; NaN is code 7 without a sign."""
    codes = magnitudes | values.signbit().to(torch.uint8) << 3
    return torch.where(values.isnan(), NAN_E2M1, codes)
