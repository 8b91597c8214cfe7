#include "device/gemm_general_mma.cuh"
#include "device/gemm_general_simt.cuh"
#include "device/ptx/dependency.cuh"

// A tile of D (m, n) = alpha * A B (+ C), for any shape, pitch and alignment. A is (m, k) or, where its elements lie
// across, (k, m); B is (n, k) or (k, n): forward, dgrad and wgrad all read their operands as they are.
// A tile that is shared has all CTAs of a cluster, whole spans of K each.
template <class Core, class Epilogue>
__device__ __forceinline__ void product(const General& g, u32 cta) {
  constexpr int kStages = Core::kStages;
  u32 tile = cta;
  if constexpr (Core::kShared) tile /= cluster_size();
  auto* const stages = reinterpret_cast<typename Core::Stage*>(dynamic_shared());
  const Corner corner(g, Core::kM, Core::kN, tile);
  const Side a = Side::of<typename Core::LiesA>(g.a, g.a_pitch, g.m, g.k, g.a_unit);
  const Side b = Side::of<typename Core::LiesB>(g.b, g.b_pitch, g.n, g.k, g.b_unit);

  Core core;
  const int span = Core::span(g.k);
  i64 ahead = 0;  // the element of K that the next load begins with
  int steps = int((g.k + Core::kDepth - 1) / Core::kDepth);
  if constexpr (Core::kShared) {
    const int share = ceil_div(ceil_div(steps, span), int(cluster_size())) * span, first = cluster_rank() * share;
    ahead = i64(first) * Core::kDepth, steps = max(0, min(share, steps - first));
  }
#pragma unroll
  for (int i = 0; i + 1 < kStages; ++i, ahead += Core::kDepth) {
    if (i < steps) core.load(stages[i], a, b, corner, ahead);
    copy_async_commit();
  }
  int full = 0, empty = kStages - 1;
#pragma unroll 1
  for (; steps > 0; core.end_span())
#pragma unroll 1
    for (const int end = max(0, steps - span); steps > end; --steps, ahead += Core::kDepth) {
      copy_async_wait<kStages - 2>();
      __syncthreads();
      if (steps >= kStages) core.load(stages[empty], a, b, corner, ahead);
      copy_async_commit();
      core.multiply(stages[full]);
      empty = full;
      full = full + 1 == kStages ? 0 : full + 1;
    }
  core.template finish<Epilogue>(g, g.factor ? g.alpha * *g.factor : g.alpha, corner);
}

// One product. Reads A and B once a tile of D that needs them, mostly from the L2, (C once,) and writes D once: at
// least (m k + n k) sizeof(T) + (1 or 2) m n sizeof(D) bytes. The floor is usually that of the arithmetic, 2 m n k.
template <class Core, class Epilogue>
__global__ __launch_bounds__(kThreads, 2) void gemm_general(const __grid_constant__ General g) {
  wait_for_grids_in_front();
  let_grid_behind_come();
  product<Core, Epilogue>(g, blockIdx.x);
}

struct Pair {
  Pointers pointers[2];
  Shape shapes[2];
};

// Two products that do not depend on each other, the tiles of the second behind those of the first, and behind CTAs
// without any that fill up a cluster where tiles of the second are shared. The same floors.
template <class Core, class Epilogue, class Core2, class Epilogue2>
__global__ __launch_bounds__(kThreads, 2) void gemm_general_pair(const __grid_constant__ Pair p) {
  wait_for_grids_in_front();
  let_grid_behind_come();
  u32 first = p.shapes[0].tiles, behind = first;
  if constexpr (Core::kShared) first = behind = first * cluster_size();
  else if constexpr (Core2::kShared) behind = (first + cluster_size() - 1) / cluster_size() * cluster_size();
  if (blockIdx.x < first) product<Core, Epilogue>({p.pointers[0], p.shapes[0]}, blockIdx.x);
  else if (blockIdx.x >= behind && (Core2::kShared || blockIdx.x - behind < p.shapes[1].tiles))
    product<Core2, Epilogue2>({p.pointers[1], p.shapes[1]}, blockIdx.x - behind);
}
