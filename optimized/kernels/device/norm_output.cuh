#pragma once
#include "device/norm_rows.cuh"
#include "device/quantize.cuh"

// What becomes of y where a row is on the chip, besides `Store`.

// What the launcher packs in front of Forward.
struct QuantizedOutput {
  const float* scale;  // delayed scaling: (1,)
  float *amax, *scale_inv;  // (1,): delayed scaling accumulates amax
  u8* scales;  // of blocks, padded
};
struct ForwardQuantized : QuantizedOutput, Forward {};

// The largest magnitudes of N neighbours, in a word as they lie in memory.
template <class X, int N>
__device__ __forceinline__ u32 peak_word(const Vec<X, N>& v) {
  if constexpr (sizeof(X) * N < 4) return magnitudes<X>(*reinterpret_cast<const unsigned short*>(v.lane));
  u32 most = 0;
#pragma unroll
  for (int i = 0; i < int(sizeof(X) * N / 4); ++i)
    most = larger<X>(most, magnitudes<X>(reinterpret_cast<const u32*>(v.lane)[i]));
  return most;
}

// FP8 codes of N neighbours, each times the factor.
template <class Code, int N>
__device__ __forceinline__ Vec<u8, N> fp8_vector(const Floats<N>& v, float factor) {
  Vec<u8, N> codes;
  if constexpr (N == 1) codes.lane[0] = Code::encode_pair(v[0] * factor, 0.f);
#pragma unroll
  for (int i = 0; i + 1 < N; i += 2)
    reinterpret_cast<unsigned short&>(codes.lane[i]) = Code::encode_pair(v[i] * factor, v[i + 1] * factor);
  return codes;
}

// The scale of delayed scaling, which is given, and its amax, which grows by what is seen. `Args` has scale, amax and
// scale_inv.
struct DelayedCast {
  const float scale, amax;
  float most = 0.f;

  template <class Args>
  __device__ __forceinline__ DelayedCast(const Args& a) : scale(*a.scale), amax(__ldcg(a.amax)) {}
  template <int N>
  __device__ __forceinline__ void look(const Floats<N>& y) {
#pragma unroll
    for (int i = 0; i < N; ++i) most = max_nan(most, fabsf(y[i]));
  }
  // By all threads of the grid.
  template <class Args>
  __device__ __forceinline__ void finish(const Args& a, BlockMax<1>::Shared& shared) const {
    if (blockIdx.x == 0 && threadIdx.x == 0) *a.scale_inv = __fdiv_rn(1.f, scale);
    raise_amax(a, amax, __float_as_uint(most), shared);
  }
};

// FP8 with delayed scaling, of the float32 y.
template <class Code>
struct ToFp8 {
  using Args = ForwardQuantized;
  using Shared = BlockMax<1>::Shared;
  static constexpr bool kTakesY = true, kTogether = false;

  const Args& a;
  DelayedCast cast;

  __device__ __forceinline__ ToFp8(const Args& a) : a(a), cast(a) {}
  template <int N>
  __device__ __forceinline__ void put(const Forward&, i64 row, i64 column, const Floats<N>& y, bool) {
    cast.look(y);
    store(a.y, row * a.cols + column, fp8_vector<Code>(y, cast.scale));
  }
  __device__ __forceinline__ void finish(Shared& shared) { cast.finish(a, shared); }
};

// MXFP8: of y rounded to X, an E8M0 scale for each 32 elements, which 32/N neighbouring lanes have.
template <class Code, class X>
struct ToMxfp8 {
  using Args = ForwardQuantized;
  struct Shared {};
  static constexpr bool kTakesY = true, kTogether = true;
  static constexpr int kBlock = 32;

  const Args& a;

  __device__ __forceinline__ ToMxfp8(const Args& a) : a(a) {}
  template <int N>
  __device__ __forceinline__ void put(const Forward&, i64 row, i64 column, const Floats<N>& y, bool here) const {
    Vec<X, N> rounded;
    narrow(y, rounded);
    u32 most = peak_word(rounded);
    if constexpr (sizeof(X) == 2)
      most = max(__float_as_uint(Peaks<X>::value(most, 0)), __float_as_uint(Peaks<X>::value(most, 1)));
#pragma unroll
    for (int lanes = 1; lanes < kBlock / N; lanes *= 2) most = max(most, __shfl_xor_sync(~0u, most, lanes));
    const u32 code = e8m0_code(__uint_as_float(most) * (1.f / Code::kLargest));
    if (!here) return;
    const float factor = __uint_as_float(e8m0_factor(code) << 16);
    store(a.y, row * a.cols + column, fp8_vector<Code>(widen(rounded), factor));
    if (column % kBlock == 0) a.scales[row * round_up(a.cols / kBlock, 4) + column / kBlock] = code;
  }
  __device__ __forceinline__ void finish(Shared&) const {
    pad_scales(a.scales, a.rows, a.cols / kBlock, blockDim.x);
  }
};

// The largest magnitude of y rounded to X, as words of Peaks have it.
template <class X>
struct PeakOf {
  static constexpr bool kTakesY = true, kTogether = false;
  u32 word = 0;

  template <int N>
  __device__ __forceinline__ void put(const Forward&, i64, i64, const Floats<N>& y, bool) {
    Vec<X, N> rounded;
    narrow(y, rounded);
    word = larger<X>(word, peak_word(rounded));
  }
};
