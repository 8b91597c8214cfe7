#pragma once
#include "device/gemm_stages.cuh"
#include "device/ptx/cluster.cuh"
#include "device/ptx/tensor.cuh"

// Products D = factor A B (+ C) of tiles that a list names: what the parts of the kernel agree on. Kept in step with
// optimized/gemm.py, gemm_tiles.py and gemm_work.py.

constexpr int kConsumers = 2;                               // warpgroups that multiply, behind the one that loads
constexpr int kGemmThreads = (1 + kConsumers) * kWarpgroup;
constexpr int kClusterCtas = 2;
constexpr int kChunkRows = 64, kChunkBytes = 64 * 64;       // of D
constexpr int kSlotChunks = 2;                              // in one slot of the staging memory

// A pair of tiles, one a CTA, that have a part of A or of B in common; stages of K. No steps end the list.
struct alignas(16) Item {
  int row, col, steps, what;
  __device__ __forceinline__ bool second() const { return what & 1; }    // of the two products
  __device__ __forceinline__ bool shares_a() const { return what & 2; }  // the tiles lie beside each other
  static constexpr int kStores = 0, kAddsC = 1, kStoresFloats = 2, kAddsFloats = 3;
  __device__ __forceinline__ int result() const { return what >> 2 & 3; }
};

// How many chunks of `width` columns lie across a tile, so that slots are full: those of a block of 64 rows where the
// last one would reach out, or else those of all blocks.
__host__ __device__ constexpr int chunks_across(int cols, int width, int blocks) {
  const int count = ceil_div(cols, width);
  return count + (cols % width ? count : blocks * count) % kSlotChunks;
}

// Position of a chunk of `Cols` columns in a tile: block after block of 64 rows, each from left to right. Where the
// last one would reach out it has columns of the one before once more, with which it shares a slot: C is there before
// D, which may be C, overwrites it. For that the first one comes twice where their number is odd.
template <class T, int Cols = 32>
struct Chunks {
  static constexpr int kAcross = chunks_across(T::kCols, Cols, T::kBlocks);
  static constexpr int kTwice = T::kCols % Cols ? kAcross - ceil_div(T::kCols, Cols) : 0;
  static __device__ __forceinline__ int x(int chunk) {
    return min(max(chunk % kAcross - kTwice, 0) * Cols, T::kCols - Cols);
  }
  static __device__ __forceinline__ int y(int chunk) { return chunk / kAcross * kChunkRows; }
};

// Column and row of D, or C, of a tile's.
template <bool Across>
__device__ __forceinline__ int2 placed(int col, int row) {
  return Across ? make_int2(row, col) : make_int2(col, row);
}

// Where somebody stands in the list of a cluster; two ends follow each list, for those who look ahead.
struct Walk {
  const Item* at;
  int stride;
  __device__ __forceinline__ Item item(int ahead = 0) const {
    const int4 raw = __ldg(reinterpret_cast<const int4*>(at + ahead * stride));
    return Item{raw.x, raw.y, raw.z, raw.w};
  }
  __device__ __forceinline__ void advance(int items) { at += items * stride; }
};

struct Product {
  TensorMap a, b, c, d;
  TensorMap a_edge, b_edge;  // the box of what is left of A's rows, of B's columns, where a whole one would reach out
};

struct Gemm {
  Product products[2];
  const float* factor;  // in device memory; null: 1
  float scale;
  int unused;
  const Item* items;  // [step][cluster]
  int clusters;
  int rows[2], cols[2];  // of D, of each product
};

// A tile of D, and how the two consumers share the work on it.
struct Cooperative {  // half of the rows each
  static constexpr int kTogether = kConsumers;
};
struct PingPong {  // a whole tile each, by turns: one multiplies while the other stores
  static constexpr int kTogether = 1;
};

template <class Schedule, int Rows, int Cols, int Stages, int Slots>
struct Tile {
  static constexpr int kRows = Rows, kCols = Cols, kStages = Stages, kSlots = Slots;
  static constexpr int kTogether = Schedule::kTogether;
  static constexpr int kTurns = kConsumers / kTogether;
  static constexpr int kBlocks = Rows / kTogether / 64;  // of 64 rows, in one consumer
  static constexpr int kABytes = Rows * kDepth * 2, kBBytes = Cols * kDepth * 2;
  static constexpr int kStageChunks = (kABytes + kBBytes) / kChunkBytes;  // of C, in the place of A and B
  static constexpr int kTileChunks = Rows / kChunkRows * chunks_across(Cols, 32, kBlocks);
  static constexpr int kResidualStages = (kTileChunks + kStageChunks - 1) / kStageChunks;
  static_assert(kBlocks >= 1 && Cols % 16 == 0);
};

template <class T>
struct alignas(1024) GemmShared {
  struct Stage {
    char a[T::kABytes];
    char b[T::kBBytes];
    __device__ __forceinline__ char* residual(int chunk) { return a + chunk * kChunkBytes; }
  } stages[T::kStages];
  char staging[kConsumers][T::kSlots][kSlotChunks * kChunkBytes];
  u64 full[T::kStages], empty[T::kStages];
  u64 arrived[kConsumers][T::kSlots];  // C, where it comes to the slots
};

// This CTA's tile of an item.
template <class T>
struct Corner {
  int row, col;
  __device__ __forceinline__ Corner(const Item& item)
      : row(item.row + (item.shares_a() ? 0 : int(cluster_rank()) * T::kRows)),
        col(item.col + (item.shares_a() ? int(cluster_rank()) * T::kCols : 0)) {}
};

// Which of the warpgroups that multiply this is; the compiler learns that a warp agrees on it.
__device__ __forceinline__ int consumer_index() { return __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0) - 1; }
