#pragma once
#include "device/norm_moments.cuh"
#include "device/norm_values.cuh"

// How rows of X are added up: y of a float32 row keeps all digits, and shows whether sums were rounded as the
// reference's.
template <class X>
struct Adding { using type = Each; };
template <>
struct Adding<float> { using type = Twofold; };
template <class X>
using AddOf = typename Adding<X>::type;

// Sum over the row, of elements X, of term(value), in every thread of the row.
template <int V, class X, int Chains = 2, class Row, class Scope, class Term>
__device__ __forceinline__ float row_sum(Scope& scope, const Row& row, int vectors, Term term) {
  using Add = AddOf<X>;
  float chains[Chains][Add::kFloats] = {};  // more than one: less latency and error
#pragma unroll
  for (int v = 0; v < V; ++v)
    if (v < vectors) {
      const auto x = row[v];
#pragma unroll
      for (int i = 0; i < int(sizeof(x) / sizeof(float)); ++i) Add::take(chains[i % Chains], term, x[i]);
    }
  Add::add(chains[0], chains[1]);
  if constexpr (Chains == 4) {
    Add::add(chains[2], chains[3]);
    Add::add(chains[0], chains[2]);
  }
  scope.template sum<Add>(chains[0]);
  return Add::total(chains[0]);
}

// gamma and beta of N neighbours, as they lie in memory, and y = d * rsigma * g + b of a row there: d = x - mu, and for
// RMSNorm d = x and b = 0; g = Gamma::gain(gamma).
template <class Norm, class Gamma, int N>
struct Gains {
  using P = typename Gamma::type;
  Vec<P, N> gamma, beta;

  __device__ __forceinline__ Gains(const Forward& a, i64 column)
      : gamma(load<P, N>(a.gamma, column)), beta(negative_zeros<P, N>()) {  // -0 adds nothing, +0 turns -0 into +0
    if (Norm::kCentered && a.beta) beta = load<P, N>(a.beta, column);
  }
  template <class X>
  __device__ __forceinline__ Floats<N> normed(const Floats<N>& d, float r) const {
    const Floats<N> g = widen(gamma);
    Floats<N> y, b = Floats<N>::filled(-0.f);
    if constexpr (Norm::kCentered) b = widen(beta);
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = gained<X>(d[i] * r, Gamma::gain(g[i]), b[i]);
    return y;
  }
};
template <class Norm, class X, class Gamma, int N>
__device__ __forceinline__ Floats<N> normed(const Forward& a, i64 column, const Floats<N>& d, float r) {
  return Gains<Norm, Gamma, N>(a, column).template normed<X>(d, r);
}

// What a thread has of its first rows, kept between two walks over them: `places` rows in dynamic shared memory; none.
struct KeptNowhere {
  static constexpr bool kKeeps = false;
};
template <class X, int N, int V>
struct KeptRows {
  static constexpr bool kKeeps = true;
  const int places;

  static __device__ __forceinline__ Vec<X, N>& at(int place, int v) {
    return reinterpret_cast<Vec<X, N>*>(dynamic_shared())[(place * V + v) * blockDim.x + threadIdx.x];
  }
};

// Whether vectors that a ragged row does not have are added up, too, as zeros or, where that is taken off, its mean.
template <class Norm, class X, int N, class Scope>
constexpr bool fills() { return sizeof(X) == 2 && N == 8 && !(Norm::kCentered && Scope::kCluster); }

// The rows of a grid's threads, up to `Threads` a row, each read once and held in registers: V vectors of N elements a
// thread.
template <class Norm, class X, class Gamma, int N, int V, class Scope, class Fill, int Threads,
          bool Widened = N * V <= 32 && (Fill::kWhole || fills<Norm, X, N, Scope>()), class Order = Slots<Scope>>
struct HeldRows {
  static constexpr bool kByParts = Norm::kCentered && sizeof(X) == 2 && !Scope::kCluster;
  static constexpr bool kFilled = Widened && !Fill::kWhole && fills<Norm, X, N, Scope>();
  static constexpr int kWarps = Scope::warps(Threads);
  const Span<Scope, N> span;
  const Share<Scope, Fill, V> share;
  const Order slots;

