#pragma once
#include "device/gemm.cuh"
#include "device/gemm_operands.cuh"
#include "device/ptx/elect.cuh"

// One half of an operand's stage: of `Count` rows of A or columns of B from `first` on. What lies beyond `end` counts
// for nothing that is stored; where it can be left out it is, because the copy engine takes longer to fill it up than
// to load as much.
template <class Major, int Count>
struct Half {
  const TensorMap* box;  // null: nothing of it is there
  const int half, first;

  __device__ __forceinline__ Half(const TensorMap& whole, const TensorMap& edge, int half, int first, int end)
      : half(half), first(first) {
    const int left = end - first - half * (Count / 2);
    box = Major::kFills || left >= Count / 2 ? &whole : left > 0 ? &edge : nullptr;
  }
  template <class Load>
  __device__ __forceinline__ void load(char* operand, int k, Load load) const {
    if (Major::kFills || box)
      Major::template half<Count>(half, operand, first, k, [&](char* to, int x, int y) { load(to, box, x, y); });
  }
};

// What arrives of an operand in each CTA: a half that this one loads for both, or both of its own.
template <class Major, int Count>
struct Source {
  Half<Major, Count> shared, low, high;
  int bytes;

  __device__ __forceinline__ Source(const TensorMap& whole, const TensorMap& edge, int first, int end)
      : shared(whole, edge, cluster_rank(), first, end), low(whole, edge, 0, first, end),
        high(whole, edge, 1, first, end),
        bytes((Major::kFills ? Count : max(0, min(Count, end - first))) * kDepth * 2) {}

  __device__ __forceinline__ void load_shared(char* operand, int k, u64* full) const {
    shared.load(operand, k, [&](char* to, const TensorMap* box, int x, int y) {
      tensor_load_multicast(to, box, x, y, full, (1 << kClusterCtas) - 1);
    });
  }
  __device__ __forceinline__ void load(char* operand, int k, u64* full) const {
    const auto one = [&](char* to, const TensorMap* box, int x, int y) { tensor_load(to, box, x, y, full); };
    low.load(operand, k, one);
    high.load(operand, k, one);
  }
};

// A warp's part of filling the stages, item after item: always the same stages. If they were every other step's, and
// odd in number, one warp could be a whole round ahead of the other, and the phase of a stage looks like the one after
// next.
template <class T, class Shared>
struct Loader {
  const Gemm& g;
  Shared& s;
  const int warp;
  Place<T::kStages> place;  // of this warp's next stage, which is so many
  int ahead;

  __device__ __forceinline__ Loader(const Gemm& g, Shared& s, int warp)
      : g(g), s(s), warp(warp), place{warp}, ahead(warp) {}

  // Calls fill(step, stage, full) for each step of `count` that goes to a stage of this warp's, when the stage is free.
  template <class Fill>
  __device__ __forceinline__ void stages(int count, Fill fill) {
#pragma unroll 1
    while (ahead < count) {
      const int now = place.stage;
      wait(&s.empty[now], place.phase ^ 1);
      if (elect()) fill(ahead, s.stages[now], &s.full[now]);
      if ((place.stage += kLoaders) >= T::kStages) place.stage = warp, place.phase ^= 1, ahead += T::kStages;
      ahead += place.stage - now;
    }
    ahead -= count;
  }

  template <class Operands>
  __device__ __forceinline__ void item(const Item& item, const Product& p, int rows, int cols) {
    using Stage = typename Shared::Stage;
    const Corner<T> corner(item);
    const Source<typename Operands::A, T::kRows> a(p.a, p.a_edge, corner.row, rows);
    const Source<typename Operands::B, T::kCols> b(p.b, p.b_edge, corner.col, cols);
    const int bytes = a.bytes + b.bytes, shares_a = item.shares_a();
    stages(item.steps, [&](int step, Stage& stage, u64* full) {
      const int k = step * kDepth;
      mbarrier_arrive_expect_tx(full, bytes);
      if (shares_a)  // what both CTAs wait for goes first
        a.load_shared(stage.a, k, full), b.load(stage.b, k, full);
      else
        b.load_shared(stage.b, k, full), a.load(stage.a, k, full);
    });
  }

  // All that arrives from the other CTA has arrived once every stage is free: only then may this one end.
  __device__ __forceinline__ void drain() {
    stages(T::kStages, [](int, typename Shared::Stage&, u64*) {});
  }

  // C follows the stages that it is added to, as one or two more: on its way while the last products are made.
  template <bool Across>
  __device__ __forceinline__ void residual(const Item& item, const TensorMap& c) {
    const Corner<T> corner(item);
    stages(T::kResidualStages, [&](int step, typename Shared::Stage& stage, u64* full) {
      const int first = step * T::kStageChunks, count = min(T::kStageChunks, T::kTileChunks - first);
      mbarrier_arrive_expect_tx(full, count * kChunkBytes);
      for (int i = 0; i < count; ++i) {
        const int2 at = placed<Across>(corner.col + Chunks<T>::x(first + i), corner.row + Chunks<T>::y(first + i));
        tensor_load(stage.residual(i), &c, at.x, at.y, full);
      }
    });
  }
};
