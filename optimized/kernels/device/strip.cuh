#pragma once
#include "device/quantize.cuh"

// Where a run of eight lies: in x, in rowwise data, and its block among the padded scales; `count` of the eight exist.
struct Spot {
  i64 source, place, scale;
  int count;
};

// That of run number `index`. `Args` has rows, cols, pitch and flat.
template <int Block, class Args>
__device__ __forceinline__ Spot spot_of(const Args& a, i64 index) {
  if (a.flat) {
    const i64 place = index * kRun, left = a.rows * a.cols - place;
    return {place, place, place / Block, int(min(i64(kRun), max(i64(0), left)))};
  }
  const u64 per_row = (a.cols + kRun - 1) / kRun;
  const bool narrow = (u64(index) | per_row) >> 32 == 0;  // a division of 32 bits takes a fifth of one of 64
  const i64 row = narrow ? u32(index) / u32(per_row) : index / per_row, col = (index - row * per_row) * kRun;
  return {row * a.pitch + col, row * a.cols + col, row * round_up(a.cols / Block, 4) + col / Block,
          row < a.rows ? int(min(i64(kRun), a.cols - col)) : 0};
}

template <class Args>
__device__ __forceinline__ i64 runs_of(const Args& a) {
  return a.flat ? (a.rows * a.cols + kRun - 1) / kRun : a.rows * ((a.cols + kRun - 1) / kRun);
}

// Elements of a CTA that follow one another along the rows: for what needs no columns.
template <class X, class Fill>
struct Strip {
  using type = X;
  using fill = Fill;
  static constexpr bool kTile = false, kColumns = false, kMeets = true;
  static constexpr int kRuns = 4;  // on their way at once

  Vec<X, kRun> run[kRuns];
  i64 part = 0;

  static __device__ __forceinline__ i64 count(const Quantize& a) {
    return (runs_of(a) + kRuns * kThreads - 1) / (kRuns * kThreads);
  }
  template <int Block>
  __device__ __forceinline__ Spot spot(const Quantize& a, int i) const {
    return spot_of<Block>(a, (part * kRuns + i) * kThreads + threadIdx.x);
  }
  __device__ __forceinline__ void load(const Quantize& a, i64 part) {
    this->part = part;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const Spot at = spot<kRun>(a, i);
      run[i] = load_run<X, Fill>(a.x, at.source, at.count, a.aligned);
    }
  }
  __device__ __forceinline__ void add_to(Peaks<X>& peaks) const {
#pragma unroll
    for (int i = 0; i < kRuns; ++i) peaks.take(run[i]);
  }
};
