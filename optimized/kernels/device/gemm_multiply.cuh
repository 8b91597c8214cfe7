#pragma once
#include "device/gemm.cuh"
#include "device/gemm_operands.cuh"
#include "device/ptx/barrier.cuh"

// Tells both CTAs that this warp has read a stage: a stage of either may receive from the other.
__device__ __forceinline__ void release(u64* empty) {
  const int lane = threadIdx.x % kWarp;
  if (lane < kClusterCtas) mbarrier_arrive_cluster(map_shared(shared_address(empty), lane));
}

// Consumers that take turns wait for theirs: a phase of a stage looks like the one after next, so nobody may wait for a
// stage before the other one has met all of his.
template <class T>
struct Turn {
  const int consumer = consumer_index();
  static constexpr int kThreads = kConsumers * kWarpgroup, kBarrier = 1 + kConsumers;
  __device__ __forceinline__ Turn() {
    if (T::kTurns > 1 && consumer > 0) bar_arrive(kBarrier, kThreads);
  }
  __device__ __forceinline__ void await() {
    if (T::kTurns > 1) bar_sync(kBarrier + consumer, kThreads);
  }
  __device__ __forceinline__ void pass_on() {
    if (T::kTurns > 1) bar_arrive(kBarrier + 1 - consumer, kThreads);
  }
};

// acc = A B over the stages of an item. The products of a stage run while the next ones are awaited. Stages of C that
// follow are met, but not released; `place` moves behind them.
template <class E, class Operands, class T, class Shared>
__device__ __forceinline__ void multiply(Accumulators<T>& acc, Shared& s, Place<T::kStages>& place, Turn<T>& turn,
                                         int steps, int residuals) {
  using A = typename Operands::A;
  using B = typename Operands::B;
  const int first_block = T::kTogether > 1 ? turn.consumer * T::kBlocks : 0;
  int read = -1;  // stage whose products run
  turn.await();
#pragma unroll 1
  for (int step = 0; step < steps; ++step, place.advance()) {
    wait(&s.full[place.stage], place.phase);
    const u64 a = descriptor<A>(s.stages[place.stage].a + first_block * (64 * kDepth * 2));
    const u64 b = descriptor<B>(s.stages[place.stage].b);
    pin<T>(acc);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k)
#pragma unroll
      for (int i = 0; i < T::kBlocks; ++i)
        wgmma<A::kTrans, B::kTrans>(E(), acc[i], a + k * A::kStep + i * (64 * kDepth * 2 >> 4), b + k * B::kStep,
                                    step > 0 || k > 0);
    wgmma_commit();
    wgmma_wait<1>();
    if (read >= 0) release(&s.empty[read]);
    read = place.stage;
  }
  for (int i = 0; i < residuals; ++i, place.advance()) wait(&s.full[place.stage], place.phase);
  turn.pass_on();
  wgmma_wait<0>();
  pin<T>(acc);
  release(&s.empty[read]);
}
