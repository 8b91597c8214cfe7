#pragma once
#include "device/base.cuh"
// A barrier counts its phases.
inline void mbarrier_init(u64* barrier, u32) { *barrier = 0; }
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive_expect_tx(u64*, u32) {}
inline bool mbarrier_try_wait(u64* barrier, u32 phase) {
  if (*barrier % 2 != phase) return true;
  swapcontext(&contexts[current].state, &scheduler);
  return false;
}