  __device__ __forceinline__ HeldRows(const Scope& scope, int cols)
      : span(cols), share(scope, span.vectors), slots(scope) {}

  // How many rows this thread's warp goes through.
  __device__ __forceinline__ int number(const Forward& a) const {
    return slots.top < a.rows ? int((a.rows - 1 - slots.top) / slots.count) + 1 : 0;
  }

  // Takes the mean off what a thread has of a row of 16-bit elements.
  template <class Row>
  __device__ __forceinline__ Moments moments_of_row(const Forward& a, Scope& scope, Row& d, int vectors) const {
    using Sizes = Runs<X, Fill, N * V * Scope::kStep, kWarps>;
    const auto sum_of = [&](auto& lanes, auto term) {
      d.keep();
      return row_sum<V, X, 4>(lanes, d, kFilled ? V : vectors, term);
    };
    const auto fill = [&](float with) {
      if constexpr (kFilled) d.fill(vectors, with);
    };
    Moments moments;
    if constexpr (kWarps > 1) {
      moments = moments_of<X>(scope, Sizes{a.cols}, a.inverse_cols, sum_of, fill);
      d.take_off(moments.mean);
    } else {
      const float sum = sum_of(scope, [](float x, float s) { return fmaf(x, kShrink<X>, s); });
      const Size size = {float(a.cols), a.inverse_cols * (1.f / kShrink<X>)};
      fill(moments.mean = Center<X, Sizes::kEven>(sum, size).mean);
      d.take_off(moments.mean);
      moments.square = sum_of(scope, [](float d, float s) { return fmaf(d, d, s); });
      moments.parts = nullptr;
    }
    return moments;
  }

  // Writes the statistics of each row and gives y to `output`: put(row, column, y, here), by all lanes where it is
  // `kTogether`, else by those that are `here`.
  template <class Output, class Kept = KeptNowhere>
  __device__ __forceinline__ void walk(const Forward& a, Scope& scope, Output& output, const Kept& kept = {}) const {
    const auto column = [&](int v) { return span.first + (share.first + v * share.kStep) * N; };
    if constexpr (kByParts) __builtin_assume(share.first >= 0);  // so that columns are divided by shifts alone
    i64 top;
    for (int place = 0; (top = slots.top + i64(place) * slots.count) < a.rows; ++place) {
      const i64 row = top + slots.beside;
      const bool valid = Scope::kRowsPerWarp == 1 || row < a.rows;
      const int vectors = valid ? share.count : 0;
      Vec<X, N> x[V];
      if constexpr (kFilled)
#pragma unroll
        for (int v = 0; v < V; ++v) x[v] = {};
#pragma unroll
      for (int v = 0; v < V; ++v)
        if (v < vectors) x[v] = load<X, N>(a.x, row * a.x_pitch + column(v));
      if constexpr (Kept::kKeeps)
        if (place < kept.places)
#pragma unroll
          for (int v = 0; v < V; ++v)
            if (v < vectors) Kept::at(place, v) = x[v];
      float mu = 0.f, square;
      if constexpr (Norm::kCentered && !kByParts) mu = valid ? float(load<X, 1>(a.x, row * a.x_pitch).lane[0]) : 0.f;
      scope.open();

      Values<X, N, V, Widened> d(x, kFilled ? V : vectors);
      Moments moments = {};
      if constexpr (kByParts) {
        moments = moments_of_row(a, scope, d, vectors);
        mu = moments.mean, square = moments.square;
      } else {
        if constexpr (Norm::kCentered) {
          const float sum = row_sum<V, X>(scope, d, vectors, [mu](float x, float s) { return s + (x - mu); });
          mu = mean_of(sum, a.inverse_cols, mu);
          d.take_off(mu);
        }
        square = row_sum<V, X>(scope, d, kFilled ? V : vectors, [](float d, float s) { return fmaf(d, d, s); });
      }
      const float r = rsigma_of(square, a.inverse_cols, a.eps);
      float scale = r;
      if constexpr (kByParts)
        if (!(r > 0.f) && valid)
          scale = settle<X>(moments, scope.size() / kWarp, a.cols, load<X, 1>(a.x, row * a.x_pitch).lane[0], r, mu);
      if (scope.lane() == 0 && span.reports() && valid) {
        a.rsigma[row] = r;
        if (Norm::kCentered) a.mu[row] = mu;
      }
      if constexpr (Output::kTakesY)
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const bool here = v < vectors;
          if (!Output::kTogether && !here) continue;
          Floats<N> y = {};
          if (!Output::kTogether || here) y = normed<Norm, X, Gamma>(a, column(v), d[v], scale);
          output.put(a, row, column(v), y, here);
        }
    }
    scope.close();
  }

  // The same rows again, the last first, their statistics being in memory: gives y to `output`.
  template <class Output, class Kept>
  __device__ __forceinline__ void walk_back(const Forward& a, Output& output, const Kept& kept) const {
    const auto column = [&](int v) { return span.first + (share.first + v * share.kStep) * N; };
    for (int place = number(a) - 1; place >= 0; --place) {
      const i64 row = slots.top + slots.beside + i64(place) * slots.count;
      const bool valid = Scope::kRowsPerWarp == 1 || row < a.rows;
      const int vectors = valid ? share.count : 0;
      const float r = valid ? __ldcg(a.rsigma + row) : 0.f, mu = Norm::kCentered && valid ? __ldcg(a.mu + row) : 0.f;
      Vec<X, N> x[V];
      if (place < kept.places) {
#pragma unroll
        for (int v = 0; v < V; ++v)
          if (v < vectors) x[v] = Kept::at(place, v);
      } else {
#pragma unroll
        for (int v = 0; v < V; ++v)
          if (v < vectors) x[v] = load<X, N>(a.x, row * a.x_pitch + column(v));
      }
#pragma unroll
      for (int v = 0; v < V; ++v)
        if (v < vectors)
          output.put(a, row, column(v), normed<Norm, X, Gamma>(a, column(v), less(widen(x[v]), mu), r), true);
    }
  }
};

