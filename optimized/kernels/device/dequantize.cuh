#pragma once
#include "device/tile.cuh"

// Arguments of the dequantizing kernels, in the order that the launcher packs them.
struct Dequantize {
  const u8 *data, *scales;  // scales of blocks, padded; else null
  const float* scale;  // (1,): FP8's scale_inv, NVFP4's amax
  void* y;  // (rows, cols)
  i64 rows, cols;
  int flat;  // rows of scales follow one another without a gap
};

// Values that a thread writes at once.
template <class Y>
constexpr int kTogether = 16 / sizeof(Y);

// From NVFP4's tensor amax: what the scales of its blocks are multiplied by.
__device__ __forceinline__ float nvfp4_decode(float amax) {
  const float quotient = fminf(__fdiv_rn(448.f * 6.f, amax), kFloatMax);
  return amax > 0.f && quotient > 0.f ? __fdiv_rn(1.f, quotient) : 1.f;
}

template <class Code, int N>
__device__ __forceinline__ Floats<N> fp8_values(const Vec<u8, N>& codes) {
  Floats<N> v;
  if constexpr (N == 1) v[0] = Code::decode_pair(codes.lane[0]).x;
#pragma unroll
  for (int i = 0; i + 1 < N; i += 2) {
    const float2 pair = Code::decode_pair(reinterpret_cast<const unsigned short&>(codes.lane[i]));
    v[i] = pair.x, v[i + 1] = pair.y;
  }
  return v;
}

// N codes, 4 or 8, the first in the lowest nibble.
template <int N>
__device__ __forceinline__ Floats<N> e2m1_values(u32 codes) {
  if constexpr (N == 4) codes = __byte_perm(codes, 0, 0x4140);  // a half of them in either half of the word
  Floats<N> v;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    const float2 pair = E2M1::decode_pair(codes, i);
    v[i] = pair.x, v[i + N / 2] = pair.y;
  }
  return v;
}

template <int N>
__device__ __forceinline__ Floats<N> times(Floats<N> v, float factor) {
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] *= factor;
  return v;
}

// Numbers among padded scales of the blocks of K places, `step` elements apart, of elements from `place` on.
template <int Block, int K>
__device__ __forceinline__ void find_scales(const Dequantize& a, i64 place, int step, i64 (&scale)[K]) {
  if (a.flat) {
#pragma unroll
    for (int i = 0; i < K; ++i) scale[i] = (place + i * step) / Block;
  } else {
    const bool narrow = u64(place | a.cols) >> 31 == 0;  // a division of 32 bits takes a fifth of one of 64
#pragma unroll
    for (int i = 0; i < K; ++i) {
      const i64 at = place + i * step, row = narrow ? u32(at) / u32(a.cols) : at / a.cols;
      scale[i] = row * round_up(a.cols / Block, 4) + (at - row * a.cols) / Block;
    }
  }
}

// Formats of rowwise data: `fetch` brings N neighbours from element `place` on and the scale of their block, so that
// those of several are on their way at once, `values` gives what they stand for.

template <class Code>
struct Fp8Rows {
  static constexpr int kBlock = 0;
  template <int N> using Fetched = Vec<u8, N>;
  float scale;
  __device__ __forceinline__ explicit Fp8Rows(const Dequantize& a) : scale(*a.scale) {}
  template <int N>
  static __device__ __forceinline__ Vec<u8, N> fetch(const Dequantize& a, i64 place, i64) {
    return load<u8, N>(a.data, place);
  }
  template <int N>
  __device__ __forceinline__ Floats<N> values(const Vec<u8, N>& codes) const {
    return times(fp8_values<Code>(codes), scale);
  }
};

template <class Code>
struct Mxfp8Rows {
  static constexpr int kBlock = 32;
  template <int N> struct Fetched { Vec<u8, N> codes; u8 scale; };
  __device__ __forceinline__ explicit Mxfp8Rows(const Dequantize&) {}
  template <int N>
  static __device__ __forceinline__ Fetched<N> fetch(const Dequantize& a, i64 place, i64 scale) {
    return {load<u8, N>(a.data, place), a.scales[scale]};
  }
  template <int N>
  __device__ __forceinline__ Floats<N> values(const Fetched<N>& f) const {
    return times(fp8_values<Code>(f.codes), e8m0_value(f.scale));
  }
};

struct Nvfp4Rows {
  static constexpr int kBlock = 16;
  template <int N> struct Fetched { u32 codes; u8 scale; };
  float decode;
  __device__ __forceinline__ explicit Nvfp4Rows(const Dequantize& a) : decode(nvfp4_decode(*a.scale)) {}
  template <int N>
  static __device__ __forceinline__ Fetched<N> fetch(const Dequantize& a, i64 place, i64 scale) {
    using Word = typename Either<N == 8, u32, unsigned short>::type;
    return {*reinterpret_cast<const Word*>(a.data + place / 2), a.scales[scale]};
  }
  template <int N>
  __device__ __forceinline__ Floats<N> values(const Fetched<N>& f) const {
    return times(e2m1_values<N>(f.codes), E4M3::decode_pair(f.scale).x * decode);
  }
};

template <class Y, int N>
__device__ __forceinline__ void store_values(void* y, i64 place, const Floats<N>& v) {
  Vec<Y, N> out;
  narrow(v, out);
  if constexpr (sizeof(out) == 16) store(y, place * sizeof(Y) / 16, reinterpret_cast<const Vec<uint4, 1>&>(out));
  else store(y, place, out);
}

