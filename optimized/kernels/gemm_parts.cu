#include "device/ptx/dependency.cuh"
#include "device/vec.cuh"

// D = factor (P₀ + P₁ + …) (+ C): the sums of a product whose K was split, in order, so that the result is the same
// every time. parts (splits, rows, cols) of floats, C and D (rows, cols) with a pitch, of E; N elements a thread.
// Bytes an element: 4 a part, which the L2 holds, and 2 or 4.
struct Parts {
  const float* parts;
  const void* c;  // null: nothing is added
  void* d;
  const float* factor;  // in device memory; null: 1
  float scale;
  int unused;
  i64 part;  // elements from one part to the next
  i64 c_pitch, d_pitch;
  int rows, cols, splits;
};

constexpr int kPartsThreads = 64;

template <class E, int N>
__global__ __launch_bounds__(kPartsThreads) void gemm_parts(const __grid_constant__ Parts a) {
  wait_for_grids_in_front();
  let_grid_behind_come();
  const float scale = a.scale * (a.factor ? *a.factor : 1.f);
  const int row = blockIdx.x % a.rows, col = (blockIdx.x / a.rows * kPartsThreads + threadIdx.x) * N;
  if (col >= a.cols) return;
  Floats<N> sum = widen(load<f32, N>(a.parts, i64(row) * a.cols + col));
#pragma unroll 8
  for (int part = 1; part < a.splits; ++part) {
    const Floats<N> next = widen(load<f32, N>(a.parts, part * a.part + i64(row) * a.cols + col));
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += next[i];
  }
  Floats<N> c = Floats<N>::filled(0.f);
  if (a.c) c = widen(load<E, N>(a.c, row * a.c_pitch + col));
#pragma unroll
  for (int i = 0; i < N; ++i) sum[i] = a.c ? fmaf(sum[i], scale, c[i]) : sum[i] * scale;
  Vec<E, N> d;
  narrow(sum, d);
  store(a.d, row * a.d_pitch + col, d);
}
