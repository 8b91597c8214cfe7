#pragma once
#include "device/norm_rows.cuh"

// Sum over a row of what take(vector index, sum) adds of a vector to a sum of zero, in every of the CTA's threads.
template <int Threads, class Add, class Take>
__device__ __forceinline__ float walked_sum(Group& scope, int vectors, Take take) {
  float chains[4][Add::kFloats] = {};  // a quarter of the additions each: less error and latency
  for (int first = threadIdx.x; first < vectors; first += 4 * Threads)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (first + i * Threads < vectors) {
        float of[Add::kFloats] = {};
        take(first + i * Threads, of);
        Add::add(chains[i], of);
      }
  Add::add(chains[0], chains[1]);
  Add::add(chains[2], chains[3]);
  Add::add(chains[0], chains[2]);
  scope.template sum<Add>(chains[0]);
  return Add::total(chains[0]);
}

// Rows of any width: a CTA of `Threads` walks along its row once for each sum and once for the result, and finds it in
// the L1 or L2 after the first time.
template <class Norm, class X, class Gamma, int N, int Threads>
struct WalkedRows {
  using Add = AddOf<X>;

  // As that of HeldRows.
  template <class Output>
  static __device__ __forceinline__ void walk(const Forward& a, Group& scope, Output& output) {
    const int vectors = a.cols / N;
    for (i64 row = blockIdx.x; row < a.rows; row += gridDim.x) {
      const X* const x = static_cast<const X*>(a.x) + row * a.x_pitch;
      const auto sum_of = [&](float mu, auto term) {
        return walked_sum<Threads, Add>(scope, vectors, [&](int v, float (&sum)[Add::kFloats]) {
          for (const float value : widen(load<X, N>(x, i64(v) * N)).lane) Add::take(sum, term, value - mu);
        });
      };
      const auto [mu, r] = statistics_of<Norm>(a, x, sum_of);

      if constexpr (Output::kTakesY)
        for (int v = threadIdx.x; v < vectors; v += Threads)
          output.put(a, row, i64(v) * N,
                     normed<Norm, X, Gamma>(a, i64(v) * N, less(widen(load<X, N>(x, i64(v) * N)), mu), r), true);
      if (threadIdx.x == 0) {
        a.rsigma[row] = r;
        if (Norm::kCentered) a.mu[row] = mu;
      }
    }
  }
};
