#pragma once
#include "device/base.cuh"

// Nanoseconds since some moment, the same for all SMs.
__device__ __forceinline__ u64 global_nanoseconds() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}
