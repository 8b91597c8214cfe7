#pragma once
#include "device/vec.cuh"
#include "device/ptx/copy_async.cuh"

// D = alpha * factor * A B (+ C): what the parts of gemm_general.cu agree on. Kept in step with
// optimized/matrices.py and linear_plan.py.

constexpr int kThreads = 256;

struct Pointers {
  const void *a, *b, *c;
  void* d;
  const float* factor;  // in device memory; null: 1
  float alpha;
  int unused;
};

struct Shape {
  i64 a_pitch, b_pitch, c_pitch, d_pitch;
  i64 m, n, k;
  int a_unit, b_unit;  // bytes of A and B that a load may move at once: 16, 4, or an element
  int run;             // elements of C and D that lie together for one access: 1, 2 or 4
  int tiles;           // of D
};

struct General : Pointers, Shape {};

// Which elements of an operand are neighbours in memory: those along K, or those along M (of B: N).
struct AlongK { static constexpr bool kAlongK = true; };
struct Across { static constexpr bool kAlongK = false; };

// An operand as it lies in memory.
struct Side {
  const char* data;
  i64 pitch, rows, cols;
  int unit;
  template <class Lies>
  static __device__ __forceinline__ Side of(const void* data, i64 pitch, i64 extent, i64 k, int unit) {
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

// D, of elements T, is the product alone.
template <class T>
struct Store {
  using type = T;
  static constexpr bool kAdds = false;
  template <int N>
  static __device__ __forceinline__ Floats<N> apply(const General&, float alpha, const Floats<N>& sum, i64, i64) {
    Floats<N> d;
#pragma unroll
    for (int i = 0; i < N; ++i) d[i] = alpha * sum[i];
    return d;
  }
};

// C is added before the one rounding. C may be D: an element is read and written by one thread, once.
template <class T>
struct ScaleAdd {
  using type = T;
  static constexpr bool kAdds = true;
  template <int N>
  static __device__ __forceinline__ Floats<N> apply(const General& g, float alpha, const Floats<N>& sum, i64 row,
                                                    i64 col) {
    const Floats<N> c = widen(load<T, N>(g.c, row * g.c_pitch + col));
    Floats<N> d;
#pragma unroll
    for (int i = 0; i < N; ++i) d[i] = fmaf(alpha, sum[i], c[i]);
    return d;
  }
};

// N neighbours of a row of D, those of them that exist.
template <class Epilogue, int N>
__device__ __forceinline__ void put(const General& g, float alpha, const Floats<N>& sum, i64 row, i64 col) {
  using T = typename Epilogue::type;
  if (N > 1 && g.run >= N && col + N <= g.n) {
    Vec<T, N> v;
    narrow(Epilogue::apply(g, alpha, sum, row, col), v);
    store(g.d, row * g.d_pitch + col, v);
    return;
  }
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (col + i < g.n) {
      Vec<T, 1> v;
      narrow(Epilogue::apply(g, alpha, Floats<1>{{sum[i]}}, row, col + i), v);
      store(g.d, row * g.d_pitch + col + i, v);
    }
}

// Where a tile of D begins: a few tiles high, they sweep across, so that what CTAs of one moment read of A and B is
// still in the L2.
struct Corner {
  i64 row, col;
  __device__ __forceinline__ Corner(const Shape& g, int height, int width, u32 tile) {
    constexpr u32 kHigh = 8;
    const u32 down = (g.m + height - 1) / height, across = (g.n + width - 1) / width;
    const u32 band = tile / (kHigh * across), inside = tile % (kHigh * across);
    const u32 high = min(kHigh, down - band * kHigh);
    row = i64(band * kHigh + inside % high) * height;
    col = i64(inside / high) * width;
  }
};
