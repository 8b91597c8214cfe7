#pragma once
#include "tensors.h"
inline void bulk_load(void* shared, const void* global, u32 bytes, u64* barrier) {
  if (uintptr_t(shared) % 16 || uintptr_t(global) % 16 || bytes % 16) die("a copy is misaligned");
  be_held_up(16);
  arrives([=, to = mapped_barrier(barrier)] {
    memcpy(shared, global, bytes);
    barrier_at(to).arrive(0, -int(bytes));
  });
}
