#pragma once
#include "device/quantize.cuh"

// Eight neighbours along a row or down a column as float32, and their signs where E2M1 has them: of the first in bit 3.
struct Line {
  Floats<kRun> v;
  u32 signs;

  // From bytes that begin with a sign, those of the elements 0, 2, 4, 6 and 1, 3, 5, 7.
  static __device__ __forceinline__ u32 signs_of(u32 even, u32 odd) {
    return (even >> 4 & 0x08080808u) | (odd & 0x80808080u);
  }
  static __device__ __forceinline__ u32 signs_of(const Floats<kRun>& v) {
    const auto top = [&](int i, int j) { return __byte_perm(__float_as_uint(v[i]), __float_as_uint(v[j]), 0x0073); };
    return signs_of(__byte_perm(top(0, 2), top(4, 6), 0x5410), __byte_perm(top(1, 3), top(5, 7), 0x5410));
  }
};

template <class X>
__device__ __forceinline__ Line line_of_row(const Vec<X, kRun>& run) {
  const Floats<kRun> v = widen(run);
  if constexpr (sizeof(X) == 4) {
    return {v, Line::signs_of(v)};
  } else {
    const u32* const word = reinterpret_cast<const u32*>(run.lane);
    const u32 low = __byte_perm(word[0], word[1], 0x7351), high = __byte_perm(word[2], word[3], 0x7351);
    return {v, Line::signs_of(__byte_perm(low, high, 0x5410), __byte_perm(low, high, 0x7632))};
  }
}

// Two columns, a word a row.
template <class X>
__device__ __forceinline__ void lines_of_words(const u32 (&word)[kRun], Line (&line)[2]) {
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    const float2 pair = widen_pair<X>(word[i]);
    line[0].v[i] = pair.x, line[1].v[i] = pair.y;
  }
  const auto top = [&](int i) { return __byte_perm(word[i], word[i + 2], 0x7351); };
  const u32 even_low = top(0), even_high = top(4), odd_low = top(1), odd_high = top(5);
  line[0].signs = Line::signs_of(__byte_perm(even_low, even_high, 0x5410), __byte_perm(odd_low, odd_high, 0x5410));
  line[1].signs = Line::signs_of(__byte_perm(even_low, even_high, 0x7632), __byte_perm(odd_low, odd_high, 0x7632));
}

// Columns j and j + 1 of eight rows; j is even.
template <class X>
__device__ __forceinline__ void lines_of_columns(const Vec<X, kRun> (&row)[kRun], int j, Line (&line)[2]) {
  if constexpr (sizeof(X) == 4) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int i = 0; i < kRun; ++i) line[k].v[i] = row[i].lane[j + k];
      line[k].signs = Line::signs_of(line[k].v);
    }
  } else {
    u32 word[kRun];
#pragma unroll
    for (int i = 0; i < kRun; ++i) word[i] = reinterpret_cast<const u32*>(row[i].lane)[j / 2];
    lines_of_words<X>(word, line);
  }
}
