#pragma once
#include "device/ptx/mbarrier.cuh"

__device__ __forceinline__ void wait(u64* barrier, u32 phase) {
  while (!mbarrier_try_wait(barrier, phase)) {
  }
}
