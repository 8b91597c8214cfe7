#pragma once
#include "device/ptx/bulk.cuh"
#include "device/ptx/elect.cuh"
#include "device/wait.cuh"

// What one row contributes to a stage: `bytes` from `source + row * pitch` (bytes) to `offset` in the stage, and behind
// it those of the rows beside it.
struct Slab {
  const char* source;
  i64 pitch;
  int bytes, offset;
};

// The next rows of one slot, on their way into shared memory while the current ones are worked on: one row, or `Rows`
// neighbours where a warp has so many. A thread that the slot's first warp elects issues the copies, so that what the
// copy engine is told stays in uniform registers, to which a thread on its own would bring it by a loop; all threads
// of the slot wait for them.
template <int Slabs, int Rows>
struct Ring {
  static constexpr int kMaxStages = 4;
  static constexpr int kMaxSlots = 32;
  struct Shared {
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
  // Rows from `row` on, as far as there are `rows`: one copy of those that lie back to back.
  __device__ __forceinline__ void issue(const Slab (&slabs)[Slabs], i64 row, i64 rows, int stage) const {
    u64* const full = &shared.full[slot][stage];
    const int here = Rows == 1 ? 1 : int(min(i64(Rows), rows - row));
    int bytes = 0;
#pragma unroll
    for (int i = 0; i < Slabs; ++i) bytes += slabs[i].bytes;
    mbarrier_arrive_expect_tx(full, here * bytes);
#pragma unroll
    for (int i = 0; i < Slabs; ++i)
      if (slabs[i].bytes) {
        const bool at_once = Rows == 1 || slabs[i].pitch == slabs[i].bytes;
        const int copies = at_once ? 1 : here, size = at_once ? here * slabs[i].bytes : slabs[i].bytes;
#pragma unroll 1
        for (int r = 0; r < copies; ++r)
          bulk_load(place(stage) + slabs[i].offset + r * size, slabs[i].source + (row + r) * slabs[i].pitch, size,
                    full);
      }
  }
  // By the slot's first warp, whose barriers are its own until the CTA synchronises: the first rows set out at once.
  __device__ __forceinline__ void start(const Slab (&slabs)[Slabs], i64 row, i64 rows) const {
    if (!elect()) return;
#pragma unroll 1
    for (int s = 0; s < count; ++s) mbarrier_init(&shared.full[slot][s], 1);
    fence_mbarrier_init();
    if (row < rows) issue(slabs, row, rows, 0);
  }
  // By the slot's first warp, after that: the other stages, from `row` on.
  __device__ __forceinline__ void fill(const Slab (&slabs)[Slabs], i64 row, i64 stride, i64 rows) const {
    if (!elect()) return;
#pragma unroll 1
    for (int s = 1; s < count && row < rows; ++s, row += stride) issue(slabs, row, rows, s);
  }
  __device__ __forceinline__ void wait() const {
    ::wait(&shared.full[slot][stage], phase);
  }
  // By the slot's first warp, when all its threads are past the rows before these: their stage takes those from `row`
  // on, the farthest ones ahead.
  __device__ __forceinline__ void refill(const Slab (&slabs)[Slabs], i64 row, i64 rows) const {
    if (row < rows && elect()) issue(slabs, row, rows, (stage ? stage : count) - 1);
  }
  __device__ __forceinline__ const char* current(int offset) const { return place(stage) + offset; }
  __device__ __forceinline__ void advance() {
    if (++stage == count) stage = 0, phase ^= 1;
  }
};
