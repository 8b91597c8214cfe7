#include "device/gemm_load.cuh"
#include "device/gemm_store.cuh"
#include "device/ptx/dependency.cuh"
#include "device/ptx/registers.cuh"

// D = factor A B, or C + factor A B, of one product or two, for A (M, K) and B (K, N) of 2-byte elements E that lie in
// either order, with float32 sums and one rounding. A list made on the host says which tiles each cluster of two CTAs
// works on, in what order, so one launch takes the tiles of two products.
// Floor: the larger of 2 M N K operations and of the bytes of A, B, C and D, each moved once.

template <class FirstA, class FirstB>
struct Operands {
  using A = FirstA;
  using B = FirstB;
};

// x Wᵀ; and of backward: dy W, then dyᵀ x.
struct Forward {
  using First = Operands<KMajor, KMajor>;
  using Second = First;
  static constexpr int kProducts = 1;
};
struct Backward {
  using First = Operands<KMajor, MnMajor>;
  using Second = Operands<MnMajor, MnMajor>;
  static constexpr int kProducts = 2;
};

template <class E, class Way, class T, class Results, class Shared>
__device__ __forceinline__ void produce(const Gemm& g, Shared& s, Walk walk) {
  const int warp = __shfl_sync(~0u, threadIdx.x / kWarp, 0);  // the compiler learns that a warp agrees on it
  if (warp >= kLoaders) return;
  Loader<T, Shared> loader(g, s, warp);
  for (Item item = walk.item(); item.steps; walk.advance(1), item = walk.item()) {
    if (Way::kProducts > 1 && item.second())
      loader.template item<typename Way::Second>(item, g.products[1], g.rows[1], g.cols[1]);
    else
      loader.template item<typename Way::First>(item, g.products[0], g.rows[0], g.cols[0]);
    if (Epilogue<E, Way, T, Results, Shared>::residual_stages(item))
      loader.template residual<Results::kAcross>(item, g.products[item.second()].c);
  }
  loader.drain();
}

template <class E, class Way, class T, class Results, class Shared>
__device__ __forceinline__ void consume(const Gemm& g, Shared& s, Walk walk) {
  Epilogue<E, Way, T, Results, Shared> epilogue{g, s};
  Turn<T> turn;
  const float scale = g.scale * (g.factor ? *g.factor : 1.f);
  Place<T::kStages> place;
  if (T::kTurns > 1 && epilogue.consumer > 0) {
    place.skip(walk.item().steps);
    walk.advance(1);
  }
  epilogue.begin(walk);
  float acc[T::kBlocks][T::kCols / 2];
  for (Item item = walk.item(); item.steps; item = walk.item()) {
    Place<T::kStages> residual = place;
    residual.skip(item.steps);
    if (Way::kProducts > 1 && item.second())
      multiply<E, typename Way::Second, T>(acc, s, place, turn, item.steps, epilogue.residual_stages(item));
    else
      multiply<E, typename Way::First, T>(acc, s, place, turn, item.steps, epilogue.residual_stages(item));
    if (T::kTurns > 1) place.skip(walk.item(1).steps);
    walk.advance(T::kTurns);
    epilogue.finish(acc, scale, item, residual, walk);
  }
  if (epilogue.leads) bulk_wait_read<0>();
}

template <class E, class Way, class T, class Results>
__global__ __launch_bounds__(kGemmThreads, 1) void gemm(const __grid_constant__ Gemm g) {
  using Shared = GemmShared<T>;
  Shared& s = *reinterpret_cast<Shared*>(swizzled_shared());
  if (threadIdx.x == 0) {
    for (int i = 0; i < T::kStages; ++i) {
      mbarrier_init(&s.full[i], 1);
      mbarrier_init(&s.empty[i], kClusterCtas * T::kTogether * kWarpgroup / kWarp);
    }
    for (int i = 0; i < kConsumers * T::kSlots; ++i) mbarrier_init(&s.arrived[0][i], 1);
    fence_mbarrier_init();
  }
  __syncwarp();
  cluster_arrive_relaxed();
  cluster_wait();
  const Walk walk{g.items + blockIdx.x / kClusterCtas, g.clusters};
  if (threadIdx.x == 0) {  // the list has been there for longer than any grid in front
    const Product& first = g.products[walk.item().second()];
    prefetch_map(&first.a);
    prefetch_map(&first.b);
    prefetch_map(&first.d);
  }
  wait_for_grids_in_front();
  let_grid_behind_come();
  if (threadIdx.x < kWarpgroup) {
    give_back_registers<40>();
    produce<E, Way, T, Results>(g, s, walk);
  } else {
    take_registers<232>();
    consume<E, Way, T, Results>(g, s, walk);
  }
  __syncwarp();
  cluster_arrive_relaxed();
  cluster_wait();
}
