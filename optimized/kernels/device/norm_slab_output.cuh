#pragma once
#include "device/norm_slab.cuh"

// What becomes of y of a slab whose statistics are in shared memory. Each warp takes the 32 rows of 64 columns.

// MXFP8, along the rows or not, and down the columns.
template <class Norm, class X, class Gamma, class Code, int Warps>
struct SlabMxfp8 {
  using Blocks = Mxfp8Blocks<Code>;
  using Rows = SlabRows<Norm, X, Gamma, Warps>;
  using Part = typename Rows::Part;
  static constexpr int kThreads = Warps * kWarp;
  struct Shared {};

  const NormQuantize& a;

  __device__ __forceinline__ SlabMxfp8(const NormQuantize& a, Shared&) : a(a) {}
  __device__ __forceinline__ void put(const Rows& rows, i64 top) const {
    Tile<X, Whole, SlabLattice<Warps>> tile;
    tile.first_row = top;
    for (int step = 0; step + tile.warp_across() * 64 < rows.part.width; step += Warps * 64) {
      tile.first_col = rows.part.first + step;
      const int column = step + tile.left();
      const auto parameters = rows.parameters(column);
      Peaks<X> of_columns;
      u32 of_row[kRun];
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        Vec<X, kRun> y;
        narrow(rows.normed(tile.top() + i, column, parameters), y);
        of_columns.take(y), of_row[i] = Peaks<X>::of_row(y);
        rows.part.put(tile.top() + i, column, y);
      }
      float along[kRun], down[kRun];
      u32* const word = scales_of(rows.part, tile.top() + Blocks::own_row(), column / kEdge);
      u8* const scale = reinterpret_cast<u8*>(word) + column % kEdge / Blocks::kBlock;
      Blocks::scale_rows(Peaks<X>::of_rows(of_row), scale, sizeof(*word), along);
      Blocks::scale_columns(a, tile, of_columns, down);
      __syncwarp();  // so that y comes from there, not from registers that there are not enough of
      if (a.rowwise) put_codes<true>(rows.part, tile, column, along, down);
      else put_codes<false>(rows.part, tile, column, along, down);
    }
    if (a.rowwise) put_scales(rows.part, top);
  }
  // Of a row's 128 columns, beside those of other rows: behind the parameters.
  static __device__ __forceinline__ u32* scales_of(const Part& part, int row, int word) {
    const auto behind = Norm::kCentered ? part.beta() + part.pitch : part.beta();
    return reinterpret_cast<u32*>(behind) + word * kSlabRows + row;
  }
  template <bool Along, class Tile>
  __device__ __forceinline__ void put_codes(const Part& part, const Tile& tile, int column,
                                            const float (&along)[kRun], const float (&down)[kRun]) const {
    i64 place = tile.place(a);
#pragma unroll
    for (int i = 0; i < kRun; ++i, place += a.cols) {
      const Floats<kRun> y = widen(part.run(tile.top() + i, column));
      if (Along) *reinterpret_cast<u64*>(a.rowwise + place) = fp8_codes<Code>(y, along[i]);
      *reinterpret_cast<u64*>(a.columnwise + place) = fp8_codes<Code>(y, down);
    }
  }
  // Of the last 64 columns where an odd number of them is there: two zeros behind their two.
  __device__ __forceinline__ void put_scales(const Part& part, i64 top) const {
    const int words = ceil_div(part.width, kEdge);
    const i64 pitch = round_up(a.cols / Blocks::kBlock, 4);
    __syncthreads();
#pragma unroll 1
    for (int k = threadIdx.x; k < kSlabRows * words; k += kThreads) {
      const int row = k % kSlabRows, w = k / kSlabRows;
      const u32 word = *scales_of(part, row, w) & (part.width < (w + 1) * kEdge ? 0xFFFF : ~0u);
      *reinterpret_cast<u32*>(a.rowwise_scales + (top + row) * pitch + part.first / Blocks::kBlock + 4 * w) = word;
    }
  }
  __device__ __forceinline__ void finish() const {
    if (a.rowwise) pad_scales(a.rowwise_scales, a.rows, a.cols / Blocks::kBlock, kThreads);
    pad_scales<4, kEdge>(a.columnwise_scales, a.rows / Blocks::kBlock, a.cols, kThreads);
  }
};

// FP8 with delayed scaling, of the float32 y, along the rows or not, and the transpose of the same bytes, which a warp
// turns where its part of x was: 16 rows take 128 bytes each, four lines of 32, in the order of Turned.
template <class Norm, class X, class Gamma, class Code, int Warps>
struct SlabFp8 {
  using Rows = SlabRows<Norm, X, Gamma, Warps>;
  using Part = typename Rows::Part;
  static constexpr int kThreads = Warps * kWarp;
  using At = SlabLattice<Warps>;
  struct Shared { BlockMax<1>::Shared most; };

  const NormQuantize& a;
  Shared& shared;
  DelayedCast cast;

  __device__ __forceinline__ SlabFp8(const NormQuantize& a, Shared& shared) : a(a), shared(shared), cast(a) {}
  __device__ __forceinline__ void put(const Rows& rows, i64 top) {
    const int there = min(i64(kRun), max(i64(0), a.rows - top - At::top()));
    for (int step = 0; step + At::warp_across() * 64 < rows.part.width; step += Warps * 64) {
      const int column = step + At::left();
      const auto parameters = rows.parameters(column);
      u32 low[kRun], high[kRun];  // of row i: codes of columns 0 … 3 and 4 … 7
      i64 place = (top + At::top()) * a.cols + rows.part.first + column;
#pragma unroll
      for (int i = 0; i < kRun; ++i, place += a.cols) {
        const Floats<kRun> y = rows.normed(At::top() + i, column, parameters);
        if (i < there) cast.look(y);
        const u64 codes = fp8_codes<Code>(y, cast.scale);
        low[i] = codes, high[i] = codes >> 32;
        if (a.rowwise) store_run<Whole>(a.rowwise, place, codes, i < there);
      }
      put_columns(rows.part, step + At::warp_across() * 64, top, low, high);
    }
  }
  __device__ __forceinline__ void put_columns(const Part& part, int column, i64 top, const u32 (&low)[kRun],
                                              const u32 (&high)[kRun]) const {
    char* const lines = reinterpret_cast<char*>(part.at(0, column));
    const int pitch = part.pitch * int(sizeof(X));
    const auto find = [&](int line, int chunk) {
      return lines + line / 4 * pitch + (line % 4 * 2 + (chunk ^ line / 4 % 2)) * 16;
    };
    char* const to = find(At::lane_across(), At::lane_down() / 2) + At::lane_down() % 2 * kRun;
    __syncwarp();  // all of the warp have read their x
    put_transposed(to, 2 * pitch, low);
    put_transposed(to + 8 * pitch, 2 * pitch, high);
    __syncwarp();
#pragma unroll
    for (int k = slab_lane(); k < 128; k += kWarp) {
      const int line = k / 2, chunk = k % 2;
      const i64 at = part.first + column + Turned<kSlabRows>::column_of(line), byte = top + 16 * chunk;
      put_chunk(a.columnwise + at * a.rows + byte, *reinterpret_cast<const uint4*>(find(line, chunk)),
                int(min(i64(16), a.rows - byte)), a.rows);
    }
  }
  __device__ __forceinline__ void finish() const { cast.finish(a, shared.most); }
};
