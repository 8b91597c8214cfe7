#include "device/norm_slab.cuh"
#include "device/ptx/dependency.cuh"

// y = norm(x) as in norm_forward.cu, to FP8 with delayed scaling or to MXFP8, columnwise or both ways: a CTA holds a
// slab of 32 * Down whole rows in registers, a cluster slabs of the same 32 rows beside each other.
// x is read once. Bytes an element, for x of 2 bytes, which are the floor of this function:
//   FP8      2 + 1 an orientation      MXFP8    2 + 33/32 an orientation
template <class Norm, class X, class Gamma, int Tiles, int Down, bool Clustered, class Output, int Ctas>
__global__ __launch_bounds__(kThreads, Ctas) void norm_slab(const __grid_constant__ NormQuantize a) {
  using At = SlabLattice<Down>;
  using Sums = SlabSums<Down, Clustered>;
  __shared__ typename Sums::Shared of_sums;
  __shared__ typename Output::Shared of_output;
  Sums sums(of_sums);
  const u32 ctas = Clustered ? cluster_size() : 1, rank = Clustered ? cluster_rank() : 0;
  const int slab = ceil_div(ceil_div(a.cols, kEdge), ctas) * kEdge, first = rank * slab;
  const auto column = [&](int t) { return first + t * At::kStep + At::left(); };
  const auto valid = [&](int t) { return t * At::kStep + At::left() < slab && column(t) < a.cols; };
  wait_for_grids_in_front();
  let_grid_behind_come();

  Output output(a);
#pragma unroll 1
  for (i64 group = blockIdx.x / ctas; group * At::kRows < a.rows; group += gridDim.x / ctas) {
    const i64 row = group * At::kRows + At::top();
    const int rows = int(max(i64(0), min(i64(kRun), a.rows - row)));
    Vec<X, kRun> x[Tiles][kRun];
#pragma unroll
    for (int t = 0; t < Tiles; ++t)
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        x[t][i] = {};
        if (valid(t) && i < rows) x[t][i] = load<X, kRun>(a.x, (row + i) * a.pitch + column(t));
      }
    float mu[kRun] = {}, r[kRun];
    const auto sum = [&](float (&total)[kRun], auto term) {
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        float even = 0.f, odd = 0.f;
#pragma unroll
        for (int t = 0; t < Tiles; ++t)
          if (valid(t)) {
            const Floats<kRun> values = widen(x[t][i]);
#pragma unroll
            for (int j = 0; j < kRun; ++j) (j % 2 ? odd : even) = term(values[j] - mu[i], j % 2 ? odd : even);
          }
        total[i] = even + odd;
      }
      sums.apply(total);
    };
    if constexpr (Norm::kCentered) {
      float mean[kRun];
#pragma unroll
      for (int i = 0; i < kRun; ++i) mu[i] = i < rows ? float(load<X, 1>(a.x, (row + i) * a.pitch).lane[0]) : 0.f;
      sum(mean, [](float d, float s) { return s + d; });
#pragma unroll
      for (int i = 0; i < kRun; ++i) mu[i] += a.inverse_cols * mean[i];
    }
    sum(r, [](float d, float s) { return fmaf(d, d, s); });
#pragma unroll
    for (int i = 0; i < kRun; ++i) r[i] = reciprocal_root(fmaf(r[i], a.inverse_cols, a.eps));
    if (first == 0 && At::left() == 0)
#pragma unroll
      for (int i = 0; i < kRun; ++i)
        if (i < rows) {
          a.rsigma[row + i] = r[i];
          if (Norm::kCentered) a.mu[row + i] = mu[i];
        }
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
      if (t * At::kStep + At::warp_across() * 64 >= slab) continue;  // by whole warps
      const int there = valid(t) ? rows : 0;
      const Parameters<Norm, typename Gamma::type, Whole> parameters(a, column(t), there);
      output.put(row, column(t), there, [&](int i) {
        return i < there ? scaled<Gamma>(widen(x[t][i]), mu[i], r[i], parameters) : Floats<kRun>{};
      });
    }
  }
  sums.close();
  output.finish(of_output);
}
