#include "device/gemm_few.cuh"
#include "device/ptx/dependency.cuh"

// D (m, n) = alpha x W' (+ C) for at most Cols rows of x. x is (m, k), W (n, k), of 2-byte elements E; rows of both
// begin at multiples of 16 bytes. Reads W once, n k sizeof(E) bytes, which is the floor; x, which the L2 holds, once
// for every `height` rows of W; (C once); and writes D once. There is a cluster for every `height` columns of D, so
// that the SMs have about as much to do each.
template <class E, int Rows, int Cols, class Epilogue>
__global__ __launch_bounds__(Few<Rows, Cols>::kAll, Few<Rows, Cols>::kCtas) void gemm_few(
    const __grid_constant__ FewRows p) {
  using Core = Few<Rows, Cols>;
  Core core(p.stages);
  const int warp = __shfl_sync(~0u, threadIdx.x / kWarp, 0);
  const int ctas = cluster_size(), log_ctas = __ffs(ctas) - 1, rank = cluster_rank();
  const bool loads = threadIdx.x == Core::kMultiply;
  if (loads) {
    core.begin();
    prefetch_map(&p.w);
    prefetch_map(&p.x);
  }
  __syncthreads();
  wait_for_grids_in_front();
  let_grid_behind_come();

  const int first = (blockIdx.x >> log_ctas) * p.height;
  const int all = int(p.g.k + kDepth - 1) / kDepth, step = all * rank >> log_ctas;
  const int steps = (all * (rank + 1) >> log_ctas) - step;
  if (warp < Core::kMultiply / kWarp) {
    const int block = warp / 4;  // of 64 rows
    Accumulators<Core> acc;
    core.template multiply<E>(acc, block, steps);
    core.lay_down(acc, block, p.g.m);
  } else {
    if (loads) core.load(p, first, step * kDepth, steps);
    __syncwarp();
    core.template fetch_c<Epilogue>(p.g, first, p.height, rank, log_ctas);
  }
  __syncwarp();

  const float alpha = p.g.factor ? p.g.alpha * *p.g.factor : p.g.alpha;
  switch (ctas) {
    case 1: return core.template finish<1, Epilogue>(p.g, alpha, first, p.height);
    case 2: return core.template finish<2, Epilogue>(p.g, alpha, first, p.height);
    case 4: return core.template finish<4, Epilogue>(p.g, alpha, first, p.height);
    default: return core.template finish<8, Epilogue>(p.g, alpha, first, p.height);
  }
}
