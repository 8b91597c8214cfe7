#pragma once
#include "device/hadamard.cuh"
#include "device/line.cuh"
#include "device/philox.cuh"
#include "device/ptx/store.cuh"
#include "device/strip.cuh"

// How E2M1 codes are rounded.
struct Nearest {};
struct Stochastic {};
// What a scale is for: 16 elements of a row or column, 16 x 16, or 16 of a column after a random Hadamard transform.
struct Lines {};
struct Squares {};
struct Transformed {};

// Factors of NVFP4 for one tensor amax, in shared memory: what a block's elements are multiplied by, for each scale.
struct BlockFactors {
  float factor[128];

  // By all threads, before a barrier.
  __device__ __forceinline__ void fill(float decode) {
    if (threadIdx.x < 128) {
      const float reciprocal = __frcp_rn(E4M3::decode_pair(threadIdx.x).x * decode);
      factor[threadIdx.x] = reciprocal > kFloatMax ? kFloatMax : reciprocal;  // NaN stays
    }
  }
};

// NVFP4: codes of 4 bits, an E4M3 scale for each block of 16, an amax for the tensor. Columnwise data is transposed.
template <class From, class Rounding, class Blocks>
struct Nvfp4 {
  using Part = From;
  using X = typename Part::type;
  using Fill = typename Part::fill;
  static constexpr bool kTwice = true, kLooks = true;
  static constexpr bool kStochastic = kSame<Rounding, Stochastic>, kSquares = kSame<Blocks, Squares>;
  static constexpr bool kTransformed = kSame<Blocks, Transformed>;
  static constexpr int kBlock = 16, kAmaxes = kTransformed ? 2 : 1;
  struct Empty {};
  struct Data {
    Turned<kEdge / 2> turned;
    TileScales<8> rowwise, columnwise;
  };
  struct Shared {
    typename GridMax<kAmaxes>::Shared most;
    BlockFactors factors[kAmaxes];
    typename Either<Part::kTile, Data, Empty>::type data;
  };

  const Quantize& a;
  Shared& shared;
  Peaks<X> peaks, column_peaks;  // the latter of transformed columns
  float sixth[kAmaxes];  // S_enc / 6: rowwise and, where it differs, columnwise

  __device__ __forceinline__ Nvfp4(const Quantize& a, Shared& shared) : a(a), shared(shared) {}
  __device__ __forceinline__ void look(const Part& part) {
    part.add_to(peaks);
    if constexpr (kTransformed) {
#pragma unroll
      for (int j = 0; j < kRun; j += 2) {
        u32 word[kRun];
        hadamard(part.row, j, word);
#pragma unroll
        for (int i = 0; i < kRun; ++i) column_peaks.take(j / 2, word[i]);
      }
    }
  }
  __device__ __forceinline__ void settle() {
    u32 most[kAmaxes] = {peaks.bits()};
    if constexpr (kTransformed) most[1] = column_peaks.bits();
    GridMax<kAmaxes>::template apply<Part::kMeets>(shared.most, a.partial, most);
#pragma unroll
    for (int k = 0; k < kAmaxes; ++k) {
      const float amax = __uint_as_float(most[k]), quotient = fminf(__fdiv_rn(448.f * 6.f, amax), kFloatMax);
      const float encode = amax > 0.f && quotient > 0.f ? quotient : 1.f;
      sixth[k] = encode * (1.f / 6.f);
      shared.factors[k].fill(__fdiv_rn(1.f, encode));
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      if (a.rowwise_amax) *a.rowwise_amax = __uint_as_float(most[0]);
      if (a.columnwise_amax) *a.columnwise_amax = __uint_as_float(most[kAmaxes - 1]);
    }
    __syncthreads();
  }
  __device__ __forceinline__ void finish() const {
    if constexpr (!Part::kTile) pad_scales(a.rowwise_scales, a.rows, a.cols / kBlock);
  }

