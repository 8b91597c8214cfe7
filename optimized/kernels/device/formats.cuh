#pragma once
#include "device/ptx/convert.cuh"
#include "device/vec.cuh"

// Casts between float32 and E4M3, E5M2, E2M1 and E8M0, to the bit as reference/formats.py has them.

using u8 = unsigned char;

constexpr float kFloatMax = 3.402823466e+38f;
constexpr u32 kExponent = 0x7F800000u, kNan = 0x7FC00000u;

struct ToNearest {
  static __device__ __forceinline__ float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
};
struct Down {  // of what is positive
  static __device__ __forceinline__ float fma(float a, float b, float c) { return __fmaf_rz(a, b, c); }
};

// The code of a magnitude that is at most the format's largest, in the low bits (what is above them is waste), for a
// format of `Mantissa` bits whose least normal value is 2^Least. With e the exponent, Least for subnormals, the sum of
// the magnitude and 2^(e + 23 - Mantissa) holds in its low bits the magnitude in steps of the format; from the
// sum's own exponent comes how many codes lie below 2^e. `kOffset` takes out what both exponents are biased by.
template <int Mantissa, int Least>
__device__ __forceinline__ u32 small_code(float magnitude) {
  constexpr int kShift = 23 - Mantissa;
  constexpr u32 kOffset = (0u - ((127u + kShift + Least) << Mantissa)) & 0xFFu;
  constexpr u32 kStep = (u32(kShift) << 23) + kOffset;
  const u32 steps = max((__float_as_uint(magnitude) & kExponent) + kStep, (u32(127 + Least) << 23) + kStep);
  const u32 sum = __float_as_uint(__fadd_rn(magnitude, __uint_as_float(steps)));
  return sum + (sum >> kShift);
}

// An FP8 format in integer arithmetic, for chips without the instruction.
template <int Mantissa, int Least>
__device__ __forceinline__ u32 fp8_code(float v, float largest) {
  const u32 code = small_code<Mantissa, Least>(fminf(fabsf(v), largest)) & 0x7F;
  return v != v ? 0x7F : code | (__float_as_uint(v) >> 24 & 0x80);
}

template <int Mantissa, int Least>
__device__ __forceinline__ float fp8_value(u32 code, u32 first_special, bool infinite) {
  const u32 magnitude = code & 0x7F, sign = (code & 0x80) << 24;
  if (magnitude >= first_special)
    return __uint_as_float(sign | (infinite && magnitude == first_special ? kExponent : kNan));
  return __uint_as_float(sign | magnitude << (23 - Mantissa)) * __uint_as_float(u32(253 + Least) << 23);
}

struct E4M3 {
  static constexpr float kLargest = 448.f;
  static __device__ __forceinline__ u32 encode_pair(float low, float high) {
#if __CUDA_ARCH__ >= 890
    return convert_e4m3x2(low, high);
#else
    return fp8_code<3, -6>(low, kLargest) | fp8_code<3, -6>(high, kLargest) << 8;
#endif
  }
  static __device__ __forceinline__ float2 decode_pair(u32 codes) {
#if __CUDA_ARCH__ >= 890
    const u32 halves = widen_e4m3x2(codes);
    return __half22float2(reinterpret_cast<const __half2&>(halves));
#else
    return {fp8_value<3, -6>(codes & 0xFF, 0x7F, false), fp8_value<3, -6>(codes >> 8 & 0xFF, 0x7F, false)};
#endif
  }
};

struct E5M2 {
  static constexpr float kLargest = 57344.f;
  static __device__ __forceinline__ u32 encode_pair(float low, float high) {
#if __CUDA_ARCH__ >= 890
    return convert_e5m2x2(low, high);
#else
    return fp8_code<2, -14>(low, kLargest) | fp8_code<2, -14>(high, kLargest) << 8;
#endif
  }
  static __device__ __forceinline__ float2 decode_pair(u32 codes) {
#if __CUDA_ARCH__ >= 890
    const u32 halves = widen_e5m2x2(codes);
    return __half22float2(reinterpret_cast<const __half2&>(halves));
#else
    return {fp8_value<2, -14>(codes & 0xFF, 0x7C, true), fp8_value<2, -14>(codes >> 8 & 0xFF, 0x7C, true)};
#endif
  }
};

