#pragma once
#include "device/gemm_general.cuh"
#include "device/ptx/cluster.cuh"

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
          if (Extent % (kThreads / 8) == 0 || row + i < Extent)
            copy_async_4(&values[depth + j][row + i], from + 4 * j, i < rows && j < depths ? 4 : 0);
    } else {
      constexpr int kChunks = Extent / 4, kAll = Depth * kChunks;
#pragma unroll
      for (int i = 0; i < kAll; i += kThreads) {
        const int chunk = i + threadIdx.x, depth = chunk / kChunks, col = chunk % kChunks * 4;
        if (kAll % kThreads == 0 || chunk < kAll)
          copy_run<f32, 4>(reinterpret_cast<char*>(&values[depth][col]), side, k + depth, first + col);
      }
    }
  }
};

// M x N elements of D in the registers of eight warps, four of them above one another, or one where there are few rows:
// 4 x 8 lanes with runs of four rows by runs of four columns each. Lanes that read the same are neighbours, so that
// reads of a warp fall together. Where a tile is `Shared`, by the CTAs of a cluster, each has some of K, and adds up
// some of D's runs in the end.
template <class A, class B, int M, int N, bool Shared = false>
struct Simt {
  using LiesA = A;
  using LiesB = B;
  static constexpr int kM = M, kN = N, kDepth = 16, kStages = M * N > 4096 ? 2 : 4;  // what computes less waits more
  static constexpr bool kShared = Shared;
  static constexpr int kDown = M < 64 ? 1 : 4;                     // warps
  static constexpr int kHigh = M / kDown, kWide = N * kDown / 8;   // of a warp
  static constexpr int kRows = kHigh / 16, kCols = kWide / 32;     // runs of four, of a lane
  struct Stage {
    FloatPanel<A, M, kDepth> a;
    FloatPanel<B, N, kDepth> b;
  };

  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int top = warp % kDown * kHigh + (lane % 2 + lane / 16 * 2) * 4;
  const int left = warp / kDown * kWide + lane / 2 % 8 * 4;
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
  // number of rows matter but by how many CTAs share a tile, which add up their spans first.
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
    if constexpr (Shared) cluster_arrive(), cluster_wait();
#pragma unroll
    for (int i = 0; i < 4 * kRows; ++i) {
      const i64 row = corner.row + top + i / 4 * 16 + i % 4;
      if (row >= g.m) continue;
#pragma unroll
      for (int j = 0; j < kCols; ++j) {
        const int run = i * kCols + j;
        if constexpr (Shared)
          if (run % cluster_size() != cluster_rank()) continue;
        put<Epilogue>(g, alpha, sums(run), row, corner.col + left + 32 * j);
      }
    }
    if constexpr (Shared) {  // none leaves while others read its sums
      __syncthreads();
      cluster_arrive_relaxed();
      cluster_wait();
    }
  }
  // Of all CTAs that have some of K.
  static __device__ __forceinline__ Floats<4> sums(int run) {
    if constexpr (Shared) {
      Floats<4> all = {};
      for (u32 cta = 0; cta < cluster_size(); ++cta) {
        const float4 part = load_cluster(map_shared(shared_address(&total(run)), cta));
        all[0] += part.x, all[1] += part.y, all[2] += part.z, all[3] += part.w;
      }
      return all;
    } else {
      return widen(total(run));
    }
  }
};
