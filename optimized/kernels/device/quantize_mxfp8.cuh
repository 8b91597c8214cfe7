#pragma once
#include "device/strip.cuh"
#include "device/tile.cuh"

// Blocks of 32 with an E8M0 scale, from the block's own amax, of a tile of which each warp has 32 rows and 64 columns.
template <class Code>
struct Mxfp8Blocks {
  static constexpr int kBlock = 32;
  static __device__ __forceinline__ u32 scale_of(float amax) { return e8m0_code(amax * (1.f / Code::kLargest)); }

  // The factors of eight places, of which each of four lanes, `first` + k * step, has worked out two.
  static __device__ __forceinline__ void gather(u32 low, u32 high, int first, int step, float (&factor)[kRun]) {
    const u32 mine = e8m0_factor(low) | e8m0_factor(high) << 16;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const u32 pair = __shfl_sync(~0u, mine, first + k * step);
      factor[2 * k] = __uint_as_float(pair << 16), factor[2 * k + 1] = __uint_as_float(pair & 0xFFFF0000u);
    }
  }
  // Of a thread's eight rows, the first of the two whose scales it works out.
  static __device__ __forceinline__ int own_row() { return 2 * (threadIdx.x % 4); }
  // Of the peaks of eight rows: the scale of that row to `scales`, that of the next `step` bytes on.
  template <class X>
  static __device__ __forceinline__ void scale_rows(const Peaks<X>& peaks, u8* scales, int step,
                                                    float (&factor)[kRun]) {
    const float2 amax = peaks.template scatter<2, 1>();
    const int quarter = threadIdx.x % 4;
    const u32 low = scale_of(amax.x), high = scale_of(amax.y);
    scales[0] = low, scales[step] = high;
    gather(low, high, threadIdx.x % kWarp - quarter, 1, factor);
  }
  // Of the peaks of eight columns.
  template <class X, class Tile>
  static __device__ __forceinline__ void scale_columns(const Quantize& a, const Tile& tile, const Peaks<X>& peaks,
                                                       float (&factor)[kRun]) {
    const float2 amax = peaks.template scatter<16, 8>();
    const int quarter = tile.lane_down();
    const u32 low = scale_of(amax.x), high = scale_of(amax.y);
    const i64 line = (tile.first_row + tile.top()) / kBlock, pitch = round_up(a.cols, kEdge);
    const i64 pair = line * pitch + tile.first_col + tile.left() + 2 * quarter;
    *reinterpret_cast<unsigned short*>(a.columnwise_scales + pair) = low | high << 8;
    gather(low, high, tile.lane_across(), 8, factor);
  }
  template <class Tile>
  static __device__ __forceinline__ void put_rows(const Quantize& a, const Tile& tile, u8* scales, int step) {
    float factor[kRun];
    scale_rows(Peaks<typename Tile::type>::of_rows(tile.row), scales, step, factor);
    i64 place = tile.place(a);
#pragma unroll
    for (int i = 0; i < kRun; ++i, place += a.cols)
      store_run<typename Tile::fill>(a.rowwise, place, fp8_codes<Code>(tile.values(i), factor[i]), tile.in_row(i));
  }
  template <class Tile>
  static __device__ __forceinline__ void put_columns(const Quantize& a, const Tile& tile) {
    float factor[kRun];
    scale_columns(a, tile, Peaks<typename Tile::type>::of_columns(tile.row), factor);
    i64 place = tile.place(a);
#pragma unroll
    for (int i = 0; i < kRun; ++i, place += a.cols)
      store_run<typename Tile::fill>(a.columnwise, place, fp8_codes<Code>(tile.values(i), factor), tile.in_row(i));
  }
};

// MXFP8: along a row or down a column.
template <class From, class Code>
struct Mxfp8 {
  using Part = From;
  using X = typename Part::type;
  using Fill = typename Part::fill;
  using Blocks = Mxfp8Blocks<Code>;
  static constexpr bool kTwice = false, kLooks = false;
  static constexpr int kBlock = Blocks::kBlock;
  struct Empty {};
  struct Scales { TileScales<4> rowwise; };
  struct Shared { typename Either<Part::kTile, Scales, Empty>::type data; };

  const Quantize& a;
  Shared& shared;

  __device__ __forceinline__ Mxfp8(const Quantize& a, Shared& shared) : a(a), shared(shared) {}
  __device__ __forceinline__ void finish() const {
    if constexpr (!Part::kTile) pad_scales(a.rowwise_scales, a.rows, a.cols / kBlock);
  }

  // Four lanes have a block.
  __device__ __forceinline__ void encode(const Strip<X, Fill>& strip) const {
#pragma unroll
    for (int i = 0; i < Strip<X, Fill>::kRuns; ++i) {
      const Spot at = strip.template spot<kBlock>(a, i);
      Peaks<X> peaks;
      peaks.take(strip.run[i]);
      u32 most = peaks.bits();
      most = max(most, __shfl_xor_sync(~0u, most, 1));
      most = max(most, __shfl_xor_sync(~0u, most, 2));
      const u32 code = Blocks::scale_of(__uint_as_float(most));
      const float factor = __uint_as_float(e8m0_factor(code) << 16);
      store_run<Fill>(a.rowwise, at.place, fp8_codes<Code>(widen(strip.run[i]), factor), at.count);
      if (at.count && threadIdx.x % 4 == 0) a.rowwise_scales[at.scale] = code;
    }
  }
  __device__ __forceinline__ void encode(const Tile<X, Fill>& tile) {
    if (!Part::kColumns || a.rowwise) encode_rows(tile);
    if constexpr (Part::kColumns)
      if (a.columnwise) Blocks::put_columns(a, tile);
  }
  __device__ __forceinline__ void encode_rows(const Tile<X, Fill>& tile) {
    TileScales<4>& scales = shared.data.rowwise;
    Blocks::put_rows(a, tile, scales.find(Lattice::top() + Blocks::own_row(), Lattice::left() / kBlock), 4);
    __syncthreads();
    scales.flush(a.rowwise_scales, tile.first_row, tile.first_col / kBlock, a.cols / kBlock);
    __syncthreads();
  }
};