struct Statistics {
  float mu, rsigma;
};
// Of a row that begins at `x`; sum_of(mu, term): the sum over it of term(value less mu, sum).
template <class Norm, class X, class SumOf>
__device__ __forceinline__ Statistics statistics_of(const Forward& a, const X* x, SumOf sum_of) {
  float mu = 0.f;
  if constexpr (Norm::kCentered) {
    mu = float(x[0]);
    mu = mean_of(sum_of(mu, [](float d, float s) { return s + d; }), a.inverse_cols, mu);
  }
  const float square = sum_of(mu, [](float d, float s) { return fmaf(d, d, s); });
  return {mu, rsigma_of(square, a.inverse_cols, a.eps)};
}

// `store` in units of 16 or 8 bytes, which the compiler does not take apart.
template <class T, int N>
__device__ __forceinline__ void store_in_units(void* p, i64 element, const Vec<T, N>& v) {
  T* const to = static_cast<T*>(p) + element;
  if constexpr (sizeof(v) % 16 == 0) {
#pragma unroll
    for (int i = 0; i < int(sizeof(v)) / 16; ++i)
      __stwb(reinterpret_cast<uint4*>(to) + i, reinterpret_cast<const uint4*>(&v)[i]);
  } else if constexpr (sizeof(v) == 8) {
    __stwb(reinterpret_cast<uint2*>(to), reinterpret_cast<const uint2&>(v));
  } else {
    store(p, element, v);
  }
}

// y in memory, as Y.
template <class Y>
struct Store {
  using Args = Forward;
  struct Shared {};
  static constexpr bool kTakesY = true, kTogether = false;

  __device__ __forceinline__ Store(const Args&) {}
  template <int N>
  __device__ __forceinline__ void put(const Forward& a, i64 row, i64 column, const Floats<N>& y, bool) const {
    Vec<Y, N> out;
    narrow(y, out);
    store_in_units(a.y, row * a.cols + column, out);
  }
  __device__ __forceinline__ void finish(Shared&) const {}
};
