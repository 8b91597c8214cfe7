#pragma once
#include "cluster.h"
inline u32 barrier_word = 0;
inline u32* grid_barrier_word() { return &barrier_word; }
inline u32 atomic_add_release(u32* p, u32 value) {
  const u32 old = *p;
  turns = 0, ++events, *p += value;
  return old;
}
inline u32 load_acquire(const u32* p) {
  yield();
  return *p;
}