  // The scales of two blocks, a byte each.
  __device__ __forceinline__ u32 scales_of(float low, float high, int k) const {
    return E4M3::encode_pair(low * sixth[k], high * sixth[k]);
  }
  // Codes of two lines of blocks of the given scales, a byte each, of the groups of 16 elements number `group` of the
  // matrix, or its transpose: their first eight or, where `Bit` of the lane is set, their last.
  template <int Bit>
  __device__ __forceinline__ void codes(const Line (&line)[2], u32 scales, const u64 (&group)[2], bool columnwise,
                                        u32 (&word)[2]) const {
    uint2 random[2];
    if constexpr (kStochastic) Random{a.seed, a.offset}.template halves<Bit>(group, columnwise, random);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const u32 scale = scales >> (8 * k) & 0xFF;
      const float factor = shared.factors[columnwise ? kAmaxes - 1 : 0].factor[scale];
      u32 code[kRun];
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        const float magnitude = fabsf(line[k].v[i]) * factor;
        if constexpr (kStochastic) code[i] = E2M1::stochastic(magnitude, i < 4 ? random[k].x : random[k].y, i % 4);
        else code[i] = E2M1::nearest(magnitude);
      }
      const u32 packed = E2M1::pack(code, line[k].signs);
      word[k] = scale == 0x7F ? 0x77777777u : packed;
    }
  }

  // Two lanes have a block.
  __device__ __forceinline__ void encode(const Strip<X, Fill>& strip) const {
#pragma unroll
    for (int i = 0; i < Strip<X, Fill>::kRuns; i += 2) {
      const Spot at[2] = {strip.template spot<kBlock>(a, i), strip.template spot<kBlock>(a, i + 1)};
      const Line line[2] = {line_of_row(strip.run[i]), line_of_row(strip.run[i + 1])};
      float amax[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        Peaks<X> own;
        own.take(strip.run[i + k]);
        u32 most = own.bits();
        most = max(most, __shfl_xor_sync(~0u, most, 1));
        amax[k] = __uint_as_float(most);
      }
      const u32 scales = scales_of(amax[0], amax[1], 0);
      u32 word[2];
      codes<1>(line, scales, {u64(at[0].place) / kBlock, u64(at[1].place) / kBlock}, false, word);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        if (at[k].count) *reinterpret_cast<u32*>(a.rowwise + at[k].place / 2) = word[k];
        if (at[k].count && threadIdx.x % 2 == 0) a.rowwise_scales[at[k].scale] = scales >> (8 * k);
      }
    }
  }
  __device__ __forceinline__ void encode(const Tile<X, Fill>& tile) {
    Peaks<X> square;
    if constexpr (kSquares) {
      Peaks<X> all = Peaks<X>::of_columns(tile.row);
      u32 most = all.bits();
      most = max(most, __shfl_xor_sync(~0u, most, 1));
      most = max(most, __shfl_xor_sync(~0u, most, 8));
      const u32 scales = scales_of(__uint_as_float(most), __uint_as_float(most), 0);
      if (a.rowwise) encode_rows(tile, [&](int) { return scales; });
      if (a.columnwise) {
        encode_columns(tile, [&](int j, Line(&line)[2]) {
          lines_of_columns(tile.row, j, line);
          return scales;
        });
      }
    } else {
      if (!Part::kColumns || a.rowwise) {
        Peaks<X> own = Peaks<X>::of_rows(tile.row);
        own.exchange(1);
        encode_rows(tile, [&](int i) { return scales_of(own[i], own[i + 1], 0); });
      }
      if (!Part::kColumns || !a.columnwise) return;
      if constexpr (kTransformed) {
        encode_columns(tile, [&](int j, Line(&line)[2]) {
          u32 word[kRun];
          hadamard(tile.row, j, word);
          lines_of_words<X>(word, line);
          Peaks<X> own;
#pragma unroll
          for (int i = 0; i < kRun; ++i) own.take(0, word[i]);
          const u32 most = larger<X>(own.word[0], __shfl_xor_sync(~0u, own.word[0], 8));
          return scales_of(Peaks<X>::value(most, 0), Peaks<X>::value(most, 1), 1);
        });
      } else {
        Peaks<X> own = Peaks<X>::of_columns(tile.row);
        own.exchange(8);
        encode_columns(tile, [&](int j, Line(&line)[2]) {
          lines_of_columns(tile.row, j, line);
          return scales_of(own[j], own[j + 1], 0);
        });
      }
    }
  }
  // `scales_of_rows(i)`: the scales of the rows i and i + 1, i even.
  template <class Scales>
  __device__ __forceinline__ void encode_rows(const Tile<X, Fill>& tile, Scales scales_of_rows) {
    const i64 place = tile.place(a);
    u8* out = a.rowwise + u64(place) / 2;
    const int own = threadIdx.x % 2;  // of two rows, that whose scale this thread keeps
    u8* const scales_at = shared.data.rowwise.find(Lattice::top() + own, Lattice::left() / kBlock);
#pragma unroll
    for (int i = 0; i < kRun; i += 2) {
      const Line line[2] = {line_of_row(tile.row[i]), line_of_row(tile.row[i + 1])};
      const u64 first = u64(place + i * a.cols) / kBlock;
      const u32 scales = scales_of_rows(i);
      u32 word[2];
      codes<1>(line, scales, {first, first + u64(a.cols) / kBlock}, false, word);
#pragma unroll
      for (int k = 0; k < 2; ++k, out += u64(a.cols) / 2) store_if(i + k < tile.rows, out, word[k]);
      scales_at[8 * i] = scales >> (8 * own);
    }
    __syncthreads();
    shared.data.rowwise.flush(a.rowwise_scales, tile.first_row, tile.first_col / kBlock, a.cols / kBlock);
    __syncthreads();
  }
  // The same of columns: `lines_of(j, line)` fetches the columns j and j + 1, too.
  template <class Lines>
  __device__ __forceinline__ void encode_columns(const Tile<X, Fill>& tile, Lines lines_of) {
    char* const codes_at = shared.data.turned.find(Lattice::left(), Lattice::top() / 2);
    const int own = Lattice::lane_down() % 2;
    u8* const scales_at = shared.data.columnwise.find(Lattice::left() + own, Lattice::top() / kBlock);
#pragma unroll
    for (int j = 0; j < kRun; j += 2) {
      Line line[2];
      const u32 scales = lines_of(j, line);
      const u64 first = u64((tile.first_col + Lattice::left() + j) * a.rows + tile.first_row + Lattice::top()) / kBlock;
      u32 word[2];
      codes<8>(line, scales, {first, first + u64(a.rows) / kBlock}, true, word);
#pragma unroll
      for (int k = 0; k < 2; ++k) *reinterpret_cast<u32*>(codes_at + (j + k) * Turned<kEdge / 2>::kStep) = word[k];
      scales_at[8 * j] = scales >> (8 * own);
    }
    __syncthreads();
    shared.data.turned.flush(a.columnwise, tile.first_col, a.cols, tile.first_row / 2, a.rows / 2);
    shared.data.columnwise.flush(a.columnwise_scales, tile.first_col, tile.first_row / kBlock, a.rows / kBlock);
    __syncthreads();
  }
};
