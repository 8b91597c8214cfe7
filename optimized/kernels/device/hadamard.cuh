#pragma once
#include "device/tile.cuh"

// Each 16 elements down a column of a tile, times diag(s) * H16 / 4 with H16 in Sylvester's order, rounded to bf16:
// four butterfly stages in float32, of strides 1, 2, 4 within a thread and 8 with the lane that has the other rows.
__device__ __forceinline__ void hadamard(const Vec<bf16, kRun> (&row)[kRun], Vec<bf16, kRun> (&out)[kRun]) {
  constexpr u32 kSigns = 0xD7E8;  // bit i is set where s is -1 for element i
  const bool upper = Lattice::lane_down() % 2;
  const u32 signs = upper ? kSigns >> 8 : kSigns & 0xFF;
#pragma unroll
  for (int j = 0; j < kRun; ++j) {
    float v[kRun];
#pragma unroll
    for (int i = 0; i < kRun; ++i)
      v[i] = __uint_as_float(__float_as_uint(float(row[i].lane[j])) ^ (signs >> i & 1) << 31);
#pragma unroll
    for (int stride = 1; stride < kRun; stride *= 2)
#pragma unroll
      for (int i = 0; i < kRun; ++i)
        if (!(i & stride)) {
          const float low = v[i], high = v[i + stride];
          v[i] = low + high, v[i + stride] = low - high;
        }
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      const float other = __shfl_xor_sync(~0u, v[i], 8);
      out[i].lane[j] = __float2bfloat16_rn((upper ? other - v[i] : v[i] + other) * 0.25f);
    }
  }
}
