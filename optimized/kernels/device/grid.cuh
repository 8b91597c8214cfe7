#pragma once
#include "device/ptx/grid.cuh"

// Every thread of a cooperative launch waits for all others. The top bit of the word flips each time that all CTAs
// have arrived, so the word needs no reset; CTA 0 adds what the others leave to the flip.
__device__ __forceinline__ void grid_sync() {
  __syncthreads();
  if (threadIdx.x == 0) {
    constexpr u32 kFlip = 0x80000000u;
    u32* const word = grid_barrier_word();
    const u32 old = atomic_add_release(word, blockIdx.x == 0 ? kFlip - (gridDim.x - 1) : 1);
    while (((old ^ load_acquire(word)) & kFlip) == 0) {}
  }
  __syncthreads();
}
