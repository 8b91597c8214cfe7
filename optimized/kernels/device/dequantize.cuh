#pragma once
#include "device/strip.cuh"
#include "device/tile.cuh"

// Arguments of the dequantizing kernels, in the order that the launcher packs them.
struct Dequantize {
  const u8 *data, *scales;  // scales of blocks, padded; else null
  const float* scale;  // (1,): FP8's scale_inv, NVFP4's amax
  void* y;  // (rows, cols)
  i64 rows, cols, pitch;  // elements; the pitch is cols
  int flat;
};

// From NVFP4's tensor amax: what the scales of its blocks are multiplied by.
__device__ __forceinline__ float nvfp4_decode(float amax) {
  const float quotient = fminf(__fdiv_rn(448.f * 6.f, amax), kFloatMax);
  return amax > 0.f && quotient > 0.f ? __fdiv_rn(1.f, quotient) : 1.f;
}

template <class Code>
__device__ __forceinline__ Floats<kRun> fp8_values(u64 codes) {
  Floats<kRun> v;
#pragma unroll
  for (int i = 0; i < kRun; i += 2) {
    const float2 pair = Code::decode_pair(u32(codes >> (8 * i)) & 0xFFFF);
    v[i] = pair.x, v[i + 1] = pair.y;
  }
  return v;
}

__device__ __forceinline__ Floats<kRun> e2m1_values(u32 codes) {
  Floats<kRun> v;
#pragma unroll
  for (int i = 0; i < kRun; ++i) v[i] = E2M1::decode(codes >> (4 * i));
  return v;
}

// Formats: `at(run)` gives eight float32 values of a row.

template <class Code>
struct Fp8Rows {
  static constexpr int kBlock = kRun;
  float scale;
  __device__ __forceinline__ explicit Fp8Rows(const Dequantize& a) : scale(*a.scale) {}
  __device__ __forceinline__ Floats<kRun> values(const Dequantize& a, const Spot& at) const {
    Floats<kRun> v = fp8_values<Code>(load_codes(a, at));
#pragma unroll
    for (int i = 0; i < kRun; ++i) v[i] *= scale;
    return v;
  }
  static __device__ __forceinline__ u64 load_codes(const Dequantize& a, const Spot& at) {
    const Vec<u8, kRun> codes = load_run<u8, Ragged>(a.data, at.place, at.count, at.place % kRun == 0);
    return reinterpret_cast<const u64&>(codes);
  }
};

template <class Code>
struct Mxfp8Rows {
  static constexpr int kBlock = 32;
  __device__ __forceinline__ explicit Mxfp8Rows(const Dequantize&) {}
  __device__ __forceinline__ Floats<kRun> values(const Dequantize& a, const Spot& at) const {
    Floats<kRun> v = fp8_values<Code>(Fp8Rows<Code>::load_codes(a, at));
    const float scale = at.count ? e8m0_value(a.scales[at.scale]) : 0.f;
#pragma unroll
    for (int i = 0; i < kRun; ++i) v[i] *= scale;
    return v;
  }
};

template <class Code>
struct Mxfp8Columns {
  static constexpr int kBlock = kRun;
  __device__ __forceinline__ explicit Mxfp8Columns(const Dequantize&) {}
  __device__ __forceinline__ Floats<kRun> values(const Dequantize& a, const Spot& at) const {
    Floats<kRun> v = fp8_values<Code>(Fp8Rows<Code>::load_codes(a, at));
    if (!at.count) return v;
    const i64 row = u64(at.place) >> 32 ? at.place / a.cols : u32(at.place) / u32(a.cols);
    const Vec<u8, kRun> scales =
        load<u8, kRun>(a.scales, row / 32 * round_up(a.cols, kEdge) + (at.place - row * a.cols));
#pragma unroll
    for (int i = 0; i < kRun; ++i) v[i] *= e8m0_value(scales.lane[i]);
    return v;
  }
};

