#pragma once
#include "device/base.cuh"

// Address of the barrier word that the driver provides to a cooperative launch: the second word of the structure
// that environment registers 1 and 2 point to (CUDA's cooperative groups rely on the same).
__device__ __forceinline__ u32* grid_barrier_word() {
  u32 high, low;
  asm volatile("mov.u32 %0, %%envreg1;" : "=r"(high));
  asm volatile("mov.u32 %0, %%envreg2;" : "=r"(low));
  return reinterpret_cast<u32*>(u64(high) << 32 | low) + 1;
}

__device__ __forceinline__ u32 atomic_add_release(u32* p, u32 value) {
  u32 old;
  asm volatile("atom.add.acq_rel.gpu.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(value) : "memory");
  return old;
}

__device__ __forceinline__ u32 load_acquire(const u32* p) {
  u32 value;
  asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}
