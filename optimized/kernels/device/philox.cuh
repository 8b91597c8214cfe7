#pragma once
#include "device/base.cuh"

// The random stream of stochastic rounding, as reference/philox.py documents it: 16 bytes for each 16 elements.
struct Random {
  u64 seed, offset;

  // Words of elements 16 * group … 16 * group + 15. Philox-4x32-10.
  __device__ __forceinline__ uint4 words(u64 group, bool columnwise) const {
    u32 key0 = seed, key1 = seed >> 32;
    uint4 c = {u32(group), u32(group >> 32), u32(offset), u32(offset >> 32) | u32(columnwise) << 31};
#pragma unroll
    for (int round = 0; round < 10; ++round) {
      const u64 p0 = u64(0xD2511F53u) * c.x, p1 = u64(0xCD9E8D57u) * c.z;
      c = {u32(p1 >> 32) ^ c.y ^ key0, u32(p1), u32(p0 >> 32) ^ c.w ^ key1, u32(p0)};
      key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
    }
    return c;
  }
  // Of two groups, each of which this lane has in common with the lane whose number differs in `Bit`: two words for
  // the first eight elements of each, or, where that bit is set, for the others. Each lane works out one group.
  template <int Bit>
  __device__ __forceinline__ void halves(const u64 (&group)[2], bool columnwise, uint2 (&half)[2]) const {
    const bool last = threadIdx.x & Bit;
    const uint4 own = words(last ? group[1] : group[0], columnwise);
    const uint2 mine = last ? uint2{own.z, own.w} : uint2{own.x, own.y};
    const uint2 others = last ? uint2{own.x, own.y} : uint2{own.z, own.w};
    const uint2 got = {__shfl_xor_sync(~0u, others.x, Bit), __shfl_xor_sync(~0u, others.y, Bit)};
    half[0] = last ? got : mine, half[1] = last ? mine : got;
  }
};
