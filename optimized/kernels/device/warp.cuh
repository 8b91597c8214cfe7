#pragma once
#include "device/base.cuh"

// By a warp, all of it here: what its first thread gives. The compiler learns that they agree: loops and branches by it
// do not part them then, and uniform registers may hold it.
__device__ __forceinline__ int agreed(int value) { return __shfl_sync(~0u, value, 0); }
