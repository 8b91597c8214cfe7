#pragma once
#include "device/norm_parts.cuh"
#include "device/norm_slab_sums.cuh"
#include "device/ptx/bulk.cuh"
#include "device/ptx/elect.cuh"
#include "device/quantize_fp8.cuh"
#include "device/quantize_mxfp8.cuh"
#include "device/wait.cuh"

// Slabs of 32 whole rows in the shared memory of a cluster, a range of columns in each of its CTAs: fetched by bulk
// copies, summed up and quantized from there.

// The warps of a CTA beside each other, each over 64 columns of all 32 rows.
template <int Warps>
using SlabLattice = LatticeOf<1, Warps>;

// Columns [first, first + width) are this CTA's: of 32 rows of x, `pitch` columns apart, the same in each CTA, then of
// gamma and of beta, of type P.
template <class X, class P, int Warps>
struct SlabPart {
  static constexpr int kOwn = kSlabRows / Warps;  // rows of a warp's own, which it fetches and adds up
  int pitch, first, width;

  __device__ __forceinline__ explicit SlabPart(int cols)
      : pitch(ceil_div(ceil_div(cols, kEdge), cluster_size()) * kEdge), first(cluster_rank() * pitch),
        width(max(0, min(pitch, cols - first))) {}
  __device__ __forceinline__ X* at(int row, int column) const {
    return reinterpret_cast<X*>(dynamic_shared()) + row * pitch + column;
  }
  __device__ __forceinline__ P* gamma() const { return reinterpret_cast<P*>(at(kSlabRows, 0)); }
  __device__ __forceinline__ P* beta() const { return gamma() + pitch; }
  __device__ __forceinline__ const Vec<X, kRun>& run(int row, int column) const {
    return *reinterpret_cast<const Vec<X, kRun>*>(at(row, column));
  }
  __device__ __forceinline__ void put(int row, int column, const Vec<X, kRun>& run) const {
#pragma unroll
    for (int i = 0; i < int(sizeof(run) / sizeof(uint4)); ++i)
      reinterpret_cast<uint4*>(at(row, column))[i] = reinterpret_cast<const uint4*>(&run)[i];
  }
  // By all threads; a beta that is not given is -0, which adds nothing, where +0 would turn -0 into +0.
  __device__ __forceinline__ void fetch_parameters(const NormQuantize& a, bool centered, u64* here) const {
    const int bytes = width * int(sizeof(P)), given = !centered || a.beta;
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect_tx(here, centered && given ? 2 * bytes : bytes);
      if (bytes) bulk_load(gamma(), static_cast<const P*>(a.gamma) + first, bytes, here);
      if (bytes && centered && given) bulk_load(beta(), static_cast<const P*>(a.beta) + first, bytes, here);
    }
#pragma unroll 1
    for (int column = threadIdx.x; !given && column < width; column += Warps * kWarp) beta()[column] = P(-0.f);
  }
  // By each warp: rows of its own, of those from `top` on, are sent for; zeros where there are none.
  __device__ __forceinline__ void fetch(const NormQuantize& a, i64 top, u64* here) const {
    constexpr int N = 16 / sizeof(X);
    const int own = agreed(slab_warp()) * kOwn, lane = slab_lane();
    const int rows = min(i64(kOwn), max(i64(0), a.rows - top - own)), bytes = width * int(sizeof(X));
    if (elect()) {
      mbarrier_arrive_expect_tx(here, rows * bytes);
      const X* x = static_cast<const X*>(a.x) + (top + own) * a.pitch + first;
#pragma unroll 1
      for (int i = 0; i < rows && bytes; ++i, x += a.pitch) bulk_load(at(own + i, 0), x, bytes, here);
    }
    __syncwarp();
#pragma unroll 1
    for (int i = rows; i < kOwn; ++i)
#pragma unroll 1
      for (int v = lane * N; v < width; v += kWarp * N) *reinterpret_cast<uint4*>(at(own + i, v)) = {};
  }
};

