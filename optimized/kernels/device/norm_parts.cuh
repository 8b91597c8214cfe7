#pragma once
#include "device/norm_output.cuh"
#include "device/norm_walked.cuh"
#include "device/strip.cuh"
#include "device/tile.cuh"

// Parts of y = norm(x), in the place of parts of x, once the statistics of all rows are in memory.

struct NormPointers {
  const void *gamma, *beta;
  float *mu, *rsigma;
};
struct NormScalars {
  float eps, inverse_cols;
  int row_threads;
};
// Arguments, in the order that the launcher packs them. `x` is that of the norm.
struct NormQuantize : NormPointers, Quantize, NormScalars {
  __device__ __forceinline__ Forward forward() const {
    return {x, gamma, beta, nullptr, mu, rsigma, rows, pitch, int(cols), row_threads, eps, inverse_cols};
  }
};

// gamma and beta of eight neighbours, of which `count` are there.
template <class Norm, class P, class Fill>
struct Parameters {
  Vec<P, kRun> gamma, beta;

  __device__ __forceinline__ Parameters(const void* gammas, const void* betas, i64 column, int count)
      : gamma(load_run<P, Fill>(gammas, column, count, true)) {
#pragma unroll
    for (int i = 0; i < kRun; ++i) beta.lane[i] = P(-0.f);  // -0 adds nothing, +0 would turn -0 into +0
    if (Norm::kCentered && betas) beta = load_run<P, Fill>(betas, column, count, true);
  }
};

// y of eight neighbours in a row, with the operations of HeldRows.
template <class Gamma, class X, class Parameters>
__device__ __forceinline__ Floats<kRun> normed_by(float mu, float r, const Vec<X, kRun>& x,
                                                  const Parameters& parameters) {
  const Floats<kRun> v = widen(x), g = widen(parameters.gamma), b = widen_singly(parameters.beta);
  Floats<kRun> y;
#pragma unroll
  for (int i = 0; i < kRun; ++i) y[i] = gained<X>((v[i] - mu) * r, Gamma::gain(g[i]), b[i]);
  return y;
}

// The same where the statistics are in memory, rounded to Y: `count` of the eight are there, zeros stand for others.
template <class Norm, class Gamma, class Fill, class Y, class X>
__device__ __forceinline__ Vec<Y, kRun> normed_run(const NormQuantize& a, i64 row, int count, const Vec<X, kRun>& x,
                                                   const Parameters<Norm, typename Gamma::type, Fill>& parameters) {
  const float r = count ? __ldcg(a.rsigma + row) : 0.f, mu = Norm::kCentered && count ? __ldcg(a.mu + row) : 0.f;
  Floats<kRun> y = normed_by<Gamma>(mu, r, x, parameters);
#pragma unroll
  for (int i = 0; i < kRun; ++i) y[i] = (Fill::kWhole ? count : i < count) ? y[i] : 0.f;
  Vec<Y, kRun> rounded;
  narrow(y, rounded);
  return rounded;
}

template <class Base, class Norm, class X, class Gamma>
struct NormedTileOf : Base {
  using Y = typename Base::type;

  __device__ __forceinline__ void load(const NormQuantize& a, i64 part) {
    const u32 wide = Base::across(a);
    this->first_row = u32(part) / wide * kEdge, this->first_col = u32(part) % wide * kEdge;
    const i64 row = this->first_row + Base::top(), column = this->first_col + Base::left();
    this->columns = min(i64(kRun), max(i64(0), a.cols - column));
    this->rows = this->columns ? min(i64(kRun), max(i64(0), a.rows - row)) : 0;
    using Fill = typename Base::fill;
    const Parameters<Norm, typename Gamma::type, Fill> parameters(a.gamma, a.beta, column, this->columns);
    Vec<X, kRun> x[kRun];
#pragma unroll
    for (int i = 0; i < kRun; ++i)
      x[i] = load_run<X, Fill>(a.x, (row + i) * a.pitch + column, this->in_row(i), a.aligned);
#pragma unroll
    for (int i = 0; i < kRun; ++i)
      this->row[i] = normed_run<Norm, Gamma, Fill, Y>(a, row + i, this->in_row(i), x[i], parameters);
  }
};
template <class Norm, class X, class Gamma, class Y, class Fill>
using NormedTile = NormedTileOf<Tile<Y, Fill>, Norm, X, Gamma>;
template <class Norm, class X, class Gamma, class Y, class Fill>
using NormedRowTile = NormedTileOf<RowTile<Y, Fill>, Norm, X, Gamma>;

template <class Norm, class X, class Gamma, class Y, class Fill>
struct NormedStrip : Strip<Y, Fill> {
  using Base = Strip<Y, Fill>;

  __device__ __forceinline__ void load(const NormQuantize& a, i64 part) {
    this->part = part;
    const u32 per_row = (a.cols + kRun - 1) / kRun;  // of runs: a row has fewer than 2^31 elements
    Vec<X, kRun> x[Base::kRuns];
    i64 row[Base::kRuns];
    int column[Base::kRuns], count[Base::kRuns];
#pragma unroll
    for (int i = 0; i < Base::kRuns; ++i) {
      const u64 index = (part * Base::kRuns + i) * kThreads + threadIdx.x;
      row[i] = index >> 32 ? index / per_row : u32(index) / per_row;  // 32 bits divide in a fifth of the time of 64
      column[i] = int(index - row[i] * per_row) * kRun;
      count[i] = row[i] < a.rows ? int(min(i64(kRun), a.cols - column[i])) : 0;
      x[i] = load_run<X, Fill>(a.x, row[i] * a.pitch + column[i], count[i], a.aligned);
    }
#pragma unroll
    for (int i = 0; i < Base::kRuns; ++i) {
      const Parameters<Norm, typename Gamma::type, Fill> parameters(a.gamma, a.beta, column[i], count[i]);
      this->run[i] = normed_run<Norm, Gamma, Fill, Y>(a, row[i], count[i], x[i], parameters);
    }
  }
};

// A part of what a launch quantizes whose amax, and whose rows' statistics, an earlier launch has left in memory.
template <class Part>
struct Later : Part { static constexpr bool kMeets = false; };

// Statistics of rows; what else happens to y.
struct Nothing {
  static constexpr bool kTakesY = false, kTogether = false;
};
// How rows go through registers before they are quantized: held in them, or walked along.
template <class Norm, class X, class Gamma, int N, int V, class Scope, class Fill>
struct Held {
  using Shared = typename Scope::Shared;
  template <class Output>
  static __device__ __forceinline__ void walk(const Forward& a, Shared& shared, Output& output) {
    Scope scope(shared, a.row_threads);
    HeldRows<Norm, X, Gamma, N, V, Scope, Fill, kThreads, false>(scope, a.cols).walk(a, scope, output);
  }
};
template <class Norm, class X, class Gamma, int N>
struct Walked {
  using Shared = Group::Shared;
  template <class Output>
  static __device__ __forceinline__ void walk(const Forward& a, Shared& shared, Output& output) {
    Group scope(shared, kThreads);
    WalkedRows<Norm, X, Gamma, N, kThreads>::walk(a, scope, output);
  }
};
