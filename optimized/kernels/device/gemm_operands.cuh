#pragma once
#include "device/gemm_stages.cuh"
#include "device/ptx/wgmma.cuh"

// A stage of an operand: `Count` rows of A or columns of B by kDepth elements of K, swizzled by 128 bytes. It arrives
// in two halves, so that the CTAs of a cluster can load one each for both.

// Elements along K are neighbours. Half of the rows or columns each.
struct KMajor {
  static constexpr int kTrans = 0;
  static constexpr bool kFills = false;  // boxes that reach beyond the matrix
  static constexpr u64 kDescriptor = u64(1) << 62 | u64(1024 >> 4) << 32 | u64(1) << 16;
  static constexpr int kStep = 32 >> 4;  // descriptor units from one k16 to the next
  template <int Count, class Load>
  static __device__ __forceinline__ void half(int half, char* stage, int first, int k, Load load) {
    load(stage + half * Count / 2 * 128, k, first + half * Count / 2);
  }
};

// Elements along M or N are neighbours: atoms of 64 of them by 8 of K, those along K behind each other. Half of K each.
struct MnMajor {
  static constexpr int kTrans = 1;
  static constexpr bool kFills = true;
  static constexpr int kAtoms = kDepth * 128;  // bytes from 64 elements to the next 64
  static constexpr u64 kDescriptor = u64(1) << 62 | u64(1024 >> 4) << 32 | u64(kAtoms >> 4) << 16;
  static constexpr int kStep = 2048 >> 4;
  template <int Count, class Load>
  static __device__ __forceinline__ void half(int half, char* stage, int first, int k, Load load) {
    static_assert(Count % 64 == 0);
#pragma unroll
    for (int i = 0; i < Count / 64; ++i)
      load(stage + i * kAtoms + half * kAtoms / 2, first + 64 * i, k + half * kDepth / 2);
  }
};

template <class Major>
__device__ __forceinline__ u64 descriptor(const char* shared) {
  return Major::kDescriptor | (shared_address(shared) & 0x3FFFF) >> 4;
}

// One consumer's part of a tile in registers.
template <class T>
using Accumulators = float[T::kBlocks][T::kCols / 2];

template <class T>
__device__ __forceinline__ void pin(Accumulators<T>& acc) {
#pragma unroll
  for (int i = 0; i < T::kBlocks * T::kCols / 2; ++i) pin(acc[i / (T::kCols / 2)][i % (T::kCols / 2)]);
}
