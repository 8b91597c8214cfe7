#pragma once
#include "device/ptx/mbarrier.cuh"

// Global to shared memory through the copy engine; source, destination and size are multiples of 16 bytes.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, u32 bytes, u64* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// Orders this thread's earlier accesses to shared memory before later ones of the copy engine.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
