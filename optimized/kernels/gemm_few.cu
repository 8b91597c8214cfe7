#include "device/gemm_few.cuh"
#include "device/ptx/dependency.cuh"

// D (m, n) = alpha x W' (+ C) for some rows of x. x is (m, k), W (n, k), of 2-byte elements E; rows of both begin at
// multiples of 16 bytes. Reads W once, n k sizeof(E) bytes, which is the floor, where a tile has all rows of x, or else
// from the L2 for every `width` of them; x, which the L2 holds, once for every `height` rows of W; (C once); and writes
// D once. There is a cluster for every tile, so that the SMs have about as much to do each.
template <class E, int Rows, int Cols, class Epilogue>
__global__ __launch_bounds__(Few<Rows, Cols>::kAll, Few<Rows, Cols>::kCtas) void gemm_few(
    const __grid_constant__ FewRows p) {
  using Core = Few<Rows, Cols>;
  Core core(p.stages);
  const int warp = __shfl_sync(~0u, threadIdx.x / kWarp, 0);
  const int ctas = cluster_size(), log_ctas = __ffs(ctas) - 1, rank = cluster_rank();
  if (threadIdx.x == Core::kMultiply) {
    core.begin();
    prefetch_map(&p.w);
    prefetch_map(&p.x);
  }
  __syncthreads();
  wait_for_grids_in_front();
  let_grid_behind_come();

  const int tile = blockIdx.x >> log_ctas, row_of_w = tile / p.across * p.height, row_of_x = tile % p.across * p.width;
  const General g = rows_of<typename Epilogue::type>(p.g, row_of_x, p.width);
  const int all = int(g.k + kDepth - 1) / kDepth, step = all * rank >> log_ctas;
  const int steps = (all * (rank + 1) >> log_ctas) - step;
  const int loader = warp - Core::kMultiply / kWarp;
  const int block = warp / 4;  // of 64 rows
  Accumulators<Core> acc;
  if (loader < 0) {
    core.template multiply<E>(acc, block, steps);
  } else {
    core.load(p, loader, row_of_w, row_of_x, step * kDepth, steps);
    __syncwarp();
    core.template fetch_c<Epilogue>(g, row_of_w, p.height, rank, log_ctas);
  }
  __syncthreads();  // the stages have been read
  if (loader < 0) core.lay_down(acc, block, g.m);
  __syncwarp();

  const float alpha = g.factor ? g.alpha * *g.factor : g.alpha;
  switch (ctas) {
    case 1: return core.template finish<1, Epilogue>(g, alpha, row_of_w, p.height);
    case 2: return core.template finish<2, Epilogue>(g, alpha, row_of_w, p.height);
    case 4: return core.template finish<4, Epilogue>(g, alpha, row_of_w, p.height);
    default: return core.template finish<8, Epilogue>(g, alpha, row_of_w, p.height);
  }
}
