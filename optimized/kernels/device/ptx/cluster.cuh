#pragma once
#include "device/ptx/mbarrier.cuh"

__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ u32 cluster_size() {
  u32 size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

// The same without ordering what was written: for barriers whose initialisation has been fenced, or before an end.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// The address that `address`, in this CTA's shared memory, has in the CTA `rank` of the cluster.
__device__ __forceinline__ u32 map_shared(u32 address, u32 rank) {
  u32 mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// Four floats from an address that map_shared gave.
__device__ __forceinline__ float4 load_cluster(u32 address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// Stores a float in another CTA's shared memory and counts its bytes on a barrier there.
__device__ __forceinline__ void store_async(u32 address, float value, u32 barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(address),
               "f"(value), "r"(barrier)
               : "memory");
}

// Arrives at a barrier in any CTA of the cluster, by its mapped address. Orders as within a CTA: release at the scope
// of the cluster would be a fence of the whole GPU.
__device__ __forceinline__ void mbarrier_arrive_cluster(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
