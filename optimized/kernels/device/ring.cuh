#pragma once
#include "device/ptx/bulk.cuh"

// What one row contributes to a stage: `bytes` from `source + row * pitch` (bytes) to `offset` in the stage.
struct Slab {
  const char* source;
  i64 pitch;
  int bytes, offset;
};

// The next rows of one row slot, on their way into shared memory while the current one is worked on. One thread
// issues the copies; all threads of the slot wait for them. The slabs, the same for all slots, stay in shared memory:
// only the issuing threads need them.
template <int Slabs>
struct Ring {
  static constexpr int kMaxStages = 4;
  static constexpr int kMaxSlots = 32;
  struct Shared {
    Slab slabs[Slabs];
    u64 full[kMaxSlots][kMaxStages];
  };

  Shared& shared;
  char* const stages;
  const int slot, count, stage_bytes;
  int stage = 0;
  u32 phase = 0;

  __device__ __forceinline__ Ring(Shared& shared, char* stages, int slot, int count, int stage_bytes)
      : shared(shared), stages(stages), slot(slot), count(count), stage_bytes(stage_bytes) {}
  __device__ __forceinline__ void init(bool leader) const {
    if (leader)
      for (int s = 0; s < count; ++s) mbarrier_init(&shared.full[slot][s], 1);
    fence_mbarrier_init();
  }
  __device__ __forceinline__ char* place(int stage) const { return stages + (slot * count + stage) * stage_bytes; }
  __device__ __forceinline__ void issue(i64 row, int stage) const {
    u64* const full = &shared.full[slot][stage];
    int bytes = 0;
    for (const Slab& slab : shared.slabs) bytes += slab.bytes;
    mbarrier_arrive_expect_tx(full, bytes);
    for (const Slab& slab : shared.slabs)
      if (slab.bytes) bulk_load(place(stage) + slab.offset, slab.source + row * slab.pitch, slab.bytes, full);
  }
  // All stages but the last: that one is filled while the first row is worked on.
  __device__ __forceinline__ void start(i64 row, i64 stride, i64 rows) const {
    for (int s = 0; s < count - 1 && row < rows; ++s, row += stride) issue(row, s);
  }
  __device__ __forceinline__ void wait() const {
    while (!mbarrier_try_wait(&shared.full[slot][stage], phase)) {}
  }
  // When every thread of the slot is past the row before `row`, that one's stage takes the farthest row ahead.
  __device__ __forceinline__ void refill(i64 row, i64 stride, i64 rows) const {
    const i64 next = row + stride * (count - 1);
    if (next < rows) issue(next, (stage ? stage : count) - 1);
  }
  __device__ __forceinline__ const char* current(int offset) const { return place(stage) + offset; }
  __device__ __forceinline__ void advance() {
    if (++stage == count) stage = 0, phase ^= 1;
  }
};
