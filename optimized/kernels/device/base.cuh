#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The names that Python spells in template arguments.
using f32 = float;
using f16 = __half;
using bf16 = __nv_bfloat16;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

constexpr int kWarp = 32;

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

__device__ __forceinline__ char* dynamic_shared() {
  extern __shared__ __align__(128) char bytes[];
  return bytes;
}