// The rows of a slab: fetched, and their statistics, each warp's of its own rows, worked out as WalkedRows does.
template <class Norm, class X, class Gamma, int Warps>
struct SlabRows {
  using P = typename Gamma::type;
  using Part = SlabPart<X, P, Warps>;
  using Add = AddOf<X>;
  static constexpr int kOwn = Part::kOwn;
  using Own = OwnRows<kOwn>;
  struct alignas(16) Shared {
    typename SlabSums<Add, kOwn>::Shared sums;
    float2 statistics[kSlabRows];  // mu, rsigma
    u64 here[Warps], parameters;
  };

  Shared& shared;
  const Part part;
  SlabSums<Add, kOwn> sums;
  u32 phase = 0;

  __device__ __forceinline__ SlabRows(Shared& shared, const NormQuantize& a)
      : shared(shared), part(int(a.cols)), sums(shared.sums) {
    if (threadIdx.x == 0) mbarrier_init(&shared.parameters, 1);
    if (slab_lane() == 0) {
      mbarrier_init(&shared.here[slab_warp()], 1);
      fence_mbarrier_init();
    }
    __syncwarp();
    cluster_arrive_relaxed();
  }
  __device__ __forceinline__ void fetch(const NormQuantize& a, i64 top) const {
    part.fetch(a, top, &shared.here[slab_warp()]);
  }
  __device__ __forceinline__ void fetch_parameters(const NormQuantize& a) const {
    part.fetch_parameters(a, Norm::kCentered, &shared.parameters);
  }
  // The sum of term(value less that of `off`, sum) over this lane's row.
  template <class Term>
  __device__ __forceinline__ float sum(float off, Term term) {
    constexpr int N = 16 / sizeof(X);
    float of_row[kOwn], chains[2][kOwn][Add::kFloats] = {};  // two: half the latency
#pragma unroll
    for (int i = 0; i < kOwn; ++i) of_row[i] = Norm::kCentered ? Own::of_row(off, i) : 0.f;
    for (int v = slab_lane() * N; v < part.width; v += kWarp * N)
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const Floats<N> x = widen(*reinterpret_cast<const Vec<X, N>*>(part.at(slab_warp() * kOwn + i, v)));
#pragma unroll
        for (int j = 0; j < N; ++j) Add::take(chains[j % 2][i], term, Norm::kCentered ? x[j] - of_row[i] : x[j]);
      }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) Add::add(chains[0][i], chains[1][i]);
    Own::template add_up<Add>(chains[0]);
    sums.apply(chains[0][0]);
    return Add::total(chains[0][0]);
  }
  // When the rows are there: to shared memory and, by the first CTA, to memory. Before a barrier of the CTA.
  __device__ __forceinline__ void take_statistics(const NormQuantize& a, i64 top) {
    const int own = slab_warp() * kOwn + Own::row();
    const i64 row = top + own;
    float mu = 0.f;
    if (Norm::kCentered && row < a.rows) mu = float(load<X, 1>(a.x, row * a.pitch).lane[0]);
    wait(&shared.here[slab_warp()], phase);
    phase ^= 1;
    __syncwarp();
    if constexpr (Norm::kCentered)
      mu = mean_of(sum(mu, [](float d, float s) { return s + d; }), a.inverse_cols, mu);
    const float square = sum(mu, [](float d, float s) { return fmaf(d, d, s); });
    if (Own::index() > 0) return;
    const float r = rsigma_of(square, a.inverse_cols, a.eps);
    shared.statistics[own] = {mu, r};
    if (part.first == 0 && row < a.rows) {
      a.rsigma[row] = r;
      if (Norm::kCentered) a.mu[row] = mu;
    }
  }
  __device__ __forceinline__ void wait_for_parameters() const { wait(&shared.parameters, 0); }
  __device__ __forceinline__ Parameters<Norm, P, Whole> parameters(int column) const {
    return {part.gamma(), part.beta(), column, kRun};
  }
  // y of eight neighbours in a row, before it is rounded.
  __device__ __forceinline__ Floats<kRun> normed(int row, int column,
                                                 const Parameters<Norm, P, Whole>& parameters) const {
    const float2 of_row = shared.statistics[row];
    return normed_by<Gamma>(Norm::kCentered ? of_row.x : 0.f, of_row.y, part.run(row, column), parameters);
  }
};
