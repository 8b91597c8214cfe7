#pragma once
#include "device/dtype.cuh"
#include "device/ptx/copy_async.cuh"

// D = alpha * factor * A B (+ C): what the cores of gemm_general.cu agree on. Kept in step with optimized/linear.py.

constexpr int kThreads = 256;

struct GemmGeneral {
  const void *a, *b, *c;
  void* d;
  const float* factor;  // in device memory; null: 1
  i64 a_pitch, b_pitch, c_pitch, d_pitch;
  i64 m, n, k;
  float alpha;
  DType type;          // of C and D
  int a_unit, b_unit;  // bytes of A and B that a load may move at once: 16, 4, or an element
  int run;             // elements of C and D that lie together for one access: 1, 2 or 4
};

// Which elements of an operand are neighbours in memory: those along K, or those along M (of B: N).
struct AlongK { static constexpr bool kAlongK = true; };
struct Across { static constexpr bool kAlongK = false; };

// An operand as it lies in memory.
struct Side {
  const char* data;
  i64 pitch, rows, cols;
  int unit;
  template <class Lies>
  static __device__ __forceinline__ Side of(Lies, const void* data, i64 pitch, i64 extent, i64 k, int unit) {
    return {static_cast<const char*>(data), pitch, Lies::kAlongK ? extent : k, Lies::kAlongK ? k : extent, unit};
  }
};

// Up to N elements from (row, col) of an operand to shared memory, zeros for those that do not exist.
template <class T, int N>
__device__ __forceinline__ void copy_run(char* to, const Side& side, i64 row, i64 col) {
  constexpr int kBytes = N * sizeof(T);
  const int count = row < side.rows ? int(max(i64(0), min(i64(N), side.cols - col))) : 0;
  const char* const from = side.data + (row * side.pitch + col) * i64(sizeof(T));
  if (side.unit == 16) {
    copy_async_16(to, from, count * int(sizeof(T)));
  } else if (sizeof(T) == 4 || side.unit == 4) {
#pragma unroll
    for (int i = 0; i < kBytes; i += 4) copy_async_4(to + i, from + i, max(0, min(4, count * int(sizeof(T)) - i)));
  } else {
    Vec<T, N> v;
#pragma unroll
    for (int i = 0; i < N; ++i) v.lane[i] = i < count ? reinterpret_cast<const T*>(from)[i] : T(0.f);
    *reinterpret_cast<Vec<T, N>*>(to) = v;
  }
}

// D is the product alone.
struct Store {
  template <class D, int N>
  static __device__ __forceinline__ Floats<N> apply(const GemmGeneral&, float alpha, const Floats<N>& sum, i64, i64) {
    Floats<N> d;
#pragma unroll
    for (int i = 0; i < N; ++i) d[i] = alpha * sum[i];
    return d;
  }
};

// C is added before the one rounding. C may be D: an element is read and written by one thread, once.
struct ScaleAdd {
  template <class D, int N>
  static __device__ __forceinline__ Floats<N> apply(const GemmGeneral& g, float alpha, const Floats<N>& sum, i64 row,
                                                    i64 col) {
    const Floats<N> c = widen(load<D, N>(g.c, row * g.c_pitch + col));
    Floats<N> d;
#pragma unroll
    for (int i = 0; i < N; ++i) d[i] = fmaf(alpha, sum[i], c[i]);
    return d;
  }
};

// N neighbours of a row of D, those of them that exist.
template <class Epilogue, class D, int N>
__device__ __forceinline__ void put(const GemmGeneral& g, float alpha, const Floats<N>& sum, i64 row, i64 col) {
  if (N > 1 && g.run >= N && col + N <= g.n) {
    Vec<D, N> v;
    narrow(Epilogue::template apply<D>(g, alpha, sum, row, col), v);
    store(g.d, row * g.d_pitch + col, v);
    return;
  }
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (col + i < g.n) {
      Vec<D, 1> v;
      narrow(Epilogue::template apply<D>(g, alpha, Floats<1>{{sum[i]}}, row, col + i), v);
      store(g.d, row * g.d_pitch + col + i, v);
    }
}

// The tile of D that is this CTA's: a few tiles high, the grid sweeps across, so that what CTAs of one moment read of A
// and B is still in the L2.
struct Corner {
  i64 row, col;
  __device__ __forceinline__ Corner(const GemmGeneral& g, int height, int width) {
    constexpr u32 kHigh = 8;
    const u32 down = (g.m + height - 1) / height, across = (g.n + width - 1) / width;
    const u32 band = blockIdx.x / (kHigh * across), inside = blockIdx.x % (kHigh * across);
    const u32 high = min(kHigh, down - band * kHigh);
    row = i64(band * kHigh + inside % high) * height;
    col = i64(inside / high) * width;
  }
};
