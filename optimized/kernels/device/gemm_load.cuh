#pragma once
#include "device/gemm.cuh"
#include "device/gemm_operands.cuh"

// One thread of each CTA fills the stages, item after item.
template <class T, class Shared>
struct Loader {
  const Gemm& g;
  Shared& s;
  Place<T::kStages> place;

  // Both CTAs load their own part of the operand that they do not share, and a half for both of the one they do.
  template <class Major, int Count>
  __device__ __forceinline__ void operand(const TensorMap& map, char* stage, int first, int k, bool shared) {
    u64* full = &s.full[place.stage];
    const int mine = cluster_rank();
    if (shared)
      Major::template half<Count>(mine, stage, first, k, [&](char* to, int x, int y) {
        tensor_load_multicast(to, &map, x, y, full, (1 << kClusterCtas) - 1);
      });
    else
#pragma unroll
      for (int half = 0; half < 2; ++half)
        Major::template half<Count>(half, stage, first, k,
                                    [&](char* to, int x, int y) { tensor_load(to, &map, x, y, full); });
  }

  template <class Operands>
  __device__ __forceinline__ void item(const Item& item, const Product& p) {
    const Corner<T> corner(item);
#pragma unroll 1
    for (int step = 0; step < item.steps(); ++step, place.advance()) {
      wait(&s.empty[place.stage], place.phase ^ 1);
      mbarrier_arrive_expect_tx(&s.full[place.stage], T::kABytes + T::kBBytes);
      const int k = (item.first() + step) * kDepth;
      operand<typename Operands::A, T::kRows>(p.a, s.stages[place.stage].a, corner.row, k, item.shares_a());
      operand<typename Operands::B, T::kCols>(p.b, s.stages[place.stage].b, corner.col, k, !item.shares_a());
    }
  }

  // All that arrives from the other CTA has arrived once every stage is free: only then may this one end.
  __device__ __forceinline__ void drain() {
#pragma unroll 1
    for (int i = 0; i < T::kStages; ++i, place.advance()) wait(&s.empty[place.stage], place.phase ^ 1);
  }

  // C follows the stages that it is added to, as one or two more: on its way while the last products are made.
  __device__ __forceinline__ void residual(const Item& item, const TensorMap& c) {
    const Corner<T> corner(item);
#pragma unroll 1
    for (int first = 0; first < T::kTileChunks; first += T::kStageChunks, place.advance()) {
      const int count = min(T::kStageChunks, T::kTileChunks - first);
      u64* full = &s.full[place.stage];
      wait(&s.empty[place.stage], place.phase ^ 1);
      mbarrier_arrive_expect_tx(full, count * kChunkBytes);
      for (int i = 0; i < count; ++i)
        tensor_load(s.stages[place.stage].residual(i), &c, corner.col + Chunks<T>::x(first + i),
                    corner.row + Chunks<T>::y(first + i), full);
    }
  }
};
