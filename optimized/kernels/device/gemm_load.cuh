#pragma once
#include "device/gemm.cuh"
#include "device/gemm_operands.cuh"

// Of an operand, `Count` rows of A or columns of B from `first` on. What lies beyond `end` counts for nothing that is
// stored; where it can be left out it is, because the copy engine takes longer to fill it up than to load as much.
template <class Major, int Count>
struct Source {
  const TensorMap &map, &edge;
  const int first, end;

  __device__ __forceinline__ int bytes() const {
    return Major::kFills ? Count * kDepth * 2 : max(0, min(Count, end - first)) * kDepth * 2;
  }
  // Both halves, for this CTA.
  __device__ __forceinline__ void load(char* stage, int k, u64* full) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      boxes(half, stage, k, [&](const TensorMap& map, char* to, int x, int y) { tensor_load(to, &map, x, y, full); });
  }
  // One half, for both CTAs, each of which loads another.
  __device__ __forceinline__ void load_shared(char* stage, int k, u64* full) const {
    boxes(cluster_rank(), stage, k, [&](const TensorMap& map, char* to, int x, int y) {
      tensor_load_multicast(to, &map, x, y, full, (1 << kClusterCtas) - 1);
    });
  }

 private:
  template <class Load>
  __device__ __forceinline__ void boxes(int half, char* stage, int k, Load load) const {
    const int left = end - first - half * (Count / 2);
    if (!Major::kFills && left <= 0) return;
    const TensorMap& box = Major::kFills || left >= Count / 2 ? map : edge;
    Major::template half<Count>(half, stage, first, k, [&](char* to, int x, int y) { load(box, to, x, y); });
  }
};

// One thread of each CTA fills the stages, item after item.
template <class T, class Shared>
struct Loader {
  const Gemm& g;
  Shared& s;
  Place<T::kStages> place;

  template <class Operands>
  __device__ __forceinline__ void item(const Item& item, const Product& p, int rows, int cols) {
    const Corner<T> corner(item);
    const Source<typename Operands::A, T::kRows> a{p.a, p.a_edge, corner.row, rows};
    const Source<typename Operands::B, T::kCols> b{p.b, p.b_edge, corner.col, cols};
#pragma unroll 1
    for (int step = 0; step < item.steps(); ++step, place.advance()) {
      auto& stage = s.stages[place.stage];
      u64* const full = &s.full[place.stage];
      const int k = (item.first() + step) * kDepth;
      wait(&s.empty[place.stage], place.phase ^ 1);
      mbarrier_arrive_expect_tx(full, a.bytes() + b.bytes());
      if (item.shares_a())  // what both CTAs wait for goes first
        a.load_shared(stage.a, k, full), b.load(stage.b, k, full);
      else
        b.load_shared(stage.b, k, full), a.load(stage.a, k, full);
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
