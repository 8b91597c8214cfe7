#pragma once
#include "device/strip.cuh"
#include "device/tile.cuh"

// MXFP8: an E8M0 scale for each 32 elements along a row or down a column, from the block's own amax.
template <class From, class Code>
struct Mxfp8 {
  using Part = From;
  using X = typename Part::type;
  static constexpr bool kTwice = false, kLooks = false;
  static constexpr int kBlock = 32;
  struct Empty {};
  struct Scales { TileScales<4> rowwise; };
  struct Shared { typename Either<Part::kTile, Scales, Empty>::type data; };

  const Quantize& a;
  Shared& shared;

  __device__ __forceinline__ Mxfp8(const Quantize& a, Shared& shared) : a(a), shared(shared) {}
  __device__ __forceinline__ void finish() const {
    if constexpr (!Part::kTile) pad_scales(a.rowwise_scales, a.rows, a.cols / kBlock);
  }
  static __device__ __forceinline__ u32 scale_of(float amax) { return e8m0_code(amax * (1.f / Code::kLargest)); }

  // Four lanes have a block.
  __device__ __forceinline__ void encode(const Strip<X>& strip) const {
#pragma unroll
    for (int i = 0; i < Strip<X>::kRuns; ++i) {
      const Spot at = strip.template spot<kBlock>(a, i);
      Peaks<X> peaks;
      peaks.take(strip.run[i]);
      u32 most = peaks.bits();
      most = max(most, __shfl_xor_sync(~0u, most, 1));
      most = max(most, __shfl_xor_sync(~0u, most, 2));
      const u32 code = scale_of(__uint_as_float(most));
      store_run(a.rowwise, at.place, fp8_codes<Code>(widen(strip.run[i]), e8m0_factor(code)), at.count);
      if (at.count && threadIdx.x % 4 == 0) a.rowwise_scales[at.scale] = code;
    }
  }
  __device__ __forceinline__ void encode(const Tile<X>& tile) {
    if (a.rowwise) encode_rows(tile);
    if (a.columnwise) encode_columns(tile);
  }
  __device__ __forceinline__ void encode_rows(const Tile<X>& tile) {
    Peaks<X> peaks = Peaks<X>::of_rows(tile.row);
    peaks.exchange(1);
    peaks.exchange(2);
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      const u32 code = scale_of(peaks[i]);
      if (threadIdx.x % 4 == 0) shared.data.rowwise.put(Tile<X>::top() + i, Tile<X>::left() / kBlock, code);
      if (i < tile.rows)
        store_run(a.rowwise, tile.place(a, i), fp8_codes<Code>(tile.values(i), e8m0_factor(code)), tile.columns);
    }
    __syncthreads();
    shared.data.rowwise.flush(a.rowwise_scales, tile.first_row, tile.first_col / kBlock, a.cols / kBlock);
    __syncthreads();
  }
  __device__ __forceinline__ void encode_columns(const Tile<X>& tile) {
    Peaks<X> peaks = Peaks<X>::of_columns(tile.row);
    peaks.exchange(8);
    peaks.exchange(16);
    float factor[kRun];
    u64 codes = 0;
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      const u32 code = scale_of(peaks[j]);
      codes |= u64(code) << (8 * j);
      factor[j] = e8m0_factor(code);
    }
    const i64 line = (tile.first_row + Tile<X>::top()) / kBlock, pitch = round_up(a.cols, kEdge);
    if (Tile<X>::lane_down() == 0)
      *reinterpret_cast<u64*>(a.columnwise_scales + line * pitch + tile.first_col + Tile<X>::left()) = codes;
#pragma unroll
    for (int i = 0; i < kRun; ++i)
      if (i < tile.rows)
        store_run(a.columnwise, tile.place(a, i), fp8_codes<Code>(tile.values(i), factor), tile.columns);
  }
};
