#include "device/base.cuh"

struct Copy {
  const uint4* source;
  uint4* target;
  i64 count;  // units of 16 bytes
};

// target = source, one read and one write of every byte: what a memory-bound function of as many bytes is held
// against. Four units a thread are on their way at once; CTAs follow the order of the data.
template <int Threads>
__global__ __launch_bounds__(Threads) void copy(const __grid_constant__ Copy a) {
  constexpr int kUnits = 4;
  const i64 first = i64(blockIdx.x) * (kUnits * Threads) + threadIdx.x;
  uint4 units[kUnits];
#pragma unroll
  for (int i = 0; i < kUnits; ++i)
    if (first + i * Threads < a.count) units[i] = a.source[first + i * Threads];
#pragma unroll
  for (int i = 0; i < kUnits; ++i)
    if (first + i * Threads < a.count) a.target[first + i * Threads] = units[i];
}
