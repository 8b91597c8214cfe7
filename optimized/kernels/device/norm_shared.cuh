#pragma once
#include "device/norm_rows.cuh"
#include "device/ptx/bulk.cuh"
#include "device/ptx/elect.cuh"
#include "device/wait.cuh"

// A row of a CTA's, which the copy engine puts into shared memory: how many rows are on their way to an SM does not
// depend on registers, nor how wide a row may be.
template <class Norm, class X, class Gamma, int N, int Threads>
struct SharedRows {
  static constexpr int kStep = Threads * N;
  static constexpr bool kByParts = Norm::kCentered && sizeof(X) == 2;
  static constexpr int kChains = kByParts ? 8 : 4;  // of additions in a thread: less error and latency

  // In shared memory: `row` and the barrier that its arrival completes.
  X* const row;
  u64* const full;
  u32 phase = 0;

  __device__ __forceinline__ SharedRows(X* row, u64* full) : row(row), full(full) {
    if (agreed(threadIdx.x / kWarp) == 0 && elect()) {
      mbarrier_init(full, 1);
      fence_mbarrier_init();
    }
    __syncthreads();
  }
  __device__ __forceinline__ void fetch(const Forward& a, i64 index) const {
    const u32 bytes = a.cols * sizeof(X);
    if (index >= a.rows || agreed(threadIdx.x / kWarp) > 0 || !elect()) return;
    mbarrier_arrive_expect_tx(full, bytes);
    bulk_load(row, static_cast<const X*>(a.x) + index * a.x_pitch, bytes, full);
  }
  __device__ __forceinline__ Vec<X, N> at(int column) const { return load<X, N>(row, column); }

  // As that of HeldRows.
  template <class Output>
  __device__ __forceinline__ void walk(const Forward& a, Block& scope, Output& output) {
    using Add = AddOf<X>;
    fetch(a, blockIdx.x);
    for (i64 index = blockIdx.x; index < a.rows; index += gridDim.x) {
      wait(full, phase);
      phase ^= 1;
      const auto sum_of = [&](auto& scope, auto term) {
        float chains[kChains][Add::kFloats] = {};
#pragma unroll 4
        for (int column = threadIdx.x * N; column < a.cols; column += kStep) {
          const Floats<N> x = widen(at(column));
#pragma unroll
          for (int i = 0; i < N; ++i) Add::take(chains[i % kChains], term, x[i]);
        }
#pragma unroll
        for (int i = 1; i < kChains; i *= 2)
#pragma unroll
          for (int j = 0; j < kChains; j += 2 * i) Add::add(chains[j], chains[j + i]);
        scope.template sum<Add>(chains[0]);
        return Add::total(chains[0]);
      };
      const auto sum_about = [&](float mu, auto term) {
        return sum_of(scope, [=](float x, float s) { return term(x - mu, s); });
      };
      Moments moments = {};
      float mu, r;
      if constexpr (kByParts) {
        const Turns<X, N * kWarp, Threads / kWarp> sizes{a.cols};
        moments = moments_of<X>(scope, sizes, a.inverse_cols, sum_of, [](float) {});
        mu = moments.mean, r = rsigma_of(moments.square, a.inverse_cols, a.eps);
      } else {
        const Statistics s = statistics_of<Norm>(a, row, sum_about);
        mu = s.mu, r = s.rsigma;
      }
      float scale = r;
      if constexpr (kByParts)
        if (!(r > 0.f)) scale = settle<X>(moments, Threads / kWarp, a.cols, row[0], r, mu);
      if constexpr (Output::kTakesY) {
#pragma unroll 2
        for (int first = 0; first < a.cols; first += kStep) {
          const int column = first + threadIdx.x * N;
          const bool here = column < a.cols;
          if (!Output::kTogether && !here) break;
          Floats<N> y = {};
          if (here) y = normed<Norm, X, Gamma>(a, column, less(widen(at(column)), mu), scale);
          output.put(a, index, column, y, here);
        }
      }
      if (threadIdx.x == 0) {
        a.rsigma[index] = r;
        if (Norm::kCentered) a.mu[index] = mu;
      }
      __syncthreads();  // the row's place is free
      fetch(a, index + gridDim.x);
    }
  }
};
