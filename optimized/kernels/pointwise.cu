#include "device/ptx/dependency.cuh"
#include "device/vec.cuh"

constexpr int kThreads = 256;
constexpr int kBytes = 16;  // of each operand, on a thread's way at once

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

// Where N neighbours begin in the operands and in the output, and how many of them are in their row.
struct Place {
  i64 a, b, y;
  int count;
};

template <int N>
struct Places {
  const Pointwise& p;
  const u64 across = (p.cols + N - 1) / N, count = p.rows * across;  // runs of N a row, and in all
  const bool narrow = count >> 32 == 0;  // a division of 32 bits takes a fifth of one of 64

  __device__ __forceinline__ Place operator()(u64 run) const {
    if (p.rows == 1) {
      const i64 col = run * N;
      return {col, col, col, int(min(i64(N), p.cols - col))};
    }
    const i64 row = narrow ? u32(run) / u32(across) : run / across, col = (run - row * across) * N;
    return {row * p.a_pitch + col, row * p.b_pitch + col, row * p.y_pitch + col, int(min(i64(N), p.cols - col))};
  }
};

template <class Op, class T, int N>
__device__ __forceinline__ Vec<T, N> applied(const Vec<T, N>& a, const Vec<T, N>& b, float factor) {
  const Floats<N> x = widen(a), z = Op::kSecond ? widen(b) : x;
  Floats<N> y;
#pragma unroll
  for (int i = 0; i < N; ++i) y[i] = Op::apply(x[i], z[i], factor);
  Vec<T, N> out;
  narrow(y, out);
  return out;
}

// y = a * factor, or a + b, in float32, rounded once, of rows x cols elements with a pitch each; N lie together for one
// access. Reads each operand and writes y once: the floor of this function. y may be an operand: a thread has read what
// it writes.
template <class Op, class T, int N>
__global__ __launch_bounds__(kThreads) void pointwise(const __grid_constant__ Pointwise p) {
  wait_for_grids_in_front();
  let_grid_behind_come();
  const Places<N> places{p};
  const u64 whole = p.rows == 1 ? p.cols / N : p.cols % N ? 0 : places.count;  // runs
  constexpr int kRuns = kBytes / sizeof(Vec<T, N>), kTile = kRuns * kThreads;
  for (u64 first = u64(blockIdx.x) * kTile; first < places.count; first += u64(gridDim.x) * kTile) {
    if (first + kTile <= whole) {  // nothing to ask between the loads
      Vec<T, N> a[kRuns], b[kRuns];
#pragma unroll
      for (int i = 0; i < kRuns; ++i) {
        const Place at = places(first + i * kThreads + threadIdx.x);
        a[i] = load<T, N>(p.a, at.a);
        if constexpr (Op::kSecond) b[i] = load<T, N>(p.b, at.b);
      }
#pragma unroll
      for (int i = 0; i < kRuns; ++i)
        store(p.y, places(first + i * kThreads + threadIdx.x).y, applied<Op>(a[i], b[i], p.factor));
      continue;
    }
    for (u64 run = first + threadIdx.x; run < min(first + kTile, places.count); run += kThreads) {
      const Place at = places(run);
      const Vec<T, N> a = load_some<T, N>(p.a, at.a, at.count);
      const Vec<T, N> b = Op::kSecond ? load_some<T, N>(p.b, at.b, at.count) : a;
      store_some(p.y, at.y, applied<Op>(a, b, p.factor), at.count);
    }
  }
}
