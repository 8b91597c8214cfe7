#pragma once
#include "device/gemm_general.cuh"
#include "device/ptx/matrix.cuh"
#include "device/ptx/mma.cuh"

// The product of a tile on the tensor cores of compute capability 8.0 and up: bf16, f16, or f32 rounded to TF32.

template <class T>
struct Mma;
template <>
struct Mma<bf16> {
  static constexpr int kK = 16;
  static __device__ __forceinline__ void add(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    mma_m16n8k16_bf16(d, a, b0, b1);
  }
};
template <>
struct Mma<f16> {
  static constexpr int kK = 16;
  static __device__ __forceinline__ void add(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    mma_m16n8k16_f16(d, a, b0, b1);
  }
};
template <>
struct Mma<f32> {
  static constexpr int kK = 8;
  static __device__ __forceinline__ void add(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    mma_m16n8k8_tf32(d, a, b0, b1);
  }
};

// In which order the four 8 x 8 (TF32: 8 x 4) parts of 16 x 16 elements of an operand go into registers.
struct PartsOfA {
  static __device__ __forceinline__ int across(int part) { return part & 1; }
  static __device__ __forceinline__ int along_k(int part) { return part >> 1; }
};
struct PartsOfB {
  static __device__ __forceinline__ int across(int part) { return part >> 1; }
  static __device__ __forceinline__ int along_k(int part) { return part & 1; }
};

// Extent rows of A (columns of B) by Depth elements of K in shared memory, as they lie in global memory, but for
// 16-byte chunks of a row, which are permuted so that eight rows of a column of chunks lie in different banks.
template <class T, class Lies, int Extent, int Depth>
struct Panel {
  static constexpr int kRows = Lies::kAlongK ? Extent : Depth, kCols = Lies::kAlongK ? Depth : Extent;
  static constexpr int kChunk = 16 / sizeof(T), kChunks = kCols / kChunk;
  static constexpr int kSame = kChunks >= 8 ? 1 : 8 / kChunks;  // rows in 128 bytes
  static_assert(kRows * kChunks % kThreads == 0);

  alignas(16) char bytes[kRows * kCols * sizeof(T)];

  __device__ __forceinline__ char* at(int row, int col) {
    const int chunk = col / kChunk ^ row / kSame % (kChunks < 8 ? kChunks : 8);
    return bytes + (row * kChunks + chunk) * 16 + col % kChunk * int(sizeof(T));
  }
  __device__ __forceinline__ void load(const Side& side, i64 first, i64 k) {
    const i64 top = Lies::kAlongK ? first : k, left = Lies::kAlongK ? k : first;
#pragma unroll
    for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
      const int chunk = i * kThreads + threadIdx.x, row = chunk / kChunks, col = chunk % kChunks * kChunk;
      copy_run<T, kChunk>(at(row, col), side, top + row, left + col);
    }
  }
  // 16 rows of A (columns of B) from `across`, as many elements of K as an Mma takes from `k`.
  template <class Parts>
  __device__ __forceinline__ void fragment(int across, int k, u32 (&r)[4]) {
    const int lane = threadIdx.x % kWarp;
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int x = across + lane / 4 + 8 * Parts::across(i), y = k + lane % 4 + 4 * Parts::along_k(i);
        r[i] = round_to_tf32(*reinterpret_cast<const float*>(Lies::kAlongK ? at(x, y) : at(y, x)));
      }
    } else {
      const int x = across + 8 * Parts::across(lane / 8), y = k + 8 * Parts::along_k(lane / 8);
      load_matrices<!Lies::kAlongK>(Lies::kAlongK ? at(x + lane % 8, y) : at(y + lane % 8, x), r);
    }
  }
};

// M x N elements of D in the registers of eight warps, two of them above one another.
template <class T, class A, class B, int M, int N>
struct TensorCore {
  using LiesA = A;
  using LiesB = B;
  static constexpr int kM = M, kN = N, kDepth = 64 / sizeof(T), kStages = 4;
  static constexpr bool kShared = false;
  static constexpr int kHigh = M / 2, kWide = N / 4;       // of a warp
  static constexpr int kBlocks = kHigh / 16, kPairs = kWide / 16;  // of 16 rows; of two times 8 columns
  struct Stage {
    Panel<T, A, M, kDepth> a;
    Panel<T, B, N, kDepth> b;
  };

  const int top = threadIdx.x / kWarp % 2 * kHigh, left = threadIdx.x / (2 * kWarp) * kWide;
  float sum[kBlocks][2 * kPairs][4] = {};

  static __device__ __forceinline__ int span(i64) { return 1 << 30; }
  __device__ __forceinline__ void end_span() {}
  __device__ __forceinline__ void load(Stage& stage, const Side& a, const Side& b, const Corner& corner, i64 k) {
    stage.a.load(a, corner.row, k);
    stage.b.load(b, corner.col, k);
  }
  __device__ __forceinline__ void multiply(Stage& stage) {
#pragma unroll
    for (int k = 0; k < kDepth; k += Mma<T>::kK) {
      u32 a[kBlocks][4], b[kPairs][4];
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) stage.a.template fragment<PartsOfA>(top + 16 * i, k, a[i]);
#pragma unroll
      for (int j = 0; j < kPairs; ++j) stage.b.template fragment<PartsOfB>(left + 16 * j, k, b[j]);
#pragma unroll
      for (int i = 0; i < kBlocks; ++i)
#pragma unroll
        for (int j = 0; j < 2 * kPairs; ++j)
          Mma<T>::add(sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
  template <class Epilogue>
  __device__ __forceinline__ void finish(const General& g, float alpha, const Corner& corner) const {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < 2 * kBlocks; ++i) {
      const i64 row = corner.row + top + 8 * i + lane / 4;
      if (row >= g.m) continue;
#pragma unroll
      for (int j = 0; j < 2 * kPairs; ++j) {
        const float(&part)[4] = sum[i / 2][j];
        put<Epilogue>(g, alpha, Floats<2>{{part[i % 2 * 2], part[i % 2 * 2 + 1]}}, row,
                         corner.col + left + 8 * j + lane % 4 * 2);
      }
    }
  }
};
