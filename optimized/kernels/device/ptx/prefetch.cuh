#pragma once
#include "device/base.cuh"

// Has the L2 fetch what lies around this address.
__device__ __forceinline__ void prefetch_l2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p)) : "memory");
}
