#pragma once
#include "device/norm.cuh"

// How rows of X are added up: y of a float32 row keeps all digits, and shows whether sums were rounded as the
// reference's.
template <class X>
struct Adding { using type = Each; };
template <>
struct Adding<float> { using type = Twofold; };
template <class X>
using AddOf = typename Adding<X>::type;

// What a thread has of a row, less what was taken off, as float32: widened once, or, where registers do not hold that,
// at each use.
template <class X, int N, int V, bool Widened>
struct Values {
  Floats<N> value[V];

  __device__ __forceinline__ Values(const Vec<X, N> (&x)[V], int vectors) {
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (v < vectors) value[v] = widen(x[v]);
  }
  __device__ __forceinline__ void take_off(float mu) {
#pragma unroll
    for (int v = 0; v < V; ++v) value[v] = less(value[v], mu);
  }
  __device__ __forceinline__ Floats<N> operator[](int v) const { return value[v]; }
};
template <class X, int N, int V>
struct Values<X, N, V, false> {
  const Vec<X, N> (&x)[V];
  float off = 0.f;

  __device__ __forceinline__ Values(const Vec<X, N> (&x)[V], int) : x(x) {}
  __device__ __forceinline__ void take_off(float mu) { off = mu; }
  __device__ __forceinline__ Floats<N> operator[](int v) const { return less(widen_singly(x[v]), off); }
};

// Sum over the row, of elements X, of term(value), in every thread of the row.
template <int V, class X, class Row, class Scope, class Term>
__device__ __forceinline__ float row_sum(Scope& scope, const Row& row, int vectors, Term term) {
  using Add = AddOf<X>;
  float chains[2][Add::kFloats] = {};  // two: half the latency
#pragma unroll
  for (int v = 0; v < V; ++v)
    if (v < vectors) {
      const auto x = row[v];
#pragma unroll
      for (int i = 0; i < int(sizeof(x) / sizeof(float)); ++i) Add::take(chains[i % 2], term, x[i]);
    }
  Add::add(chains[0], chains[1]);
  scope.template sum<Add>(chains[0]);
  return Add::total(chains[0]);
}

// y = d * rsigma * g + b of neighbours in a row from `column` on: d = x - mu, and for RMSNorm d = x and b = 0;
// g = Gamma::gain(gamma).
template <class Norm, class X, class Gamma, int N>
__device__ __forceinline__ Floats<N> normed(const Forward& a, i64 column, const Floats<N>& d, float r) {
  using P = typename Gamma::type;
  const Floats<N> g = widen(load<P, N>(a.gamma, column));
  Floats<N> y, b = Floats<N>::filled(-0.f);  // -0 adds nothing, +0 would turn -0 into +0
  if (Norm::kCentered && a.beta) b = widen(load<P, N>(a.beta, column));
#pragma unroll
  for (int i = 0; i < N; ++i) y[i] = gained<X>(d[i] * r, Gamma::gain(g[i]), b[i]);
  return y;
}

// What a thread has of its last rows, kept between two walks over them: `places` rows in dynamic shared memory; none.
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

// The rows of a grid's threads, each read once and held in registers: V vectors of N elements a thread.
template <class Norm, class X, class Gamma, int N, int V, class Scope, class Fill,
          bool Widened = Fill::kWhole && N * V <= 32>
struct HeldRows {
  const Span<Scope, N> span;
  const Share<Scope, Fill, V> share;
  const Slots<Scope> slots;

  __device__ __forceinline__ HeldRows(const Scope& scope, int cols)
      : span(cols), share(scope, span.vectors), slots(scope) {}

  // How many rows this thread's warp goes through.
  __device__ __forceinline__ int number(const Forward& a, const Scope& scope) const {
    const i64 top = slots.first - (Scope::kRowsPerWarp == 1 ? 0 : scope.slot() % Scope::kRowsPerWarp);
    return top < a.rows ? int((a.rows - 1 - top) / slots.count) + 1 : 0;
  }

