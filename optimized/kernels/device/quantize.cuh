#pragma once
#include "device/fill.cuh"
#include "device/formats.cuh"
#include "device/grid.cuh"
#include "device/peak.cuh"

// Arguments of the quantizing kernels, in the order that the launcher packs them. What was not asked for is null.
struct Quantize {
  const void* x;  // (rows, cols) with a pitch
  const float* scale;  // delayed scaling: (1,)
  float *amax, *scale_inv;  // (1,): delayed scaling accumulates amax
  u8 *rowwise, *rowwise_scales;
  float* rowwise_amax;
  u8 *columnwise, *columnwise_scales;
  float* columnwise_amax;
  u32* partial;  // what the CTAs of a cooperative launch tell each other
  u64 seed, offset;
  i64 rows, cols, pitch;  // elements
  int aligned;  // runs of eight columns lie on 16 bytes
  int flat;  // rows, and their scales, follow one another without a gap
  int pow_2_scales;
  float amax_epsilon;
};

template <bool, class A, class B>
struct Either { using type = A; };
template <class A, class B>
struct Either<false, A, B> { using type = B; };
template <class A, class B>
constexpr bool kSame = false;
template <class A>
constexpr bool kSame<A, A> = true;

constexpr int kThreads = 256;
constexpr int kRun = 8;  // neighbours in a row that a thread handles together

__device__ __forceinline__ i64 round_up(i64 value, i64 unit) { return (value + unit - 1) / unit * unit; }

// Eight elements, of which `count` are there (Whole: all or none); zeros stand for the others.
template <class X, class Fill>
__device__ __forceinline__ Vec<X, kRun> load_run(const void* x, i64 element, int count, bool aligned) {
  if constexpr (Fill::kWhole) {
    uint4 units[sizeof(X) / 2] = {};  // as words: halves of them would be taken apart and put together
    if (count) {
#pragma unroll
      for (int i = 0; i < int(sizeof(X)) / 2; ++i)
        units[i] = reinterpret_cast<const uint4*>(static_cast<const X*>(x) + element)[i];
    }
    return reinterpret_cast<const Vec<X, kRun>&>(units);
  }
  Vec<X, kRun> v = {};
  if (aligned && count == kRun) return load<X, kRun>(x, element);
#pragma unroll
  for (int i = 0; i < kRun; ++i)
    if (i < count) v.lane[i] = load<X, 1>(x, element + i).lane[0];
  return v;
}

template <class Fill>
__device__ __forceinline__ void store_run(u8* out, i64 place, u64 bytes, int count) {
  if (Fill::kWhole ? count : count == kRun && place % kRun == 0) {
    *reinterpret_cast<u64*>(out + place) = bytes;
  } else if constexpr (!Fill::kWhole) {
#pragma unroll
    for (int i = 0; i < kRun; ++i)
      if (i < count) out[place + i] = bytes >> (8 * i);
  }
}

// FP8 codes of eight values, each times its factor.
template <class Code>
__device__ __forceinline__ u64 fp8_codes(const Floats<kRun>& v, const float (&factor)[kRun]) {
  u32 pair[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    pair[i] = Code::encode_pair(v[2 * i] * factor[2 * i], v[2 * i + 1] * factor[2 * i + 1]);
  return u64(pair[2] | pair[3] << 16) << 32 | (pair[0] | pair[1] << 16);
}

template <class Code>
__device__ __forceinline__ u64 fp8_codes(const Floats<kRun>& v, float factor) {
  const float factors[kRun] = {factor, factor, factor, factor, factor, factor, factor, factor};
  return fp8_codes<Code>(v, factors);
}

// The largest of each of K numbers over the grid of a cooperative launch, in every thread, by way of
// partial[gridDim * K]; or, where CTAs do not meet, of what a grid of that size has left there.
template <int K>
struct GridMax {
  struct Shared { typename BlockMax<K>::Shared before, after; };

  template <bool Meets>
  static __device__ __forceinline__ void apply(Shared& shared, u32* partial, u32 (&v)[K]) {
    if constexpr (Meets) {
      leave(shared, partial, v);
      grid_sync();
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      v[k] = 0;
      for (u32 cta = threadIdx.x; cta < gridDim.x; cta += kThreads) v[k] = max(v[k], __ldcg(partial + cta * K + k));
    }
    BlockMax<K>::apply(shared.after, v);
  }
  static __device__ __forceinline__ void leave(Shared& shared, u32* partial, u32 (&v)[K]) {
    BlockMax<K>::apply(shared.before, v);
    if (threadIdx.x == 0) {
#pragma unroll
      for (int k = 0; k < K; ++k) partial[blockIdx.x * K + k] = v[k];
    }
  }
};

// Raises the amax of delayed scaling, which was `before`, to the largest magnitude that threads have seen, `most` as
// bits. By all threads of the grid.
template <class Args>
__device__ __forceinline__ void raise_amax(const Args& a, float before, u32 most, BlockMax<1>::Shared& shared) {
  u32 bits[1] = {most};
  BlockMax<1>::apply(shared, bits);
  if (before != before) bits[0] = kNan;  // also a negative one, which the integers would put last
  if (threadIdx.x == 0 && !(__uint_as_float(bits[0]) <= before)) atomicMax(reinterpret_cast<int*>(a.amax), bits[0]);
}

// Zeros where an array of scales, `blocks` for each of `lines` and padded to multiples of Blocks and Lines, holds none.
// Called by all threads of the grid, whose CTAs have `threads`.
template <int Lines = 128, int Blocks = 4>
__device__ __forceinline__ void pad_scales(u8* scales, i64 lines, i64 blocks, int threads = kThreads) {
  constexpr u32 kCtas = 128;  // there is little to do, and many CTAs would only find out where
  if (blockIdx.x >= kCtas) return;
  const i64 pitch = round_up(blocks, Blocks), behind = pitch - blocks, below = (round_up(lines, Lines) - lines) * pitch;
  const i64 first = i64(blockIdx.x) * threads + threadIdx.x, step = i64(min(gridDim.x, kCtas)) * threads;
  for (i64 i = first; i < lines * behind; i += step) scales[i / behind * pitch + blocks + i % behind] = 0;
  for (i64 i = first; i < below; i += step) scales[lines * pitch + i] = 0;
}
