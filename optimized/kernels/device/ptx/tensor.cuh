#pragma once
#include "device/ptx/mbarrier.cuh"

// What the driver encodes of a tensor and the box that moves at once.
struct alignas(64) TensorMap {
  char opaque[128];
};

__device__ __forceinline__ void prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// The box at column x of row y, to shared memory. What lies outside of the tensor arrives as zeros and is counted.
__device__ __forceinline__ void tensor_load(void* shared, const TensorMap* map, int x, int y, u64* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared_address(shared)),
      "l"(map), "r"(x), "r"(y), "r"(shared_address(barrier))
      : "memory");
}

// The same to one place in each CTA of the cluster that `ctas` has a bit for; each counts on its own barrier.
__device__ __forceinline__ void tensor_load_multicast(void* shared, const TensorMap* map, int x, int y, u64* barrier,
                                                      unsigned short ctas) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(shared)),
      "l"(map), "r"(x), "r"(y), "r"(shared_address(barrier)), "h"(ctas)
      : "memory");
}

// A box to the tensor; what lies outside of it is left out.
__device__ __forceinline__ void tensor_store(const TensorMap* map, const void* shared, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x),
               "r"(y), "r"(shared_address(shared))
               : "memory");
}

// A box added to the tensor in memory.
__device__ __forceinline__ void tensor_add(const TensorMap* map, const void* shared, int x, int y) {
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
               "r"(x), "r"(y), "r"(shared_address(shared))
               : "memory");
}

__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until at most Groups of this thread's stores have still to read shared memory.
template <int Groups>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Groups) : "memory");
}
