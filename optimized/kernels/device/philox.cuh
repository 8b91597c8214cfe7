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
};
