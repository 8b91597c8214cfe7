#pragma once
#include "device/gemm_general.cuh"

// The product of a tile in exact float32: one fused multiply-add an element of K. Spans of K, about √K long, are summed
// on their own, then their sums: the error grows as the fourth root of K, that of one chain as the second.

// Extent rows of A (columns of B) by Depth elements of K in shared memory, neighbours along M or N, however they lie in
// global memory. The padding puts what eight lanes write along K into different banks.
template <class Lies, int Extent, int Depth>
struct FloatPanel {
  static constexpr int kPitch = Extent + 4;
  alignas(16) float values[Depth][kPitch];

  __device__ __forceinline__ void load(const Side& side, i64 first, i64 k) {
    if constexpr (Lies::kAlongK) {  // a warp: four rows by eight elements of K, which are one sector of memory each
      const int row = threadIdx.x / 8, depth = threadIdx.x % 8;
      const int rows = int(min(i64(Extent), side.rows - first)) - row;
      const int depths = int(min(i64(Depth), side.cols - k)) - depth;
      const char* from = side.data + ((first + row) * side.pitch + k + depth) * 4;
#pragma unroll
      for (int i = 0; i < Extent; i += kThreads / 8, from += kThreads / 8 * 4 * side.pitch)
#pragma unroll
        for (int j = 0; j < Depth; j += 8)
          copy_async_4(&values[depth + j][row + i], from + 4 * j, i < rows && j < depths ? 4 : 0);
    } else {
      constexpr int kChunks = Extent / 4;
#pragma unroll
      for (int i = 0; i < Depth * kChunks / kThreads; ++i) {
        const int chunk = i * kThreads + threadIdx.x, depth = chunk / kChunks, col = chunk % kChunks * 4;
        copy_run<f32, 4>(reinterpret_cast<char*>(&values[depth][col]), side, k + depth, first + col);
      }
    }
  }
};

// M x N elements of D in the registers of eight warps, four of them above one another: 4 x 8 lanes with runs of four
// rows by runs of four columns each. Lanes that read the same are neighbours, so that reads of a warp fall together.
template <class A, class B, int M, int N>
struct Simt {
  using LiesA = A;
  using LiesB = B;
  static constexpr int kM = M, kN = N, kDepth = 16, kStages = 2;
  static constexpr int kHigh = M / 4, kWide = N / 2;               // of a warp
  static constexpr int kRows = kHigh / 16, kCols = kWide / 32;     // runs of four, of a lane
  struct Stage {
    FloatPanel<A, M, kDepth> a;
    FloatPanel<B, N, kDepth> b;
  };

  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int top = warp % 4 * kHigh + (lane % 2 + lane / 16 * 2) * 4, left = warp / 4 * kWide + lane / 2 % 8 * 4;
  float sum[4 * kRows][4 * kCols] = {};  // over a span

  __device__ __forceinline__ Simt() {
#pragma unroll
    for (int i = 0; i < 4 * kRows * kCols; ++i) total(i) = {};
  }
  // Four neighbours' sums over the spans before: of a thread its own, in shared memory, as registers are few.
  static __device__ __forceinline__ Vec<f32, 4>& total(int run) {
    return reinterpret_cast<Vec<f32, 4>*>(dynamic_shared() + kStages * sizeof(Stage))[run * kThreads + threadIdx.x];
  }
  // How many times kDepth elements of K a span has, √K / kDepth rounded: K alone decides, so that neither tile nor
  // number of rows matter.
  static __device__ __forceinline__ int span(i64 k) {
    int steps = 1;
    while (i64(2 * steps + 1) * (2 * steps + 1) * (kDepth * kDepth / 4) < k) ++steps;
    return steps;
  }
  __device__ __forceinline__ void load(Stage& stage, const Side& a, const Side& b, const Corner& corner, i64 k) {
    stage.a.load(a, corner.row, k);
    stage.b.load(b, corner.col, k);
  }
  __device__ __forceinline__ void multiply(const Stage& stage) {
    Vec<f32, 4> a[2][kRows], b[2][kCols];  // those of the next element of K are on their way
    fetch(stage, 0, a[0], b[0]);
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      if (k + 1 < kDepth) fetch(stage, k + 1, a[(k + 1) % 2], b[(k + 1) % 2]);
#pragma unroll
      for (int i = 0; i < 4 * kRows; ++i)
#pragma unroll
        for (int j = 0; j < 4 * kCols; ++j)
          sum[i][j] = fmaf(a[k % 2][i / 4].lane[i % 4], b[k % 2][j / 4].lane[j % 4], sum[i][j]);
    }
  }
  __device__ __forceinline__ void fetch(const Stage& stage, int k, Vec<f32, 4> (&a)[kRows], Vec<f32, 4> (&b)[kCols]) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) a[i] = ::load<f32, 4>(&stage.a.values[k][top + 16 * i], 0);
#pragma unroll
    for (int j = 0; j < kCols; ++j) b[j] = ::load<f32, 4>(&stage.b.values[k][left + 32 * j], 0);
  }
  __device__ __forceinline__ void end_span() {
#pragma unroll
    for (int i = 0; i < 4 * kRows; ++i)
#pragma unroll
      for (int j = 0; j < kCols; ++j) {
        Vec<f32, 4>& all = total(i * kCols + j);
        Vec<f32, 4> mine = all;
#pragma unroll
        for (int c = 0; c < 4; ++c) mine.lane[c] += sum[i][4 * j + c], sum[i][4 * j + c] = 0;
        all = mine;
      }
  }
  template <class Epilogue>
  __device__ __forceinline__ void finish(const General& g, float alpha, const Corner& corner) const {
#pragma unroll
    for (int i = 0; i < 4 * kRows; ++i) {
      const i64 row = corner.row + top + i / 4 * 16 + i % 4;
      if (row >= g.m) continue;
#pragma unroll
      for (int j = 0; j < kCols; ++j)
        put<Epilogue>(g, alpha, widen(total(i * kCols + j)), row, corner.col + left + 32 * j);
    }
  }
};
