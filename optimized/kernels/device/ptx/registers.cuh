#pragma once
#include "device/base.cuh"

// Registers of each thread of this warpgroup from here on. sm_90a.
template <int Count>
__device__ __forceinline__ void give_back_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}

template <int Count>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}

// The value, as something that cannot be had again from what it was made of.
__device__ __forceinline__ float kept(float value) {
  float same;
  asm("mov.b32 %0, %1;" : "=f"(same) : "f"(value));
  return same;
}

__device__ __forceinline__ u32 kept(u32 value) {
  u32 same;
  asm("mov.b32 %0, %1;" : "=r"(same) : "r"(value));
  return same;
}
