#pragma once
#include "device/norm_parts.cuh"
#include "device/ptx/bulk.cuh"
#include "device/quantize_fp8.cuh"
#include "device/quantize_mxfp8.cuh"
#include "device/wait.cuh"

// Slabs of 32 whole rows in the shared memory of a cluster, a range of columns in each of its CTAs: fetched by bulk
// copies, summed up and quantized from there.

constexpr int kSlabRows = 32, kSlabWarps = kThreads / kWarp, kOwnRows = kSlabRows / kSlabWarps;
constexpr int kSlabCtas = 8, kSlabCols = 1152;  // most of a cluster; most of a CTA

// The eight warps of a CTA beside each other, each over all 32 rows.
using SlabLattice = LatticeOf<1, kSlabWarps>;
constexpr int kSlabStep = 64 * kSlabWarps;  // columns of the eight

__device__ __forceinline__ int slab_warp() { return threadIdx.x / kWarp; }
__device__ __forceinline__ int slab_lane() { return threadIdx.x % kWarp; }

// Columns [first, first + width) are this CTA's: of 32 rows of x, `pitch` columns apart, the same in each CTA, then of
// gamma and of beta, of type P.
template <class X, class P>
struct SlabPart {
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
    for (int column = threadIdx.x; !given && column < width; column += kThreads) beta()[column] = P(-0.f);
  }
  // By each warp: four rows of its own, of those from `top` on, are sent for; zeros where there are none.
  __device__ __forceinline__ void fetch(const NormQuantize& a, i64 top, u64* here) const {
    constexpr int N = 16 / sizeof(X);
    const int own = slab_warp() * kOwnRows, lane = slab_lane();
    const int rows = min(i64(kOwnRows), max(i64(0), a.rows - top - own)), bytes = width * int(sizeof(X));
    if (lane == 0) mbarrier_arrive_expect_tx(here, rows * bytes);
    __syncwarp();
    if (lane < rows && bytes)
      bulk_load(at(own + lane, 0), static_cast<const X*>(a.x) + (top + own + lane) * a.pitch + first, bytes, here);
#pragma unroll 1
    for (int i = rows; i < kOwnRows; ++i)
#pragma unroll 1
      for (int v = lane * N; v < width; v += kWarp * N) *reinterpret_cast<uint4*>(at(own + i, v)) = {};
  }
};

// That of row i, 0 to 3, of a warp's four.
__device__ __forceinline__ float pick(const float (&v)[kOwnRows], int i) {
  const float low = i & 1 ? v[1] : v[0], high = i & 1 ? v[3] : v[2];
  return i & 2 ? high : low;
}

// Sums along four rows a warp, over the warps of the same number in the cluster's CTAs: each sends its own to the
// others' shared memory. A place is written again only after its owner's next contribution, which the owner sends when
// it has read the place; and since each waits for what all others send it, none leaves before it has been written to.
template <class Add>
struct SlabSums {
  static constexpr int K = Add::kFloats;
  struct Shared {
    float sums[2][kSlabWarps][kSlabCtas][K][kOwnRows];
    u64 arrived[2][kSlabWarps];
  };

  Shared& shared;
  u32 count = 0;

