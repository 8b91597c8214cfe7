#pragma once
#include "device/vec.cuh"

// Largest magnitudes, NaN where one is, in words as the values lie in memory: one float32 or two 16-bit values a word.

// Bits of magnitudes order as the values do, NaN above all.
template <class X>
__device__ __forceinline__ u32 magnitudes(u32 word) { return word & (sizeof(X) == 4 ? 0x7FFFFFFFu : 0x7FFF7FFFu); }

template <class X>
__device__ __forceinline__ u32 larger(u32 a, u32 b) {
  if constexpr (sizeof(X) == 4) return max(a, b);
  else return __vmaxu2(a, b);
}

// Magnitude of eight places: of columns over rows, or of rows over columns.
template <class X>
struct Peaks {
  static constexpr int kPerWord = 4 / sizeof(X), kWords = 8 / kPerWord;
  u32 word[kWords] = {};

  // Each place by a vector with a value for it.
  __device__ __forceinline__ void take(const Vec<X, 8>& v) {
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      word[i] = larger<X>(word[i], magnitudes<X>(reinterpret_cast<const u32*>(v.lane)[i]));
  }
  __device__ __forceinline__ void take(int i, u32 values) { word[i] = larger<X>(word[i], magnitudes<X>(values)); }
  // All places together: in the word, or, where two values make a word, in its two halves.
  __device__ __forceinline__ u32 folded() const {
    u32 all = word[0];
#pragma unroll
    for (int i = 1; i < kWords; ++i) all = larger<X>(all, word[i]);
    return all;
  }
  // The largest of all, as bits of a float32: they order as the values do, with NaN above all.
  __device__ __forceinline__ u32 bits() const {
    const u32 all = folded();
    u32 most = 0;
#pragma unroll
    for (int half = 0; half < kPerWord; ++half) most = max(most, __float_as_uint(value(all, half)));
    return most;
  }
  // Place i is that of row i.
  static __device__ __forceinline__ Peaks of_rows(const Vec<X, 8> (&row)[8]) {
    Peaks peaks;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      u32 half[kPerWord];
#pragma unroll
      for (int h = 0; h < kPerWord; ++h) half[h] = of_row(row[i * kPerWord + h]);
      peaks.word[i] = joined(half);
    }
    return peaks;
  }
  // The same of what of_row gives for each.
  static __device__ __forceinline__ Peaks of_rows(const u32 (&row)[8]) {
    Peaks peaks;
#pragma unroll
    for (int i = 0; i < kWords; ++i) peaks.word[i] = joined(row + i * kPerWord);
    return peaks;
  }
  // A row's largest: in the word, or, where two values make a word, in its two halves.
  static __device__ __forceinline__ u32 of_row(const Vec<X, 8>& row) {
    const u32* const words = reinterpret_cast<const u32*>(row.lane);
    u32 most = magnitudes<X>(words[0]);  // not from zero: the compiler would take its larger one, too
#pragma unroll
    for (int k = 1; k < kWords; ++k) most = larger<X>(most, magnitudes<X>(words[k]));
    return most;
  }
  static __device__ __forceinline__ u32 joined(const u32* row) {
    if constexpr (kPerWord == 1) return row[0];
    else return larger<X>(__byte_perm(row[0], row[1], 0x5410), __byte_perm(row[0], row[1], 0x7632));
  }
  // Place j is that of column j.
  static __device__ __forceinline__ Peaks of_columns(const Vec<X, 8> (&row)[8]) {
    Peaks peaks;
#pragma unroll
    for (int i = 0; i < 8; ++i) peaks.take(row[i]);
    return peaks;
  }
  // With those of the lane whose number differs in the bit `mask`.
  __device__ __forceinline__ void exchange(int mask) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = larger<X>(word[i], __shfl_xor_sync(~0u, word[i], mask));
  }
  // Over the four lanes whose numbers differ in the bits High and Low: each gets the result of two places, those of
  // number 4 * (bit High is set) + 2 * (bit Low is set) and the next.
  template <int High, int Low>
  __device__ __forceinline__ float2 scatter() const {
    const bool high = threadIdx.x & High, low = threadIdx.x & Low;
    u32 half[kWords / 2], quarter[kWords / 4];
#pragma unroll
    for (int i = 0; i < kWords / 2; ++i) {
      const u32 mine = high ? word[i + kWords / 2] : word[i], others = high ? word[i] : word[i + kWords / 2];
      half[i] = larger<X>(mine, __shfl_xor_sync(~0u, others, High));
    }
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      const u32 mine = low ? half[i + kWords / 4] : half[i], others = low ? half[i] : half[i + kWords / 4];
      quarter[i] = larger<X>(mine, __shfl_xor_sync(~0u, others, Low));
    }
    return {value(quarter[0], 0), value(quarter[kWords / 4 - 1], kPerWord - 1)};
  }
  __device__ __forceinline__ float operator[](int place) const {
    return value(word[place / kPerWord], place % kPerWord);
  }

  static __device__ __forceinline__ float value(u32 word, int half) {
    if constexpr (kPerWord == 1) return __uint_as_float(word);
    else return half ? widen_pair<X>(word).y : widen_pair<X>(word).x;
  }
};

// The largest of each of K numbers over the CTA, in every thread. All threads call it, once for each `Shared`.
template <int K>
struct BlockMax {
  struct Shared { u32 warp[K][kWarp]; };

  static __device__ __forceinline__ void apply(Shared& shared, u32 (&v)[K]) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      v[k] = __reduce_max_sync(~0u, v[k]);
      if (lane == 0) shared.warp[k][warp] = v[k];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < K; ++k) v[k] = __reduce_max_sync(~0u, lane < warps ? shared.warp[k][lane] : 0);
  }
};
