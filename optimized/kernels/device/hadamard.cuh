#pragma once
#include "device/tile.cuh"

// Of strides 1, 2, 4.
__device__ __forceinline__ void butterflies(float (&v)[kRun]) {
#pragma unroll
  for (int stride = 1; stride < kRun; stride *= 2)
#pragma unroll
    for (int i = 0; i < kRun; ++i)
      if (!(i & stride)) {
        const float low = v[i], high = v[i + stride];
        v[i] = low + high, v[i + stride] = low - high;
      }
}

// Each 16 elements down the columns j and j + 1 of a tile, times diag(s) * H16 / 4 with H16 in Sylvester's order,
// rounded to bf16, a word a row: four butterfly stages in float32, of strides 1, 2, 4 within a thread and 8 with the
// lane that has the other rows. j is even.
__device__ __forceinline__ void hadamard(const Vec<bf16, kRun> (&row)[kRun], int j, u32 (&word)[kRun]) {
  constexpr u32 kSigns = 0xD7E8;  // bit i is set where s is -1 for element i
  const bool upper = Lattice::lane_down() % 2;
  const float side = upper ? -1.f : 1.f;
  const u32 signs = upper ? kSigns >> 8 : kSigns & 0xFF;
  float v[2][kRun];
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    const u32 signed_word = reinterpret_cast<const u32*>(row[i].lane)[j / 2] ^ (signs >> i & 1) * 0x80008000u;
    const float2 pair = widen_pair<bf16>(signed_word);
    v[0][i] = pair.x, v[1][i] = pair.y;
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) butterflies(v[k]);
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    float sum[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float other = __shfl_xor_sync(~0u, v[k][i], 8);
      sum[k] = fmaf(v[k][i], side, other) * 0.25f;  // other ± v
    }
    reinterpret_cast<__nv_bfloat162&>(word[i]) = __floats2bfloat162_rn(sum[0], sum[1]);
  }
}