// E8M0: the exponent rounded up. Zero and what is at most 2^-127 is 0; more than 2^127, and infinity, 254; NaN 255.
__device__ __forceinline__ u32 e8m0_code(float magnitude) {
  const u32 bits = __float_as_uint(magnitude), up = min((bits + 0x7FFFFFu) >> 23, 254u);
  const u32 code = bits <= 0x400000u ? 0 : up;
  return bits > kExponent ? 255 : code;
}

__device__ __forceinline__ float e8m0_value(u32 code) {
  return __uint_as_float(code == 0 ? 0x400000u : code == 255 ? kNan : code << 23);
}
// 2^(127 - code), which values are multiplied by, NaN for 255: the upper 16 bits of the float32, the others are zero.
__device__ __forceinline__ u32 e8m0_factor(u32 code) {
  return code == 254 ? 0x40 : code == 255 ? kNan >> 16 : (254 - code) << 7;
}

// E2M1. A magnitude m has steps of 1/2 up to 2, of 1 up to 4 and of 2 above: its code is the least of 2m, m + 2 and
// m / 2 + 4, each rounded to an integer.
struct E2M1 {
  // 2^23 + code, so that the code is in the low bits; 8 stands for what is above all. NaN has code 0.
  template <class Rounding>
  static __device__ __forceinline__ u32 code(float magnitude) {
    const float eighth = __saturatef(magnitude * 0.125f);
    const u32 halves = __float_as_uint(Rounding::fma(eighth, 16.f, 0x1p23f));
    const u32 ones = __float_as_uint(Rounding::fma(eighth, 8.f, 0x1p23f + 2.f));
    const u32 twos = __float_as_uint(Rounding::fma(eighth, 4.f, 0x1p23f + 4.f));
    return min(min(halves, ones), twos);
  }
  static __device__ __forceinline__ u32 nearest(float magnitude) { return code<ToNearest>(magnitude); }
  // Rounded up where byte `i` of `random` reaches what is missing to the next value, in 256ths of the step between.
  static __device__ __forceinline__ u32 stochastic(float magnitude, u32 random, int i) {
    const float share = __uint_as_float(__byte_perm(random, 0x43000000u, 0x7604 | i << 4)) - 128.f;  // from 128 + share
    const int step = max(int(__float_as_uint(magnitude) & kExponent) - 0x00800000, 0x3F000000);
    return code<Down>(fmaf(share, __uint_as_float(step), magnitude));
  }
  // Eight codes in a word, the first in the lowest nibble, with signs where they belong.
  static __device__ __forceinline__ u32 pack(const u32 (&code)[8], u32 signs) {
    constexpr u32 kBias = 0x4B000000u;  // of 2^23; of all eight, only what two carry into the top byte is left
    u32 word = code[7];
#pragma unroll
    for (int i = 6; i >= 0; --i) word = word * 16 + code[i];
    word -= kBias * 17;
    return word - (word >> 3 & 0x11111111u) + signs;  // 8 becomes 7
  }
  // Codes i and i + 4 of eight, i < 4, exactly: in the upper bits of a half they are 2^-14 times what they stand for.
  static __device__ __forceinline__ float2 decode_pair(u32 codes, int i) {
    const u32 magnitudes = (i < 3 ? codes << (9 - 4 * i) : codes >> 3) & 0x0E000E00;
    const u32 halves = magnitudes | (codes << (12 - 4 * i) & 0x80008000);
    return __half22float2(__hmul2(reinterpret_cast<const __half2&>(halves), __floats2half2_rn(0x1p14f, 0x1p14f)));
  }
};
