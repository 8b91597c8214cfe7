#pragma once
#include "device/scope.cuh"

// Sums along the rows of a slab: a warp adds up `Own` rows of its own, each of which has kLanes neighbouring lanes,
// and CTAs tell each other theirs.

constexpr int kSlabRows = 32, kSlabCtas = 16;  // most of a cluster

__device__ __forceinline__ int slab_warp() { return threadIdx.x / kWarp; }
__device__ __forceinline__ int slab_lane() { return threadIdx.x % kWarp; }

template <int Own>
struct OwnRows {
  static constexpr int kLanes = kWarp / Own;

  static __device__ __forceinline__ int row() { return slab_lane() / kLanes; }
  // Of the lanes that have this lane's row, which this one is.
  static __device__ __forceinline__ int index() { return slab_lane() % kLanes; }
  // What the lane of index 0 has of row i.
  static __device__ __forceinline__ float of_row(float value, int i) { return __shfl_sync(~0u, value, i * kLanes); }

  // The total over all lanes of what they have of this lane's row, as it is in v[0] then.
  template <class Add, int K>
  static __device__ __forceinline__ void add_up(float (&v)[Own][K]) {
#pragma unroll
    for (int rows = Own / 2, lane = kWarp / 2; rows > 0; rows /= 2, lane /= 2)
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        float other[K];
#pragma unroll
        for (int k = 0; k < K; ++k) {
          const bool lower = !(slab_lane() & lane);
          other[k] = __shfl_xor_sync(~0u, lower ? v[rows + i][k] : v[i][k], lane);
          v[i][k] = lower ? v[i][k] : v[rows + i][k];
        }
        Add::add(v[i], other);
      }
    warp_sum<kLanes, Add>(v[0]);
  }
};

// The sum of own rows over the warps of the same number in the cluster's CTAs: each sends its own to the others' shared
// memory. A place is written again only after its owner's next contribution, which the owner sends when it has read the
// place; and since each waits for what all others send it, none leaves before it has been written to.
template <class Add, int Own>
struct SlabSums {
  using Rows = OwnRows<Own>;
  static constexpr int K = Add::kFloats, kWarps = kSlabRows / Own;
  struct Shared {
    float sums[2][kWarps][Own][kSlabCtas][K];
    u64 arrived[2][kWarps];
  };

  Shared& shared;
  u32 count = 0;

  // Before a fence and cluster_arrive_relaxed.
  __device__ __forceinline__ explicit SlabSums(Shared& shared) : shared(shared) {
    if (slab_lane() == 0) {
      mbarrier_init(&shared.arrived[0][slab_warp()], 1);
      mbarrier_init(&shared.arrived[1][slab_warp()], 1);
    }
  }
  // v is that of this lane's row, the same in each of the row's lanes.
  __device__ __forceinline__ void apply(float (&v)[K]) {
    const u32 size = cluster_size(), rank = cluster_rank();
    if (size == 1) return;
    const u32 place = count & 1, phase = count >> 1 & 1;
    ++count;
    auto& sums = shared.sums[place][slab_warp()][Rows::row()];
    u64* const arrived = &shared.arrived[place][slab_warp()];
    if (slab_lane() == 0) mbarrier_arrive_expect_tx(arrived, size * Own * sizeof(v));
    const auto each_peer = [&](auto f) {
#pragma unroll
      for (u32 peer = 0; peer < kSlabCtas; peer += Rows::kLanes)
        if (peer + Rows::index() < size) f(peer + Rows::index());
    };
    each_peer([&](u32 peer) {
#pragma unroll
      for (int k = 0; k < K; ++k)
        store_async(map_shared(shared_address(&sums[rank][k]), peer), v[k],
                    map_shared(shared_address(arrived), peer));
    });
    while (!mbarrier_try_wait_cluster(arrived, phase)) {}
#pragma unroll
    for (int k = 0; k < K; ++k) v[k] = 0.f;
    each_peer([&](u32 peer) { Add::add(v, sums[peer]); });
    warp_sum<Rows::kLanes, Add>(v);
  }
};
