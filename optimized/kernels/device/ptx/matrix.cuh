#pragma once
#include "device/ptx/mbarrier.cuh"

// Four 8 x 8 matrices of 16-bit elements; lane l names the row l % 8 of matrix l / 8 and holds of each matrix the
// elements 2 (l % 4) and the next one of row l / 4; of column l / 4 where they lie across.
#define TWINBENCH_LOAD_MATRICES(TRANS)                                                              \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4" TRANS ".shared.b16 {%0, %1, %2, %3}, [%4];"          \
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])                     \
               : "r"(shared_address(row))                                                           \
               : "memory")
#define TWINBENCH_STORE_MATRICES(TRANS)                                                             \
  asm volatile("stmatrix.sync.aligned.m8n8.x4" TRANS ".shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(   \
                   shared_address(row)),                                                            \
               "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])                           \
               : "memory")

template <bool Across>
__device__ __forceinline__ void load_matrices(const void* row, u32 (&pairs)[4]) {
  if constexpr (Across)
    TWINBENCH_LOAD_MATRICES(".trans");
  else
    TWINBENCH_LOAD_MATRICES("");
}

template <bool Across>
__device__ __forceinline__ void store_matrices(void* row, const u32 (&pairs)[4]) {
  if constexpr (Across)
    TWINBENCH_STORE_MATRICES(".trans");
  else
    TWINBENCH_STORE_MATRICES("");
}
