#include "device/gemm_skinny.cuh"
#include "device/ptx/dependency.cuh"

// D (m, n) = alpha x W' (+ C) for few rows of x: at most 8 Blocks of them. x is (m, k), W (n, k); rows of both begin at
// multiples of 16 bytes. Reads W once, n k sizeof(T) bytes, which is the floor; x, which the L2 holds, once a CTA, (C
// once), and writes D once.
template <class T, int Blocks, class Epilogue>
__global__ __launch_bounds__(kThreads, Skinny<T, Blocks>::kCtas) void gemm_skinny(const __grid_constant__ General p) {
  using Core = Skinny<T, Blocks>;
  constexpr int kStages = Core::kStages;
  wait_for_grids_in_front();
  let_grid_behind_come();
  auto* const stages = reinterpret_cast<typename Core::Stage*>(dynamic_shared());
  const i64 first = i64(blockIdx.x) * Core::kHigh;

  Core core(p, first);
#pragma unroll
  for (int i = 0; i + 1 < kStages; ++i) {
    core.load(stages[i]);
    copy_async_commit();
  }
  int full = 0, empty = kStages - 1;
#pragma unroll 1
  for (i64 k = 0; k < p.k; k += Core::kDepth) {
    copy_async_wait<kStages - 2>();
    core.load(stages[empty]);
    copy_async_commit();
    core.multiply(stages[full]);
    empty = full;
    full = full + 1 == kStages ? 0 : full + 1;
  }
  copy_async_wait<0>();
  __syncthreads();
  core.template finish<Epilogue>(p, p.factor ? p.alpha * *p.factor : p.alpha, first,
                                 *reinterpret_cast<typename Core::Sums*>(dynamic_shared()));
}