  // Before a fence and cluster_arrive_relaxed.
  __device__ __forceinline__ explicit SlabSums(Shared& shared) : shared(shared) {
    if (slab_lane() == 0) {
      mbarrier_init(&shared.arrived[0][slab_warp()], 1);
      mbarrier_init(&shared.arrived[1][slab_warp()], 1);
    }
  }
  // The lanes' sums become the rows'.
  __device__ __forceinline__ void apply(float (&v)[kOwnRows][K]) {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) warp_sum<kWarp, Add>(v[i]);
    const u32 size = cluster_size(), rank = cluster_rank();
    if (size == 1) return;
    const u32 place = count & 1, phase = count >> 1 & 1;
    ++count;
    auto& sums = shared.sums[place][slab_warp()];
    u64* const arrived = &shared.arrived[place][slab_warp()];
    if (slab_lane() == 0) mbarrier_arrive_expect_tx(arrived, size * sizeof(v));
    const u32 peer = slab_lane() % kSlabCtas, row = slab_lane() / kSlabCtas;
    if (peer < size) {
#pragma unroll
      for (int k = 0; k < K; ++k)
        store_async(map_shared(shared_address(&sums[rank][k][row]), peer),
                    pick({v[0][k], v[1][k], v[2][k], v[3][k]}, row), map_shared(shared_address(arrived), peer));
    }
    while (!mbarrier_try_wait_cluster(arrived, phase)) {}
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i)
#pragma unroll
      for (int k = 0; k < K; ++k) v[i][k] = 0.f;
#pragma unroll
    for (u32 r = 0; r < kSlabCtas; ++r)
      if (r < size)
#pragma unroll
        for (int i = 0; i < kOwnRows; ++i) {
          float of[K];
#pragma unroll
          for (int k = 0; k < K; ++k) of[k] = sums[r][k][i];
          Add::add(v[i], of);
        }
  }
};

// The rows of a slab: fetched, and their statistics, each warp's of four rows, worked out as WalkedRows does.
template <class Norm, class X, class Gamma>
struct SlabRows {
  using P = typename Gamma::type;
  using Add = AddOf<X>;
  struct alignas(16) Shared {
    typename SlabSums<Add>::Shared sums;
    float2 statistics[kSlabRows];  // mu, rsigma
    u64 here[kSlabWarps], parameters;
  };

  Shared& shared;
  const SlabPart<X, P> part;
  SlabSums<Add> sums;
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
  // Four rows' sums of term(value less `off`, sum).
  template <class Term>
  __device__ __forceinline__ void sum(float (&total)[kOwnRows], const float (&off)[kOwnRows], Term term) {
    constexpr int N = 16 / sizeof(X);
    float chains[2][kOwnRows][Add::kFloats] = {};  // two: half the latency
    for (int v = slab_lane() * N; v < part.width; v += kWarp * N)
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
        const Floats<N> x = widen(*reinterpret_cast<const Vec<X, N>*>(part.at(slab_warp() * kOwnRows + i, v)));
#pragma unroll
        for (int j = 0; j < N; ++j) Add::take(chains[j % 2][i], term, Norm::kCentered ? x[j] - off[i] : x[j]);
      }
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) Add::add(chains[0][i], chains[1][i]);
    sums.apply(chains[0]);
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) total[i] = Add::total(chains[0][i]);
  }
  // When the rows are there: to shared memory and, by the first CTA, to memory. Before a barrier of the CTA.
  __device__ __forceinline__ void take_statistics(const NormQuantize& a, i64 top) {
    const i64 own = top + slab_warp() * kOwnRows;
    float mu[kOwnRows] = {}, total[kOwnRows];
    if constexpr (Norm::kCentered)
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i)
        mu[i] = own + i < a.rows ? float(load<X, 1>(a.x, (own + i) * a.pitch).lane[0]) : 0.f;
    wait(&shared.here[slab_warp()], phase);
    phase ^= 1;
    __syncwarp();
    if constexpr (Norm::kCentered) {
      sum(total, mu, [](float d, float s) { return s + d; });
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) mu[i] = mean_of(total[i], a.inverse_cols, mu[i]);
    }
    sum(total, mu, [](float d, float s) { return fmaf(d, d, s); });
    const int row = slab_lane();
    if (row >= kOwnRows) return;
    const float r = rsigma_of(pick(total, row), a.inverse_cols, a.eps), mean = pick(mu, row);
    shared.statistics[slab_warp() * kOwnRows + row] = {mean, r};
    if (part.first == 0 && own + row < a.rows) {
      a.rsigma[own + row] = r;
      if (Norm::kCentered) a.mu[own + row] = mean;
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
