#include "device/ptx/dependency.cuh"
#include "device/vec.cuh"

constexpr int kThreads = 256;
constexpr int kRuns = 4;  // of N elements, on a thread's way at once

struct Pointwise {
  const void *a, *b;
  void* y;
  float factor;
  int unused;
  i64 rows, cols, a_pitch, b_pitch, y_pitch;
};

struct Scale {
  static constexpr bool kSecond = false;
  static __device__ __forceinline__ float apply(float a, float, float factor) { return a * factor; }
};

struct Add {
  static constexpr bool kSecond = true;
  static __device__ __forceinline__ float apply(float a, float b, float) { return a + b; }
};

// The first `count` of N neighbours.
template <class T, int N>
__device__ __forceinline__ Vec<T, N> load_some(const void* p, i64 element, int count) {
  if (count >= N) return load<T, N>(p, element);
  Vec<T, N> v;
#pragma unroll
  for (int i = 0; i < N; ++i) v.lane[i] = i < count ? static_cast<const T*>(p)[element + i] : T(0.f);
  return v;
}

template <class T, int N>
__device__ __forceinline__ void store_some(void* p, i64 element, const Vec<T, N>& v, int count) {
  if (count >= N) return store(p, element, v);
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (i < count) static_cast<T*>(p)[element + i] = v.lane[i];
}

// y = a * factor, or a + b, in float32, rounded once, of rows x cols elements with a pitch each; N lie together for one
// access. Reads each operand and writes y once: the floor of this function. y may be an operand: a thread has read what
// it writes.
template <class Op, class T, int N>
__global__ __launch_bounds__(kThreads) void pointwise(const __grid_constant__ Pointwise p) {
  wait_for_grids_in_front();
  let_grid_behind_come();
  const u64 across = (p.cols + N - 1) / N, runs = p.rows * across;
  const bool narrow_index = runs >> 32 == 0;  // a division of 32 bits takes a fifth of one of 64
  for (u64 first = u64(blockIdx.x) * (kRuns * kThreads); first < runs; first += u64(gridDim.x) * (kRuns * kThreads)) {
    Vec<T, N> a[kRuns], b[kRuns];
    i64 row[kRuns], col[kRuns];
    int count[kRuns];
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const u64 index = first + i * kThreads + threadIdx.x;
      row[i] = p.rows == 1 ? 0 : narrow_index ? u32(index) / u32(across) : index / across;
      col[i] = (index - row[i] * across) * N;
      count[i] = index < runs ? int(min(i64(N), p.cols - col[i])) : 0;
      a[i] = load_some<T, N>(p.a, row[i] * p.a_pitch + col[i], count[i]);
      if constexpr (Op::kSecond) b[i] = load_some<T, N>(p.b, row[i] * p.b_pitch + col[i], count[i]);
    }
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const Floats<N> x = widen(a[i]), z = Op::kSecond ? widen(b[i]) : x;
      Floats<N> y;
#pragma unroll
      for (int j = 0; j < N; ++j) y[j] = Op::apply(x[j], z[j], p.factor);
      Vec<T, N> out;
      narrow(y, out);
      store_some(p.y, row[i] * p.y_pitch + col[i], out, count[i]);
    }
  }
}