struct Nvfp4Rows {
  static constexpr int kBlock = 16;
  float decode;
  __device__ __forceinline__ explicit Nvfp4Rows(const Dequantize& a) : decode(nvfp4_decode(*a.scale)) {}
  __device__ __forceinline__ Floats<kRun> values(const Dequantize& a, const Spot& at) const {
    if (!at.count) return {};
    Floats<kRun> v = e2m1_values(*reinterpret_cast<const u32*>(a.data + at.place / 2));
    const float scale = E4M3::decode_pair(a.scales[at.scale]).x * decode;
#pragma unroll
    for (int i = 0; i < kRun; ++i) v[i] *= scale;
    return v;
  }
};

template <class Y>
__device__ __forceinline__ void store_values(void* y, i64 place, const Floats<kRun>& v, int count) {
  Vec<Y, kRun> out;
  narrow(v, out);
  if (count == kRun && place % kRun == 0) {
    store(y, place, out);
  } else {
#pragma unroll
    for (int i = 0; i < kRun; ++i)
      if (i < count) static_cast<Y*>(y)[place + i] = out.lane[i];
  }
}

// Formats of transposed data: `load` brings a tile to shared memory, `take` a thread's 8 x 8 of it to registers,
// `row(i)` gives the values of one of its rows.

template <class Code>
struct Fp8Columns {
  using Shared = Turned<kEdge>;
  float scale;
  u32 low[kRun], high[kRun];  // of row i: codes of columns 0 … 3 and 4 … 7
  __device__ __forceinline__ explicit Fp8Columns(const Dequantize& a) : scale(*a.scale) {}
  __device__ __forceinline__ void load(const Dequantize& a, Shared& turned, i64 row, i64 col) const {
    turned.fill(a.data, col, a.cols, row, a.rows);
  }
  __device__ __forceinline__ void take(const Dequantize&, Shared& turned, i64, i64, int top, int left) {
    u64 column[kRun];
#pragma unroll
    for (int j = 0; j < kRun; ++j) column[j] = turned.template get<u64>(left + j, top);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      u32 words[4], rows[4];
#pragma unroll
      for (int side = 0; side < 2; ++side) {
#pragma unroll
        for (int j = 0; j < 4; ++j) words[j] = column[side * 4 + j] >> (32 * half);
        transpose_bytes(words, rows);
#pragma unroll
        for (int i = 0; i < 4; ++i) (side ? high : low)[half * 4 + i] = rows[i];
      }
    }
  }
  __device__ __forceinline__ Floats<kRun> row(int i) const {
    Floats<kRun> v = fp8_values<Code>(u64(high[i]) << 32 | low[i]);
#pragma unroll
    for (int j = 0; j < kRun; ++j) v[j] *= scale;
    return v;
  }
};

struct Nvfp4Columns {
  using Shared = Turned<kEdge / 2>;
  float decode, scale[kRun];
  u32 column[kRun];
  __device__ __forceinline__ explicit Nvfp4Columns(const Dequantize& a) : decode(nvfp4_decode(*a.scale)) {}
  __device__ __forceinline__ void load(const Dequantize& a, Shared& turned, i64 row, i64 col) const {
    turned.fill(a.data, col, a.cols, row / 2, a.rows / 2);
  }
  __device__ __forceinline__ void take(const Dequantize& a, Shared& turned, i64 row, i64 col, int top, int left) {
    const i64 pitch = round_up(a.rows / 16, 4), block = (row + top) / 16;
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      column[j] = turned.template get<u32>(left + j, top / 2);
      scale[j] = block < pitch ? E4M3::decode_pair(a.scales[(col + left + j) * pitch + block]).x * decode : 0.f;
    }
  }
  __device__ __forceinline__ Floats<kRun> row(int i) const {
    Floats<kRun> v;
#pragma unroll
    for (int j = 0; j < kRun; ++j) v[j] = E2M1::decode(column[j] >> (4 * i)) * scale[j];
    return v;
  }
};
