#include "device/columns.cuh"
#include "device/gradient_rows.cuh"
#include "device/ptx/dependency.cuh"

// With x^ = (x - mu) * rsigma (mu = 0 for RMSNorm) and w = dz * g, along rows:
//   dx = rsigma * (w - mean(w) - x^ * mean(w * x^)) + add, without mean(w) for RMSNorm
//   dgamma = sum over rows of dz * x^      dbeta = sum over rows of dz
//   x, dz, add (rows, cols) with pitches   mu, rsigma (rows,) f32   dx (rows, cols)   gamma, dgamma, dbeta (cols,) of
//   type P
// x, dz and add are read once, dx is written once: the floor. Partial sums of dgamma and dbeta stay in registers and
// cost 8 bytes a column and CTA on top, in the L2. Where rows are few, CTAs without any help with the last sums.
template <class Norm, class X, class Dz, class P, int N, int V, class Scope,
          template <class, class, class, class, int, int, class> class Source, int Threads>
__global__ __launch_bounds__(Threads, 1) void norm_backward(const __grid_constant__ Backward a) {
  constexpr int kSums = Norm::kCentered ? 2 : 1;
  using Rows = Source<Norm, X, Dz, P, N, V, Scope>;
  __shared__ struct { typename Scope::Shared scope; typename Rows::Shared rows; } shared;
  Scope scope(shared.scope, a.row_threads);
  const Span<Scope, N> span(a.cols);
  const Share<Scope, Ragged, V> share(scope, span.vectors);
  const Slots<Scope> slots(scope);
  Rows rows(shared.rows, a, scope, span, share);
  wait_for_grids_in_front();
  let_grid_behind_come();
  const Planes<N> gains{reinterpret_cast<float*>(dynamic_shared()), span.vectors * N};
  gains.template widen_from<V>(rows.start(slots, span), span.vectors, a.gamma_offset);
  scope.open();

  Floats<N> sums_down[kSums][V] = {};  // of this slot's rows: dgamma, dbeta
  const auto statistic = [&](const float* p, i64 row) { return row < a.rows ? p[row] : 0.f; };
  const int first = slots.top + slots.beside;
  float next_r = statistic(a.rsigma, first), next_mu = Norm::kCentered ? statistic(a.mu, first) : 0.f;
  for (i64 top = slots.top; top < a.rows; top += slots.count) {
    const i64 row = top + slots.beside;
    const int vectors = Scope::kRowsPerWarp == 1 || row < a.rows ? share.count : 0;
    const float r = next_r, mu = next_mu;
    next_r = statistic(a.rsigma, row + slots.count);
    if (Norm::kCentered) next_mu = statistic(a.mu, row + slots.count);
    rows.take(row, vectors);

    float sums[kSums] = {};
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (v < vectors) {
        const Floats<N> x = rows.x(v), dz = rows.dz(v), g = gains.read(share.first + v * share.kStep);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float w = dz[i] * g[i];
          sums[0] = fmaf(w, x[i] - mu, sums[0]);
          if (Norm::kCentered) sums[kSums - 1] += w;
        }
      }
    scope.send(sums);
    rows.refill(slots);  // before the sums of other CTAs are there
    scope.receive(sums);
    const float projection = r * sums[0] * a.inverse_cols;
    const float mean = Norm::kCentered ? sums[kSums - 1] * a.inverse_cols : 0.f;

#pragma unroll
    for (int v = 0; v < V; ++v)
      if (v < vectors) {
        const Floats<N> x = rows.x(v), dz = rows.dz(v), g = gains.read(share.first + v * share.kStep);
        Floats<N> dx;
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float normal = (x[i] - mu) * r;
          dx[i] = r * fmaf(-normal, projection, fmaf(dz[i], g[i], -mean));
          sums_down[0][v][i] = fmaf(dz[i], normal, sums_down[0][v][i]);
          if (Norm::kCentered) sums_down[kSums - 1][v][i] += dz[i];
        }
        if constexpr (Norm::kAdds) {
          const Floats<N> add = rows.add(v);
#pragma unroll
          for (int i = 0; i < N; ++i) dx[i] += add[i];
        }
        Vec<X, N> out;
        narrow(dx, out);
        store(a.dx, row * a.cols + span.first + (share.first + v * share.kStep) * N, out);
      }
    rows.advance();
  }

  // The stages, free behind a barrier, take the sums of each slot where there are several.
  float* const area = reinterpret_cast<float*>(dynamic_shared() + a.stages_offset);
  const int in_cta = blockDim.x / scope.size(), cta = first / in_cta;
  const int ctas = int(min(i64(slots.count / in_cta), (a.rows + in_cta - 1) / in_cta));  // that have rows
  if (cta < ctas)
    sum_slots<Scope::kRowsPerWarp>(sums_down, share, area, in_cta, scope.slot(), gains.cols,
                                   Partial{a.partial + i64(cta) * kSums * a.cols + span.first, a.cols});
  constexpr int kWidth = Planes<N>::kWidth;
  const Strips<kWidth> strips(kSums * a.cols);
  grid_sync();  // behind which no CTA of a cluster is written to, either
  sum_partials(a.partial, ctas, strips, [&](int c, const Floats<kWidth>& sums) {
    P* const out = c < a.cols ? static_cast<P*>(a.dgamma) + c : static_cast<P*>(a.dbeta) + (c - a.cols);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) out[i] = P(sums[i]);
  });
}
