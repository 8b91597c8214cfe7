#pragma once
#include "device/base.cuh"

// Conversions between float32 and the FP8 formats, two values at once, the first in the low byte: to nearest even,
// saturating, the sign of zero kept, NaN to 0x7F. Compute capability 8.9 and up.
__device__ __forceinline__ u32 convert_e4m3x2(float low, float high) {
  unsigned short codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(codes) : "f"(low), "f"(high));
  return codes;
}

__device__ __forceinline__ u32 convert_e5m2x2(float low, float high) {
  unsigned short codes;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %2, %1;" : "=h"(codes) : "f"(low), "f"(high));
  return codes;
}

// Two codes as halves, exactly.
__device__ __forceinline__ u32 widen_e4m3x2(u32 codes) {
  u32 halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<unsigned short>(codes)));
  return halves;
}

__device__ __forceinline__ u32 widen_e5m2x2(u32 codes) {
  u32 halves;
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(static_cast<unsigned short>(codes)));
  return halves;
}

// The larger one; NaN where one is.
__device__ __forceinline__ float max_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}
