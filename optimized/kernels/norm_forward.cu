#include "device/norm.cuh"
#include "device/ptx/dependency.cuh"

// Sum over the row of term(x - mu), in every thread of the row.
template <int N, int V, class X, class Scope, class Term>
__device__ __forceinline__ float row_sum(Scope& scope, const Vec<X, N> (&row)[V], int vectors, float mu, Term term) {
  float even = 0.f, odd = 0.f;  // two chains: half the latency
#pragma unroll
  for (int v = 0; v < V; ++v)
    if (v < vectors) {
      const Floats<N> x = widen(row[v]);
#pragma unroll
      for (int i = 0; i < N; ++i) (i % 2 ? odd : even) = term(x[i] - mu, i % 2 ? odd : even);
    }
  float sum[1] = {even + odd};
  scope.sum(sum);
  return sum[0];
}

// y = (x - mu) * rsigma * g + b along rows of x, with mu = 0 and b = 0 for RMSNorm and g = Gamma::gain(gamma).
//   x (rows, cols) with a pitch   gamma, beta (cols,)   y (rows, cols)   mu, rsigma (rows,) f32
// x is read once, into registers, and y written once: 2 * rows * cols * sizeof(X) bytes, the floor of this function;
// 4 (8) bytes a row of statistics and the parameters, from the L1 or L2, come on top.
// CTAs that come and go in the order of the rows keep what is in flight together in memory: a persistent grid, with
// rows arriving through a ring in shared memory, was tried and reached 3.7 TB/s where this reaches 4.0 (H200).
template <class Norm, class X, class Gamma, int N, int V, class Scope, class Fill, int Threads, int Ctas>
__global__ __launch_bounds__(Threads, Ctas) void norm_forward(const __grid_constant__ Forward a) {
  using P = typename Gamma::type;
  __shared__ typename Scope::Shared shared;
  Scope scope(shared, a.row_threads);
  const Span<Scope, N> span(a.cols);
  const Share<Scope, Fill, V> share(scope, span.vectors);
  const Slots<Scope> slots(scope);
  wait_for_grids_in_front();
  let_grid_behind_come();
  const auto column = [&](int v) { return span.first + (share.first + v * share.kStep) * N; };

  const int neighbour = Scope::kRowsPerWarp == 1 ? 0 : scope.slot() % Scope::kRowsPerWarp;
  for (i64 row = slots.first; row - neighbour < a.rows; row += slots.count) {
    const bool valid = Scope::kRowsPerWarp == 1 || row < a.rows;
    const int vectors = valid ? share.count : 0;
    Vec<X, N> x[V];
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (v < vectors) x[v] = load<X, N>(a.x, row * a.x_pitch + column(v));
    float mu = 0.f;
    if constexpr (Norm::kCentered) mu = valid ? float(load<X, 1>(a.x, row * a.x_pitch).lane[0]) : 0.f;
    scope.open();

    if constexpr (Norm::kCentered)
      mu += a.inverse_cols * row_sum(scope, x, vectors, mu, [](float d, float s) { return s + d; });
    const float square = row_sum(scope, x, vectors, mu, [](float d, float s) { return fmaf(d, d, s); });
    const float r = reciprocal_root(fmaf(square, a.inverse_cols, a.eps));

#pragma unroll
    for (int v = 0; v < V; ++v)
      if (v < vectors) {
        const Floats<N> values = widen(x[v]), g = widen(load<P, N>(a.gamma, column(v)));
        Floats<N> y, b = Floats<N>::filled(-0.f);  // -0 adds nothing, +0 would turn -0 into +0
        if (Norm::kCentered && a.beta) b = widen(load<P, N>(a.beta, column(v)));
#pragma unroll
        for (int i = 0; i < N; ++i) y[i] = fmaf((values[i] - mu) * r, Gamma::gain(g[i]), b[i]);
        Vec<X, N> out;
        narrow(y, out);
        store(a.y, row * a.cols + column(v), out);
      }
    if (scope.lane() == 0 && span.reports() && valid) {
      a.rsigma[row] = r;
      if (Norm::kCentered) a.mu[row] = mu;
    }
  }
  scope.close();
}
