#pragma once
#include "device/ptx/bulk.cuh"
#include "device/wait.cuh"

// What one row contributes to a stage: `bytes` from `source + row * pitch` (bytes) to `offset` in the stage.
struct Slab {
  const char* source;
  i64 pitch;
  int bytes, offset;
};

// The next rows of one row slot, on their way into shared memory while the current one is worked on. The slot's first
// thread issues the copies; all its threads wait for them. The slabs are the same for all slots and stay in shared
// memory: only the issuing threads need them.
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
  __device__ __forceinline__ char* place(int stage) const { return stages + (slot * count + stage) * stage_bytes; }
  __device__ __forceinline__ void issue(const Slab (&slabs)[Slabs], i64 row, int stage) const {
    u64* const full = &shared.full[slot][stage];
    int bytes = 0;
#pragma unroll
    for (int i = 0; i < Slabs; ++i) bytes += slabs[i].bytes;
    mbarrier_arrive_expect_tx(full, bytes);
#pragma unroll
    for (int i = 0; i < Slabs; ++i)
      if (slabs[i].bytes)
        bulk_load(place(stage) + slabs[i].offset, slabs[i].source + row * slabs[i].pitch, slabs[i].bytes, full);
  }
  // By the slot's first thread, whose barriers are its own until the CTA synchronises: the first row sets out at once.
  __device__ __forceinline__ void start(const Slab (&slabs)[Slabs], i64 row, i64 rows) const {
    for (int s = 0; s < count; ++s) mbarrier_init(&shared.full[slot][s], 1);
    fence_mbarrier_init();
    if (row < rows) issue(slabs, row, 0);
    if (slot == 0) {
#pragma unroll
      for (int i = 0; i < Slabs; ++i) shared.slabs[i] = slabs[i];
    }
  }
  // By the slot's first thread, after that: the other stages, from `row` on.
  __device__ __forceinline__ void fill(i64 row, i64 stride, i64 rows) const {
    for (int s = 1; s < count && row < rows; ++s, row += stride) issue(shared.slabs, row, s);
  }
  __device__ __forceinline__ void wait() const {
    ::wait(&shared.full[slot][stage], phase);
  }
  // By the slot's first thread, when all its threads are past the row before `row`: that one's stage takes the
  // farthest row ahead.
  __device__ __forceinline__ void refill(i64 row, i64 stride, i64 rows) const {
    const i64 next = row + stride * (count - 1);
    if (next < rows) issue(shared.slabs, next, (stage ? stage : count) - 1);
  }
  __device__ __forceinline__ const char* current(int offset) const { return place(stage) + offset; }
  __device__ __forceinline__ void advance() {
    if (++stage == count) stage = 0, phase ^= 1;
  }
};