  // Writes the statistics of each row and gives y to `output`: put(row, column, y, here), by all lanes where it is
  // `kTogether`, else by those that are `here`.
  template <class Output, class Kept = KeptNowhere>
  __device__ __forceinline__ void walk(const Forward& a, Scope& scope, Output& output, const Kept& kept = {}) const {
    const auto column = [&](int v) { return span.first + (share.first + v * share.kStep) * N; };
    const int neighbour = Scope::kRowsPerWarp == 1 ? 0 : scope.slot() % Scope::kRowsPerWarp;
    int place = 0;  // of the next row that is kept, below 0 before the first
    if constexpr (Kept::kKeeps) place = min(0, kept.places - number(a, scope));
    for (i64 row = slots.first; row - neighbour < a.rows; row += slots.count) {
      const bool valid = Scope::kRowsPerWarp == 1 || row < a.rows;
      const int vectors = valid ? share.count : 0;
      Vec<X, N> x[V];
#pragma unroll
      for (int v = 0; v < V; ++v)
        if (v < vectors) x[v] = load<X, N>(a.x, row * a.x_pitch + column(v));
      if constexpr (Kept::kKeeps) {
#pragma unroll
        for (int v = 0; v < V; ++v)
          if (v < vectors && place >= 0) Kept::at(place, v) = x[v];
        ++place;
      }
      float mu = 0.f;
      if constexpr (Norm::kCentered) mu = valid ? float(load<X, 1>(a.x, row * a.x_pitch).lane[0]) : 0.f;
      scope.open();

      Values<X, N, V, Widened> d(x, vectors);
      if constexpr (Norm::kCentered) {
        const float sum = row_sum<V, X>(scope, d, vectors, [mu](float x, float s) { return s + (x - mu); });
        mu = mean_of(sum, a.inverse_cols, mu);
        d.take_off(mu);
      }
      const float square = row_sum<V, X>(scope, d, vectors, [](float d, float s) { return fmaf(d, d, s); });
      const float r = rsigma_of(square, a.inverse_cols, a.eps);

      if constexpr (Output::kTakesY)
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const bool here = v < vectors;
          if (!Output::kTogether && !here) continue;
          Floats<N> y = {};
          if (!Output::kTogether || here) y = normed<Norm, X, Gamma>(a, column(v), d[v], r);
          output.put(a, row, column(v), y, here);
        }
      if (scope.lane() == 0 && span.reports() && valid) {
        a.rsigma[row] = r;
        if (Norm::kCentered) a.mu[row] = mu;
      }
    }
    scope.close();
  }

  // The same rows again, the last first, their statistics being in memory: gives y to `output`.
  template <class Output, class Kept>
  __device__ __forceinline__ void walk_back(const Forward& a, const Scope& scope, Output& output,
                                            const Kept& kept) const {
    const auto column = [&](int v) { return span.first + (share.first + v * share.kStep) * N; };
    const int rows = number(a, scope);
    int place = min(rows, kept.places);
    for (i64 row = slots.first + i64(rows - 1) * slots.count; row >= slots.first; row -= slots.count) {
      --place;
      const bool valid = Scope::kRowsPerWarp == 1 || row < a.rows;
      const int vectors = valid ? share.count : 0;
      Vec<X, N> x[V];
#pragma unroll
      for (int v = 0; v < V; ++v)
        if (v < vectors) x[v] = place >= 0 ? Kept::at(place, v) : load<X, N>(a.x, row * a.x_pitch + column(v));
      const float r = valid ? __ldcg(a.rsigma + row) : 0.f, mu = Norm::kCentered && valid ? __ldcg(a.mu + row) : 0.f;
#pragma unroll
      for (int v = 0; v < V; ++v)
        if (v < vectors)
          output.put(a, row, column(v), normed<Norm, X, Gamma>(a, column(v), less(widen(x[v]), mu), r), true);
    }
  }
};

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
