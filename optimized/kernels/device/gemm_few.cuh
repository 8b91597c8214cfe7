#pragma once
#include "device/gemm_general.cuh"
#include "device/gemm_operands.cuh"
#include "device/ptx/cluster.cuh"
#include "device/ptx/elect.cuh"
#include "device/ptx/prefetch.cuh"
#include "device/ptx/tensor.cuh"

// A tile: at most Rows rows of W by at most Cols rows of x, one CTA's. W's are those of the wgmma's A, x's the columns
// of its B, so that few rows of x leave no part of the tensor cores idle. The CTAs of a cluster have a part of K each;
// what they have added up they read from each other's shared memory, always in the same order. Kept in step with
// optimized/few.py and few_plan.py.

struct FewRows {
  TensorMap x, w;
  General g;
  int stages;
  int height, width, across;  // rows of W and of x in a tile; tiles that have the same rows of W
};

// D for `count` rows of x from `first` on.
template <class T>
__device__ __forceinline__ General rows_of(const General& g, int first, int count) {
  General part = g;
  part.m = min(i64(count), g.m - first);
  part.c = static_cast<const T*>(g.c) + first * g.c_pitch;
  part.d = static_cast<T*>(g.d) + first * g.d_pitch;
  return part;
}

// Four neighbours of a row of C and of D, those of them that exist; Whole: all, or none.
template <class T, bool Whole>
__device__ __forceinline__ Vec<T, 4> addends(const General& g, i64 row, i64 col) {
  const i64 at = row * g.c_pitch + col;
  Vec<T, 4> c;
  if constexpr (Whole) {
    if (col < g.n) c = load<T, 4>(g.c, at);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) c.lane[i] = col + i < g.n ? static_cast<const T*>(g.c)[at + i] : T(0.f);
  }
  return c;
}
template <class T, bool Whole>
__device__ __forceinline__ void put_sums(const General& g, const Floats<4>& sum, i64 row, i64 col) {
  if constexpr (Whole) {
    Vec<T, 4> d;
    narrow(sum, d);
    if (col < g.n) store(g.d, row * g.d_pitch + col, d);
  } else {
    put<Store<T>>(g, 1.f, sum, row, col);
  }
}

template <int Rows, int Cols>
struct Few {
  static constexpr int kCols = Cols;
  static constexpr int kBlocks = 1;  // of 64 rows, in each of the warpgroups in front of the warps that load
  static constexpr int kMultiply = Rows / 64 * kWarpgroup, kLoad = kLoaders * kWarp;  // threads
  static constexpr int kAll = kMultiply + kLoad;
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

  __device__ __forceinline__ void advance(int by = 1) {
    if ((stage += by) >= count) stage -= count, phase ^= 1;
  }

  // By one thread, before all others come.
  __device__ __forceinline__ void begin() {
    for (int i = 0; i < count; ++i) {
      mbarrier_init(&barriers.full[i], 1);
      mbarrier_init(&barriers.empty[i], kMultiply / kWarp);
    }
    fence_mbarrier_init();
  }

  // By warp `loader` of those that load: its part of `steps` stages of K from `k` on, of a tile at these rows of W and
  // of x. What the stages hold behind the last row of x, or of the tile, counts for no element of D.
  // Every other step, whichever stage is its: those who multiply release stages in order, so that of a free one every
  // earlier step is over. That is not so in gemm_load.cuh.
  __device__ __forceinline__ void load(const FewRows& p, int loader, int row_of_w, int row_of_x, int k, int steps) {
    const u32 bytes = (p.height + p.width) * kDepth * 2;
    advance(loader);
#pragma unroll 1
    for (int step = loader; step < steps; step += kLoaders, advance(kLoaders)) {
      u64* const full = &barriers.full[stage];
      wait(&barriers.empty[stage], phase ^ 1);
      if (!elect()) continue;
      mbarrier_arrive_expect_tx(full, bytes);
      tensor_load(stages[stage].w, &p.w, k + step * kDepth, row_of_w, full);
      tensor_load(stages[stage].x, &p.x, k + step * kDepth, row_of_x, full);
    }
  }

  // By the threads that multiply. The products of a stage run while the next one is awaited.
  template <class E>
  __device__ __forceinline__ void multiply(Accumulators<Few>& acc, int block, int steps) {
    int read = -1;  // stage whose products run
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
      if (read >= 0 && threadIdx.x % kWarp == 0) mbarrier_arrive(&barriers.empty[read]);
      read = stage;
    }
    wgmma_wait<0>();
    pin<Few>(acc);
  }

  // Behind the stages, whose memory they take.
  __device__ __forceinline__ Sums& sums() const { return *reinterpret_cast<Sums*>(stages); }
  __device__ __forceinline__ void lay_down(const Accumulators<Few>& acc, int block, i64 rows_of_x) {
    const int lane = threadIdx.x % kWarp, low = block * 64 + threadIdx.x / kWarp % 4 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < Cols / 8; ++j)
      if (8 * j < rows_of_x)
