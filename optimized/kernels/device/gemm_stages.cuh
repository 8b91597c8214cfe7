#pragma once
#include "device/wait.cuh"

// Stages of two operands in shared memory, for those who fill them and those who multiply.

constexpr int kWarpgroup = 128;
constexpr int kDepth = 64;  // elements of K in a stage: 128 bytes

// Warps that fill the stages between them: one alone takes longer to issue the loads of a small stage than they take to
// arrive. Each walks in step and a thread that it elects issues, because what the copy engine is told then stays in
// uniform registers, to which a thread on its own would bring it for every load.
constexpr int kLoaders = 2;

// Where a walk round the stages stands.
template <int Stages>
struct Place {
  int stage = 0;
  u32 phase = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == Stages) stage = 0, phase ^= 1;
  }
  __device__ __forceinline__ void skip(int steps) {
    stage += steps;
    phase ^= stage / Stages & 1;
    stage %= Stages;
  }
};

__device__ __forceinline__ char* swizzled_shared() {
  extern __shared__ __align__(1024) char swizzled[];
  return swizzled;
}
