#pragma once
#include "device/gemm_general.cuh"
#include "device/gemm_operands.cuh"
#include "device/ptx/barrier.cuh"
#include "device/ptx/cluster.cuh"
#include "device/ptx/tensor.cuh"

// At most Rows rows of W by at most Cols rows of x, one CTA's: W's are those of the wgmma's A, x's the columns of its
// B, so that few rows of x leave no part of the tensor cores idle. The CTAs of a cluster have a part of K each; what
// they have added up they read from each other's shared memory, always in the same order. Kept in step with
// optimized/few.py and few_plan.py.

struct FewRows {
  TensorMap x, w;
  General g;
  int stages;
  int height;  // rows of W in a tile
};

template <int Rows, int Cols>
struct Few {
  static constexpr int kCols = Cols;
  static constexpr int kBlocks = 1;  // of 64 rows, in each of the warpgroups in front of the warp that loads
  static constexpr int kMultiply = Rows / 64 * kWarpgroup, kAll = kMultiply + kWarp;  // threads
  static constexpr int kCtas = Cols > 128 ? 1 : 2;  // of an SM
  static constexpr int kBlockBytes = 64 * kDepth * 2, kMaxStages = 32;
  static constexpr int kPitch = Rows + 4;  // of sums: lanes store to different banks, and load 16 bytes

  struct Stage {
    char w[Rows * kDepth * 2], x[Cols * kDepth * 2];
  };
  struct Sums {
    float of[Cols][kPitch];
  };
  struct alignas(1024) Barriers {
    u64 full[kMaxStages], empty[kMaxStages];
  };
  static_assert(sizeof(Barriers) == 1024 && sizeof(Stage) % 1024 == 0, "stages lie as the swizzle wants it");

  const int count;  // of stages
  Barriers& barriers;
  Stage* const stages;
  int stage = 0;
  u32 phase = 0;

  __device__ __forceinline__ explicit Few(int count)
      : count(count), barriers(*reinterpret_cast<Barriers*>(swizzled_shared())),
        stages(reinterpret_cast<Stage*>(swizzled_shared() + sizeof(Barriers))) {}

  __device__ __forceinline__ void advance() {
    if (++stage == count) stage = 0, phase ^= 1;
  }

  // By one thread, before all others come.
  __device__ __forceinline__ void begin() {
    for (int i = 0; i < count; ++i) {
      mbarrier_init(&barriers.full[i], 1);
      mbarrier_init(&barriers.empty[i], kMultiply / kWarp);
    }
    fence_mbarrier_init();
  }

  // By one thread: `steps` stages of K from `k` on, of the rows of W from `row` on. What the stages hold behind the
  // last row of x, or of the tile, counts for no element of D.
  __device__ __forceinline__ void load(const FewRows& p, int row, int k, int steps) {
#pragma unroll 1
    for (; steps > 0; --steps, k += kDepth, advance()) {
      u64* const full = &barriers.full[stage];
      wait(&barriers.empty[stage], phase ^ 1);
      mbarrier_arrive_expect_tx(full, (p.height + int(p.g.m)) * kDepth * 2);
      tensor_load(stages[stage].w, &p.w, k, row, full);
      tensor_load(stages[stage].x, &p.x, k, 0, full);
    }
  }

  // By the threads that multiply. The products of a stage run while the next one is awaited.
  template <class E>
  __device__ __forceinline__ void multiply(Accumulators<Few>& acc, int block, int steps) {
    u64* read = nullptr;
#pragma unroll 1
    for (int step = 0; step < steps; ++step, advance()) {
      wait(&barriers.full[stage], phase);
      const u64 a = descriptor<KMajor>(stages[stage].w + block * kBlockBytes);
      const u64 b = descriptor<KMajor>(stages[stage].x);
      pin<Few>(acc);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k)
        wgmma<0, 0>(E(), acc[0], a + k * KMajor::kStep, b + k * KMajor::kStep, step > 0 || k > 0);
      wgmma_commit();
      wgmma_wait<1>();
      if (read && threadIdx.x % kWarp == 0) mbarrier_arrive(read);
      read = &barriers.empty[stage];
    }
    wgmma_wait<0>();
    pin<Few>(acc);
  }

  // Where all of them have read all stages, which give their memory.
  __device__ __forceinline__ Sums& sums() const { return *reinterpret_cast<Sums*>(stages); }
  __device__ __forceinline__ void lay_down(const Accumulators<Few>& acc, int block, i64 rows_of_x) {
    const int lane = threadIdx.x % kWarp, low = block * 64 + threadIdx.x / kWarp % 4 * 16 + lane / 4;
    bar_sync(1, kMultiply);
#pragma unroll
    for (int j = 0; j < Cols / 8; ++j)
      if (8 * j < rows_of_x)
#pragma unroll
        for (int l = 0; l < 4; ++l) sums().of[8 * j + lane % 4 * 2 + l % 2][low + l / 2 * 8] = acc[0][4 * j + l];
  }

  // By all threads: this CTA's part of `height` columns of D from `first` on, four neighbours at a time.
  template <int Ctas, class Epilogue>
  __device__ __forceinline__ void finish(const General& g, float alpha, i64 first, int height) {
    constexpr int kAtOnce = Ctas == 2 || Ctas == 4 ? 2 : 1;
    const int units = height / 4;         // of a row
    const u32 inverse = ~0u / units + 1;  // so that i / units is __umulhi(i, inverse), as long as i is small
    if (Ctas > 1) {
      cluster_arrive();
      cluster_wait();
    } else {
      __syncthreads();
    }
    const int rank = Ctas > 1 ? cluster_rank() : 0, all = int(g.m) * units, end = all * (rank + 1) / Ctas;
    u32 from[Ctas];
#pragma unroll
    for (int i = 0; i < Ctas; ++i) from[i] = map_shared(shared_address(&sums()), i);
#pragma unroll 1
    for (int unit = all * rank / Ctas + threadIdx.x; unit < end; unit += kAtOnce * kAll) {
      float4 part[Ctas][kAtOnce];
      int row[kAtOnce], column[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int one = min(unit + j * kAll, end - 1);
        row[j] = __umulhi(one, inverse), column[j] = (one - row[j] * units) * 4;
      }
#pragma unroll
      for (int i = 0; i < Ctas; ++i)
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j)
          part[i][j] = Ctas > 1 ? load_cluster(from[i] + (row[j] * kPitch + column[j]) * 4)
                                : *reinterpret_cast<const float4*>(&sums().of[row[j]][column[j]]);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        Floats<4> sum{part[0][j].x, part[0][j].y, part[0][j].z, part[0][j].w};
#pragma unroll
        for (int i = 1; i < Ctas; ++i)
          sum[0] += part[i][j].x, sum[1] += part[i][j].y, sum[2] += part[i][j].z, sum[3] += part[i][j].w;
        if (unit + j * kAll < end) put<Epilogue>(g, alpha, sum, row[j], first + column[j]);
      }
    }
    if (Ctas > 1) {  // what others still read must stay
      __syncwarp();
      cluster_arrive_relaxed();
      cluster_wait();
    }
  }
};
