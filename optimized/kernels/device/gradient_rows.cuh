#pragma once
#include "device/norm.cuh"
#include "device/ring.cuh"

// Where the backward kernel gets its rows from.

// A row goes from global memory to registers when its turn comes: for rows that the copy engine cannot take.
template <class Norm, class X, class Dz, class P, int N, int V, class Scope>
struct Direct {
  struct Shared {};
  static constexpr int kStride = Scope::kStep * N;
  const Backward& a;
  const int first;  // column of this thread's first vector
  i64 row = 0;
  Vec<X, N> x_[V];
  Vec<Dz, N> dz_[V];

  __device__ __forceinline__ Direct(Shared&, const Backward& a, const Scope& scope, const Span<Scope, N>& span,
                                    const Share<Scope, Ragged, V>& share)
      : a(a), first(span.first + share.first * N) {}
  // Gives the place where gamma is to be found.
  __device__ __forceinline__ const P* start(const Slots<Scope>&, const Span<Scope, N>& span) {
    return static_cast<const P*>(a.gamma) + span.first;
  }
  __device__ __forceinline__ void take(i64 row, int vectors) {
    this->row = row;
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (v < vectors) {
        x_[v] = load<X, N>(a.x, row * a.x_pitch + first + v * kStride);
        dz_[v] = load<Dz, N>(a.dz, row * a.dz_pitch + first + v * kStride);
      }
  }
  __device__ __forceinline__ Floats<N> x(int v) const { return widen(x_[v]); }
  __device__ __forceinline__ Floats<N> dz(int v) const { return widen(dz_[v]); }
  __device__ __forceinline__ Floats<N> add(int v) const {
    return load_as_floats<N>(a.add_dtype, a.add, row * a.add_pitch + first + v * kStride);
  }
  __device__ __forceinline__ void refill(const Slots<Scope>&) {}
  __device__ __forceinline__ void advance() {}
};

// Rows come through a ring in shared memory, ahead of need, those of a warp together, and are read from there once for
// the sums, once for dx.
template <class Norm, class X, class Dz, class P, int N, int V, class Scope>
struct Ringed {
  static constexpr int kSlabs = Norm::kAdds ? 3 : 2, kStride = Scope::kStep * N, kRows = Scope::kRowsPerWarp;
  static constexpr int kX = kRows * sizeof(X), kPair = kRows * (sizeof(X) + sizeof(Dz));  // bytes of a column
  struct Shared {
    typename Ring<kSlabs, kRows>::Shared ring;
    u64 gamma_full;
  };
  using Slabs = Slab[kSlabs];

  Shared& shared;
  const Backward& a;
  const bool leads;  // whether this is the first warp of its slot
  const int cols, left;  // of the slab, and the first of them
  const int first;  // element of the warp's slabs where this thread's first vector begins
  i64 ahead = 0;  // the row that a leading warp fetches next
  bool begun = false;
  Ring<kSlabs, kRows> ring;

  __device__ __forceinline__ Ringed(Shared& shared, const Backward& a, const Scope& scope, const Span<Scope, N>& span,
                                    const Share<Scope, Ragged, V>& share)
      : shared(shared), a(a), leads(agreed(scope.lane() < kWarp)), cols(span.vectors * N), left(span.first),
        first(scope.slot() % kRows * cols + share.first * N),
        ring(shared.ring, dynamic_shared() + a.stages_offset, agreed(scope.slot() / kRows), a.stages,
             kRows * a.stage_bytes) {}
  __device__ __forceinline__ void name(Slabs& slabs) const {
    const auto slab = [&](const void* p, i64 pitch, int size, int offset) {
      return Slab{static_cast<const char*>(p) + i64(left) * size, pitch * size, cols * size, offset};
    };
    slabs[0] = slab(a.x, a.x_pitch, sizeof(X), 0);
    slabs[1] = slab(a.dz, a.dz_pitch, sizeof(Dz), cols * kX);
    if constexpr (Norm::kAdds) slabs[2] = slab(a.add, a.add_pitch, a.add_dtype == DType::kF32 ? 4 : 2, cols * kPair);
  }
  // gamma and the first rows set out, those first that are needed first. Gives the place where gamma is when this
  // returns: the end of the room for its floats.
  __device__ __forceinline__ const P* start(const Slots<Scope>& slots, const Span<Scope, N>& span) {
    P* const gamma = reinterpret_cast<P*>(dynamic_shared() + cols * (sizeof(float) - sizeof(P)));
    if (agreed(threadIdx.x / kWarp) == 0 && elect()) {
      mbarrier_init(&shared.gamma_full, 1);
      fence_mbarrier_init();
      mbarrier_arrive_expect_tx(&shared.gamma_full, cols * sizeof(P));
      if (cols) bulk_load(gamma, static_cast<const P*>(a.gamma) + left, cols * sizeof(P), &shared.gamma_full);
    }
    ahead = slots.top;
    Slabs slabs;
    name(slabs);
    if (leads) ring.start(slabs, ahead, a.rows);
    __syncthreads();
    if (leads) ring.fill(slabs, ahead + slots.count, slots.count, a.rows);
    ahead += i64(slots.count) * a.stages;
    wait(&shared.gamma_full, 0);
    return gamma;
  }
  __device__ __forceinline__ void take(i64, int) { ring.wait(); }
  __device__ __forceinline__ Floats<N> x(int v) const {
    return widen(load<X, N>(ring.current(0), first + v * kStride));
  }
  __device__ __forceinline__ Floats<N> dz(int v) const {
    return widen(load<Dz, N>(ring.current(cols * kX), first + v * kStride));
  }
  __device__ __forceinline__ Floats<N> add(int v) const {
    return load_as_floats<N>(a.add_dtype, ring.current(cols * kPair), first + v * kStride);
  }
  // All threads that share a stage are past the rows before these.
  __device__ __forceinline__ void refill(const Slots<Scope>& slots) {
    if (leads && begun) {
      Slabs slabs;
      name(slabs);
      ring.refill(slabs, ahead, a.rows);
      ahead += slots.count;
    }
    begun = true;
  }
  __device__ __forceinline__ void advance() { ring.advance(); }
};