// The first `count` of eight; `whole`: all, to 16 bytes.
template <class Y>
__device__ __forceinline__ void store_some(void* y, i64 place, const Floats<kRun>& v, int count, bool whole) {
  if (whole) return store_values<Y>(y, place, v);
  for (int i = 0; i < count; ++i) store_values<Y>(y, place + i, Floats<1>{v[i]});
}

// MXFP8 whose blocks lie down the columns, by threads of N columns and 8 rows: scales are read once for all rows.
template <class Code, class Y, int N>
__device__ __forceinline__ void dequantize_down(const Dequantize& a) {
  constexpr int kRows = 8;
  const i64 across = a.cols / N, units = a.rows / kRows * across, step = i64(gridDim.x) * kThreads;
  for (i64 unit = i64(blockIdx.x) * kThreads + threadIdx.x; unit < units; unit += step) {
    const bool narrow = u64(unit | across) >> 32 == 0;
    const i64 group = narrow ? u32(unit) / u32(across) : unit / across, col = (unit - group * across) * N;
    const i64 first = group * kRows * a.cols + col;
    const Vec<u8, N> scales = load<u8, N>(a.scales, group * kRows / 32 * round_up(a.cols, kEdge) + col);
    Vec<u8, N> codes[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) codes[i] = load<u8, N>(a.data, first + i * a.cols);
    Floats<N> factor;
#pragma unroll
    for (int j = 0; j < N; ++j) factor[j] = e8m0_value(scales.lane[j]);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      Floats<N> v = fp8_values<Code>(codes[i]);
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] *= factor[j];
      store_values<Y>(a.y, first + i * a.cols, v);
    }
  }
}

// Formats of transposed data: `load` brings a tile to shared memory, before a barrier, `take` a thread's 8 x 8 of it to
// registers, `row(i)` gives the values of one of its rows.

template <class Code>
struct Fp8Columns {
  using Shared = Turned<kEdge>;
  float scale;
  Vec<u8, kRun> codes[kRun];  // of rows
  __device__ __forceinline__ explicit Fp8Columns(const Dequantize& a) : scale(*a.scale) {}
  static __device__ __forceinline__ void load(const Dequantize& a, Shared& turned, i64 row, i64 col) {
    turned.fill(a.data, col, a.cols, row, a.rows);
  }
  __device__ __forceinline__ void take(Shared& turned, int top, int left) {
    u64 column[kRun];
#pragma unroll
    for (int j = 0; j < kRun; ++j)
      column[j] = *reinterpret_cast<const u64*>(turned.find(left, top) + j * Shared::kStep);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        u32 words[4], rows[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) words[j] = column[side * 4 + j] >> (32 * half);
        transpose_bytes(words, rows);
#pragma unroll
        for (int i = 0; i < 4; ++i) reinterpret_cast<u32&>(codes[half * 4 + i].lane[side * 4]) = rows[i];
      }
    }
  }
  __device__ __forceinline__ Floats<kRun> row(int i) const { return times(fp8_values<Code>(codes[i]), scale); }
};

struct Nvfp4Columns {
  struct Shared {
    Turned<kEdge / 2> turned;
    TileScales<8> scales;
  };
  float amax, scale[kRun];
  u32 codes[kRun];  // of rows
  __device__ __forceinline__ explicit Nvfp4Columns(const Dequantize& a) : amax(*a.scale) {}
  static __device__ __forceinline__ void load(const Dequantize& a, Shared& shared, i64 row, i64 col) {
    const u32 scales = shared.scales.fetch(a.scales, col, row / 16, a.rows / 16);
    shared.turned.fill(a.data, col, a.cols, row / 2, a.rows / 2);
    shared.scales.keep(scales);
  }
  __device__ __forceinline__ void take(Shared& shared, int top, int left) {
    constexpr int kStep = Turned<kEdge / 2>::kStep;
    const char* const column = shared.turned.find(left, top / 2);
    const u8* const scales = shared.scales.find(left, top / 16);
    u32 even[4], odd[4];  // rows, of two columns in each byte
#pragma unroll
    for (int j = 0; j < kRun; j += 2) {
      constexpr u32 kLow = 0x0F0F0F0F;
      const u32 a = *reinterpret_cast<const u32*>(column + j * kStep);
      const u32 b = *reinterpret_cast<const u32*>(column + (j + 1) * kStep);
      even[j / 2] = a & kLow | b << 4 & ~kLow, odd[j / 2] = a >> 4 & kLow | b & ~kLow;
    }
    u32 rows[4];
    transpose_bytes(even, rows);
#pragma unroll
    for (int i = 0; i < 4; ++i) codes[2 * i] = rows[i];
    transpose_bytes(odd, rows);
#pragma unroll
    for (int i = 0; i < 4; ++i) codes[2 * i + 1] = rows[i];
    const float decode = nvfp4_decode(amax);
#pragma unroll
    for (int j = 0; j < kRun; ++j) scale[j] = E4M3::decode_pair(scales[8 * j]).x * decode;
  }
  __device__ __forceinline__ Floats<kRun> row(int i) const {
    Floats<kRun> v = e2m1_values<kRun>(codes[i]);
#pragma unroll
    for (int j = 0; j < kRun; ++j) v[j] *= scale[j];
    return v;
  }
};
