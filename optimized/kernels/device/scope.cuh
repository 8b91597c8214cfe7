#pragma once
#include "device/base.cuh"
#include "device/ptx/barrier.cuh"
#include "device/ptx/cluster.cuh"
#include "device/warp.cuh"

// Who shares a row, and how they add up: `Lanes` of a warp, a `Group` of warps, a `Block`, a `Cluster` of CTAs. `sum`
// leaves the total of K values, as `Add` adds them, in every thread of the row, added in an order that depends on the
// geometry alone. It is `send`, behind which the CTA's threads of the row are all there, and `receive`. `open` comes
// before the first sum, `close` or a barrier of the grid after the last.

// Each value by itself.
struct Each {
  static constexpr int kFloats = 1;
  template <int K>
  static __device__ __forceinline__ void add(float (&v)[K], const float (&other)[K]) {
#pragma unroll
    for (int k = 0; k < K; ++k) v[k] += other[k];
  }
  // One more value x, as term(x, what there is).
  template <class Term>
  static __device__ __forceinline__ void take(float (&v)[1], Term term, float x) { v[0] = term(x, v[0]); }
  // v = the total of `quads` fours; part(k, q): four of value k.
  template <int K, class Part>
  static __device__ __forceinline__ void add_up(float (&v)[K], int quads, Part part) {
    constexpr int kAhead = K > 1 ? 1 : 0, kAtOnce = 4 - kAhead;  // of the loop: sums of two fill many registers there
    const auto sum_of = [](const float4& p) { return (p.x + p.y) + (p.z + p.w); };
#pragma unroll
    for (int k = 0; k < K; ++k) v[k] = kAhead ? sum_of(part(k, 0)) : 0.f;
#pragma unroll 1
    for (int first = kAhead; first < quads; first += kAtOnce) {
      float4 p[kAtOnce][K] = {};
#pragma unroll
      for (int q = 0; q < kAtOnce; ++q)
#pragma unroll
        for (int k = 0; k < K; ++k)
          if (first + q < quads) p[q][k] = part(k, first + q);
#pragma unroll
      for (int q = 0; q < kAtOnce; ++q)
#pragma unroll
        for (int k = 0; k < K; ++k) v[k] += sum_of(p[q][k]);
    }
  }
  static __device__ __forceinline__ float total(const float (&v)[1]) { return v[0]; }
};

// One value, carried in two float32 to nearly twice the digits: the sum rounded, and what that lost.
struct Twofold {
  static constexpr int kFloats = 2;
  static __device__ __forceinline__ void add(float (&v)[2], const float (&other)[2]) {
    const float sum = v[0] + other[0], part = sum - v[0];
    v[1] = (v[1] + other[1]) + ((v[0] - (sum - part)) + (other[0] - part));
    v[0] = sum;
  }
  template <class Term>
  static __device__ __forceinline__ void take(float (&v)[2], Term term, float x) { add(v, {term(x, 0.f), 0.f}); }
  template <class Part>
  static __device__ __forceinline__ void add_up(float (&v)[2], int quads, Part part) {
    v[0] = v[1] = 0.f;
    for (int q = 0; q < quads; ++q) {
      const float4 sum = part(0, q), lost = part(1, q);
      add(v, {sum.x, lost.x});
      add(v, {sum.y, lost.y});
      add(v, {sum.z, lost.z});
      add(v, {sum.w, lost.w});
    }
  }
  static __device__ __forceinline__ float total(const float (&v)[2]) {
    return isnan(v[1]) ? v[0] : v[0] + v[1];  // what an infinite sum lost is no number
  }
};

template <int Width, class Add, int K>
__device__ __forceinline__ void warp_sum(float (&v)[K]) {
#pragma unroll
  for (int lane = Width / 2; lane > 0; lane /= 2) {
    float other[K];
#pragma unroll
    for (int k = 0; k < K; ++k) other[k] = __shfl_xor_sync(~0u, v[k], lane);
    Add::add(v, other);
  }
}

// T lanes of a warp own a row: no shared memory, no barrier.
template <int T>
struct Lanes {
  static constexpr int kRowsPerWarp = kWarp / T;
  static constexpr int kStep = T;
  static constexpr bool kCluster = false;
  static constexpr int warps(int) { return 1; }  // of a row, at most
  struct Shared {};

  const int slot_;

  __device__ __forceinline__ Lanes(Shared&, int)
      : slot_(T == kWarp ? agreed(threadIdx.x / T) : int(threadIdx.x / T)) {}
  __device__ __forceinline__ int size() const { return T; }
  __device__ __forceinline__ int lane() const { return threadIdx.x % T; }
  __device__ __forceinline__ int slot() const { return slot_; }
  __device__ __forceinline__ void open() const {}
  __device__ __forceinline__ void close() const {}

  template <class Add = Each, int K>
  __device__ __forceinline__ void sum(float (&v)[K]) {
    warp_sum<T, Add>(v);
    __syncwarp();
  }
  template <int K>
  __device__ __forceinline__ void send(float (&v)[K]) { sum(v); }
  template <int K>
  __device__ __forceinline__ void receive(float (&)[K]) const {}
};

