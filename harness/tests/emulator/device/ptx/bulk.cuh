#pragma once
#include "device/ptx/mbarrier.cuh"
inline void bulk_load(void* shared, const void* global, u32 bytes, u64* barrier) {
  if (uintptr_t(shared) % 16 || uintptr_t(global) % 16 || bytes % 16) die("a copy is misaligned");
  memcpy(shared, global, bytes);
  ++*barrier;
}
