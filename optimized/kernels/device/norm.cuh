#pragma once
#include "device/dtype.cuh"
#include "device/fill.cuh"
#include "device/scope.cuh"

struct LayerNorm { static constexpr bool kCentered = true, kAdds = false; };
struct RmsNorm { static constexpr bool kCentered = false, kAdds = false; };
struct RmsNormAdd { static constexpr bool kCentered = false, kAdds = true; };  // dx + add, in backward

// Arguments of the forward kernels, in the order that the launcher packs them.
struct Forward {
  const void *x, *gamma, *beta;
  void* y;
  float *mu, *rsigma;
  i64 rows, x_pitch;  // elements
  int cols, row_threads;
  float eps, inverse_cols;
};

// Arguments of the backward kernels, likewise.
struct Backward {
  const void *x, *dz, *add, *gamma;
  const float *mu, *rsigma;
  void *dx, *dgamma, *dbeta;
  float* partial;  // for each CTA (cluster) `cols` sums of dgamma, then as many of dbeta
  i64 rows, x_pitch, dz_pitch, add_pitch;  // elements
  int cols, row_threads;
  float gamma_offset, inverse_cols;
  DType add_dtype;
  int stages, stage_bytes, stages_offset;
};

// gamma of element type T, and what it multiplies by.
template <class T>
struct Plain {
  using type = T;
  static __device__ __forceinline__ float gain(float gamma) { return gamma; }
};
template <class T>
struct ZeroCentered {
  using type = T;
  static __device__ __forceinline__ float gain(float gamma) { return 1.f + gamma; }
};

// Columns [first, first + vectors * N) of a row are this CTA's. A cluster shares a row in slabs of whole eights.
template <class Scope, int N>
struct Span {
  int first = 0, vectors;

  __device__ __forceinline__ explicit Span(int cols) : vectors(cols / N) {
    if constexpr (Scope::kCluster) {
      const int slab = ceil_div(ceil_div(cols, 8), cluster_size()) * 8;
      first = cluster_rank() * slab;
      vectors = max(0, min(slab, cols - first)) / N;
    }
  }
  // Of the CTAs that share a row, the one that writes its statistics.
  __device__ __forceinline__ bool reports() const { return first == 0; }
};

// A thread's vectors of its CTA's span: `first`, then `count` in steps that the compiler knows, since each warp has a
// run of V * 32 vectors.
template <class Scope, class Fill, int V>
struct Share {
  static constexpr int kStep = Scope::kStep;
  int first, count;

  __device__ __forceinline__ Share(const Scope& scope, int vectors)
      : first(scope.lane() / kStep * (V * kStep) + scope.lane() % kStep),
        count(Fill::kWhole ? V : min(V, max(0, ceil_div(vectors - first, kStep)))) {}
};

// Row slots of the grid: slot s works on rows s, s + count, s + 2 * count, … Those of a CTA are neighbours.
template <class Scope>
struct Slots {
  static constexpr int kRows = Scope::kRowsPerWarp;
  // The first row of this thread's warp, which its lanes agree on, and how far behind it this thread's is.
  int top, beside;
  int count;

  __device__ __forceinline__ explicit Slots(const Scope& scope)
      : Slots(scope, blockIdx.x / ctas() * in_cta(scope) + scope.slot(), gridDim.x / ctas() * in_cta(scope)) {}

 protected:
  __device__ __forceinline__ Slots(const Scope& scope, int first, int count)
      : top(kRows == 1 ? first : agreed(first)), beside(kRows == 1 ? 0 : scope.slot() % kRows), count(count) {}
  static __device__ __forceinline__ int ctas() { return Scope::kCluster ? cluster_size() : 1; }
  static __device__ __forceinline__ int in_cta(const Scope& scope) { return blockDim.x / scope.size(); }
};

// Only those of a warp are: then as many CTAs as can be share what is left of the rows.
template <class Scope>
struct SpreadSlots : Slots<Scope> {
  using Base = Slots<Scope>;
  using Base::kRows;

  __device__ __forceinline__ explicit SpreadSlots(const Scope& scope)
      : Base(scope, (scope.slot() / kRows * gridDim.x + blockIdx.x) * kRows + scope.slot() % kRows,
             gridDim.x * Base::in_cta(scope)) {}
};

// Statistics of a row and y of x of type X, rounded as often as the reference's: of y only where it stays float32, so
// that the same statistics give the same y, of which an amax is the largest.
__device__ __forceinline__ float mean_of(float sum, float inverse_cols, float first) {
  return __fadd_rn(first, __fmul_rn(sum, inverse_cols));
}
__device__ __forceinline__ float rsigma_of(float square, float inverse_cols, float eps) {
  return __frcp_rn(__fsqrt_rn(__fadd_rn(__fmul_rn(square, inverse_cols), eps)));
}
template <class X>
__device__ __forceinline__ float gained(float normal, float gain, float offset) {
  return sizeof(X) == 4 ? __fadd_rn(__fmul_rn(normal, gain), offset) : fmaf(normal, gain, offset);
}
