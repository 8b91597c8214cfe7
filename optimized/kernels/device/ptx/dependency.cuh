#pragma once
#include "device/base.cuh"

// Programmatic launch: a grid may be there before the one in front of it in the stream has ended.

// Waits until the grids in front have ended and what they wrote is visible. Nothing global may be touched before.
__device__ __forceinline__ void wait_for_grids_in_front() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the grid behind come, as soon as every CTA of this one has said so and there is room.
__device__ __forceinline__ void let_grid_behind_come() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
