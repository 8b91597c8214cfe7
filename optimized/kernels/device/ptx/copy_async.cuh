#pragma once
#include "device/ptx/mbarrier.cuh"

// From global to shared memory behind the thread's back: `bytes` of 16 or 4, zeros for the rest. Both addresses are
// multiples of the whole; with no bytes the source is not read.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void copy_async_4(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(bytes)
               : "memory");
}

// 16 by way of the L1, for what other warps of the SM ask for, too.
__device__ __forceinline__ void copy_async_16_by_l1(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(bytes)
               : "memory");
}

// 16 of what is read on and on: the L2 fetches 256 bytes at a time.
__device__ __forceinline__ void copy_async_16_of_stream(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(bytes)
               : "memory");
}

// What this thread has asked for since the last call becomes one group.
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most Pending of this thread's latest groups are on their way.
template <int Pending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}
