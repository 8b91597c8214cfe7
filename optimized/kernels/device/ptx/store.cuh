#pragma once
#include "device/base.cuh"

// Where `there`: a store without a branch, so that what is stored is worked out beside its neighbours.
__device__ __forceinline__ void store_if(bool there, void* p, u32 word) {
  asm volatile("{ .reg .pred there; setp.ne.u32 there, %0, 0; @there st.global.u32 [%1], %2; }" ::"r"(u32(there)),
               "l"(p), "r"(word)
               : "memory");
}
