#pragma once
#include "device/base.cuh"

// Whether this thread is the one that its warp, all of it here, chooses. The compiler knows that it is but one. sm_90.
__device__ __forceinline__ bool elect() {
  u32 chosen;
  asm volatile(
      "{\n .reg .pred p;\n"
      " elect.sync _|p, 0xFFFFFFFF;\n"
      " selp.u32 %0, 1, 0, p;\n}"
      : "=r"(chosen));
  return chosen;
}