// A multiple of 32 threads owns a row. One barrier per sum: partial sums alternate between two places.
struct Group {
  static constexpr int kRowsPerWarp = 1;
  static constexpr int kStep = kWarp;
  static constexpr bool kCluster = false;
  static constexpr int kSums = 2;
  static constexpr int kQuads = 24;  // 32 warps in up to 15 groups, each group's warps rounded up to fours
  static constexpr int warps(int threads) { return threads / kWarp; }
  struct Shared { float4 partial[2][kSums][kQuads]; };

  Shared& shared;
  const int threads, slot_, quads;
  int parity = 0;

  __device__ __forceinline__ Group(Shared& s, int threads) : Group(s, threads, agreed(threadIdx.x / threads)) {}
  __device__ __forceinline__ Group(Shared& s, int threads, int slot)
      : shared(s), threads(threads), slot_(slot), quads(ceil_div(threads / kWarp, 4)) {}
  __device__ __forceinline__ int size() const { return threads; }
  __device__ __forceinline__ int lane() const { return threadIdx.x - slot_ * threads; }
  __device__ __forceinline__ int slot() const { return slot_; }
  __device__ __forceinline__ void open() const {}
  __device__ __forceinline__ void close() const {}

  template <class Add = Each, int K>
  __device__ __forceinline__ void sum(float (&v)[K]) {
    static_assert(K <= kSums);
    const int first = slot() * quads, warp = lane() / kWarp, warps = threads / kWarp;
    warp_sum<kWarp, Add>(v);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      float* const partial = &shared.partial[parity][k][first].x;
      if (threadIdx.x % kWarp == 0) partial[warp] = v[k];
      if (warp == warps - 1 && threadIdx.x % kWarp >= warps && threadIdx.x % kWarp < 4 * quads)
        partial[threadIdx.x % kWarp] = 0.f;  // what is left of the last four
    }
    bar_sync(1 + slot(), threads);
    Add::add_up(v, quads, [&](int k, int q) { return shared.partial[parity][k][first + q]; });
    parity ^= 1;
  }
  template <int K>
  __device__ __forceinline__ void send(float (&v)[K]) { sum(v); }
  template <int K>
  __device__ __forceinline__ void receive(float (&)[K]) const {}
  // Two values of each warp, which all its lanes have, in the place of a sum of two; at the same price.
  __device__ __forceinline__ const float2* exchange(float2 pair) {
    float2* const pairs = reinterpret_cast<float2*>(shared.partial[parity]) + slot() * quads * 4;
    if (threadIdx.x % kWarp == 0) pairs[lane() / kWarp] = pair;
    bar_sync(1 + slot(), threads);
    parity ^= 1;
    return pairs;
  }
};

// All threads of the CTA own a row.
struct Block : Group {
  __device__ __forceinline__ Block(Shared& s, int) : Group(s, blockDim.x, 0) {}
  __device__ __forceinline__ int lane() const { return threadIdx.x; }
  __device__ __forceinline__ int slot() const { return 0; }
};

// All threads of up to 8 CTAs own a row. Each CTA sends its sum to the others' shared memory; a place is written
// again only after its owner's next contribution, which the owner sends when it has read the place.
struct Cluster : Block {
  static constexpr bool kCluster = true;
  static constexpr int kCtas = 8;
  struct Shared {
    Group::Shared group;
    float sums[2][kSums][kCtas];
    u64 arrived[2];
  };

  Shared& shared;
  u32 count = 0;
  bool opened = false;

  __device__ __forceinline__ Cluster(Shared& s, int threads) : Block(s.group, threads), shared(s) {
    if (threadIdx.x == 0) {
      mbarrier_init(&shared.arrived[0], 1);
      mbarrier_init(&shared.arrived[1], 1);
      fence_mbarrier_init();
    }
    cluster_arrive();
  }
  // All CTAs are there and ready to be written to. Needed before the first sum; the wait hides behind loads.
  __device__ __forceinline__ void open() {
    if (!opened) cluster_wait();
    opened = true;
  }
  // No CTA may leave while another can still write to it.
  __device__ __forceinline__ void close() {
    open();
    cluster_arrive();
    cluster_wait();
  }

  template <class Add = Each, int K>
  __device__ __forceinline__ void sum(float (&v)[K]) {
    send<Add>(v);
    receive<Add>(v);
  }
  template <class Add = Each, int K>
  __device__ __forceinline__ void send(float (&v)[K]) {
    Group::sum<Add>(v);
    const u32 place = count & 1, size = cluster_size(), rank = cluster_rank();
    u64* const arrived = &shared.arrived[place];
    if (threadIdx.x == 0) mbarrier_arrive_expect_tx(arrived, size * K * sizeof(float));
    if (threadIdx.x < size) {
#pragma unroll
      for (int k = 0; k < K; ++k)
        store_async(map_shared(shared_address(&shared.sums[place][k][rank]), threadIdx.x), v[k],
                    map_shared(shared_address(arrived), threadIdx.x));
    }
  }
  template <class Add = Each, int K>
  __device__ __forceinline__ void receive(float (&v)[K]) {
    const u32 place = count & 1, phase = count >> 1 & 1;
    ++count;
    while (!mbarrier_try_wait_cluster(&shared.arrived[place], phase)) {}
#pragma unroll
    for (float& value : v) value = 0.f;
    for (u32 r = 0, size = cluster_size(); r < size; ++r) {
      float of[K];
#pragma unroll
      for (int k = 0; k < K; ++k) of[k] = shared.sums[place][k][r];
      Add::add(v, of);
    }
  }
};