#pragma unroll
        for (int l = 0; l < 4; ++l) sums().of[8 * j + lane % 4 * 2 + l % 2][low + l / 2 * 8] = acc[0][4 * j + l];
  }

  // By the warps that load, behind the last stage, which is some way from the end: the L2 fetches this CTA's part of C.
  template <class Epilogue>
  __device__ __forceinline__ void fetch_c(const General& g, i64 first, int height, int rank, int log_ctas) const {
    if constexpr (Epilogue::kAdds) {
      using T = typename Epilogue::type;
      constexpr int kRun = 64 / sizeof(T), kRuns = Rows / kRun + 1;  // of a row, which begins anywhere
      const int top = int(g.m) * rank >> log_ctas, bottom = (int(g.m) * (rank + 1) - 1) >> log_ctas;
      const i64 last = min(first + height, g.n) - 1;
#pragma unroll 1
      for (int i = threadIdx.x - kMultiply; i < (bottom - top + 1) * kRuns; i += kLoad)
        prefetch_l2(static_cast<const T*>(g.c) + (top + i / kRuns) * g.c_pitch + min(first + i % kRuns * kRun, last));
    }
  }

  // By all threads: this CTA's part of `height` columns of D from `first` on.
  template <int Ctas, class Epilogue>
  __device__ __forceinline__ void finish(const General& g, float alpha, i64 first, int height) const {
    if (g.run >= 4 && (first + height <= g.n || g.n % 4 == 0))
      add_up<Ctas, Epilogue, true>(g, alpha, first, height);
    else
      add_up<Ctas, Epilogue, false>(g, alpha, first, height);
    if (Ctas > 1) {  // what others still read must stay
      __syncwarp();
      cluster_arrive_relaxed();
      cluster_wait();
    }
  }

 private:
  // What a thread adds up in one turn: `Count` times four neighbours.
  template <class T, int Count>
  struct Turn {
    int row[Count], column[Count];
    Vec<T, 4> c[Count];
  };

  // C is asked for a turn ahead, the first time before the other CTAs have come.
  template <int Ctas, class Epilogue, bool Whole>
  __device__ __forceinline__ void add_up(const General& g, float alpha, i64 first, int height) const {
    using T = typename Epilogue::type;
    constexpr int kCount = !Whole || Cols == 32 ? 1 : Ctas > 1 ? 8 / Ctas : 4;
    const int units = height / 4;         // of a row
    const u32 inverse = ~0u / units + 1;  // so that i / units is __umulhi(i, inverse), as long as i is small
    const int rank = Ctas > 1 ? cluster_rank() : 0, all = int(g.m) * units, end = all * (rank + 1) / Ctas;
    const auto turn_at = [&](int unit) {
      Turn<T, kCount> turn;
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const int one = min(unit + j * kAll, end - 1);
        turn.row[j] = __umulhi(one, inverse), turn.column[j] = (one - turn.row[j] * units) * 4;
        if constexpr (Epilogue::kAdds) turn.c[j] = addends<T, Whole>(g, turn.row[j], first + turn.column[j]);
      }
      return turn;
    };
    int unit = all * rank / Ctas + threadIdx.x;
    Turn<T, kCount> next = turn_at(unit);
    if (Ctas > 1) {
      cluster_arrive();
      cluster_wait();
    } else {
      __syncthreads();
    }
    u32 from[Ctas];
#pragma unroll
    for (int i = 0; i < Ctas; ++i) from[i] = map_shared(shared_address(&sums()), i);
#pragma unroll 1
    for (; unit < end; unit += kCount * kAll) {
      const Turn<T, kCount> turn = next;
      next = turn_at(unit + kCount * kAll);
      float4 part[Ctas][kCount];
#pragma unroll
      for (int i = 0; i < Ctas; ++i)
#pragma unroll
        for (int j = 0; j < kCount; ++j)
          part[i][j] = Ctas > 1 ? load_cluster(from[i] + (turn.row[j] * kPitch + turn.column[j]) * 4)
                                : *reinterpret_cast<const float4*>(&sums().of[turn.row[j]][turn.column[j]]);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        Floats<4> sum{part[0][j].x, part[0][j].y, part[0][j].z, part[0][j].w};
#pragma unroll
        for (int i = 1; i < Ctas; ++i)
          sum[0] += part[i][j].x, sum[1] += part[i][j].y, sum[2] += part[i][j].z, sum[3] += part[i][j].w;
        Floats<4> c = Floats<4>::filled(-0.f);  // a sum with -0 is the other summand
        if constexpr (Epilogue::kAdds) c = widen(turn.c[j]);
#pragma unroll
        for (int l = 0; l < 4; ++l) sum[l] = fmaf(alpha, sum[l], c[l]);
        if (unit + j * kAll < end) put_sums<T, Whole>(g, sum, turn.row[j], first + turn.column[j]);
      }
    }
  }
};
