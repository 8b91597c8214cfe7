#include "device/norm_walked.cuh"
#include "device/ptx/dependency.cuh"

// Rows too wide for the other kernels, of any width: a CTA walks along its row once for each sum and once for the
// result, and finds it in the L2 after the first time.

constexpr int kThreads = 512;

// Forward as in norm_forward.cu. Reads x two (LayerNorm: three) times, once from memory as long as the row fits in L2.
template <class Norm, class X, class Gamma, int N, class Output>
__global__ __launch_bounds__(kThreads, 1) void norm_forward_wide(const __grid_constant__ typename Output::Args a) {
  __shared__ Group::Shared shared;
  Group scope(shared, kThreads);
  wait_for_grids_in_front();
  let_grid_behind_come();
  Output output(a);
  WalkedRows<Norm, X, Gamma, N, kThreads>::walk(a, scope, output);
}

// Backward as in norm_backward.cu. dx takes two readings of x and dz, dgamma and dbeta a third: a thread owns columns
// and walks down all rows.
template <class Norm, class X, class Dz, class P, int N>
__global__ __launch_bounds__(kThreads, 1) void norm_backward_wide(const __grid_constant__ Backward a) {
  __shared__ Group::Shared shared;
  Group scope(shared, kThreads);
  wait_for_grids_in_front();
  let_grid_behind_come();
  const int vectors = a.cols / N;
  const auto gain = [&](int v) { return widen(load<P, N>(a.gamma, i64(v) * N)); };
  const auto x_at = [&](i64 row, int v) { return widen(load<X, N>(a.x, row * a.x_pitch + i64(v) * N)); };
  const auto dz_at = [&](i64 row, int v) { return widen(load<Dz, N>(a.dz, row * a.dz_pitch + i64(v) * N)); };

  for (i64 row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const float r = a.rsigma[row], mu = Norm::kCentered ? a.mu[row] : 0.f;
    const auto mean_of = [&](auto term) {
      return a.inverse_cols * walked_sum<kThreads, Each>(scope, vectors, [&](int v, float (&sum)[1]) {
        const Floats<N> x = x_at(row, v), dz = dz_at(row, v), g = gain(v);
#pragma unroll
        for (int i = 0; i < N; ++i) sum[0] = term(dz[i] * (g[i] + a.gamma_offset), (x[i] - mu) * r, sum[0]);
      });
    };
    const float projection = mean_of([](float w, float normal, float s) { return fmaf(w, normal, s); });
    const float mean = Norm::kCentered ? mean_of([](float w, float, float s) { return s + w; }) : 0.f;
    for (int v = threadIdx.x; v < vectors; v += kThreads) {
      const Floats<N> x = x_at(row, v), dz = dz_at(row, v), g = gain(v);
      Floats<N> dx, add = {};
      if constexpr (Norm::kAdds) add = load_as_floats<N>(a.add_dtype, a.add, row * a.add_pitch + i64(v) * N);
#pragma unroll
      for (int i = 0; i < N; ++i)
        dx[i] = fmaf(r, fmaf(-(x[i] - mu) * r, projection, fmaf(dz[i], g[i] + a.gamma_offset, -mean)), add[i]);
      Vec<X, N> out;
      narrow(dx, out);
      store(a.dx, row * a.cols + i64(v) * N, out);
    }
  }

  for (int v = blockIdx.x * kThreads + threadIdx.x; v < vectors; v += gridDim.x * kThreads) {
    Floats<N> dgamma = {}, dbeta = {};
    for (i64 row = 0; row < a.rows; ++row) {
      const float r = a.rsigma[row], mu = Norm::kCentered ? a.mu[row] : 0.f;
      const Floats<N> x = x_at(row, v), dz = dz_at(row, v);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        dgamma[i] = fmaf(dz[i], (x[i] - mu) * r, dgamma[i]);
        dbeta[i] += dz[i];
      }
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      static_cast<P*>(a.dgamma)[i64(v) * N + i] = P(dgamma[i]);
      if (Norm::kCentered) static_cast<P*>(a.dbeta)[i64(v) * N + i] = P(dbeta[i]);
    }
  }
}
