#include "device/columns.cuh"
#include "device/norm.cuh"
#include "device/ring.cuh"

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
                                    const Share<Scope, V>& share)
      : a(a), first(span.first + share.first * N) {}
  __device__ __forceinline__ void start(const Slots<Scope>&, const Span<Scope, N>& span) {
    for (int c = threadIdx.x; c < span.vectors * N; c += blockDim.x)
      reinterpret_cast<P*>(dynamic_shared())[c] = static_cast<const P*>(a.gamma)[span.first + c];
    __syncthreads();
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

// Rows come through a ring in shared memory, several ahead, and are read from there once for the sums, once for dx.
template <class Norm, class X, class Dz, class P, int N, int V, class Scope>
struct Ringed {
  using Rows = Ring<Norm::kAdds ? 3 : 2>;
  struct Shared {
    typename Rows::Shared ring;
    u64 gamma_full;
  };

  Shared& shared;
  const Backward& a;
  const bool leader;
  static constexpr int kStride = Scope::kStep * N;
  static constexpr int kPair = sizeof(X) + sizeof(Dz);
  const int first, cols;  // element of the slab where this thread's first vector begins; columns of the slab
  i64 row = 0;
  Rows ring;

  __device__ __forceinline__ Ringed(Shared& shared, const Backward& a, const Scope& scope, const Span<Scope, N>& span,
                                    const Share<Scope, V>& share)
      : shared(shared), a(a), leader(scope.lane() == 0), first(share.first * N), cols(span.vectors * N),
        ring(shared.ring, dynamic_shared() + a.stages_offset, scope.slot(), a.stages, a.stage_bytes) {
    const auto slab = [&](const void* p, i64 pitch, int size, int offset) {
      return Slab{static_cast<const char*>(p) + i64(span.first) * size, pitch * size, cols * size, offset};
    };
    if (threadIdx.x == 0) {
      mbarrier_init(&shared.gamma_full, 1);
      shared.ring.slabs[0] = slab(a.x, a.x_pitch, sizeof(X), 0);
      shared.ring.slabs[1] = slab(a.dz, a.dz_pitch, sizeof(Dz), cols * sizeof(X));
      if constexpr (Norm::kAdds)
        shared.ring.slabs[2] = slab(a.add, a.add_pitch, a.add_dtype == DType::kF32 ? 4 : 2, cols * kPair);
    }
    ring.init(leader);
  }
  __device__ __forceinline__ void start(const Slots<Scope>& slots, const Span<Scope, N>& span) {
    __syncthreads();
    if (leader) ring.start(slots.first, slots.count, a.rows);
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect_tx(&shared.gamma_full, cols * sizeof(P));
      if (cols) bulk_load(dynamic_shared(), static_cast<const P*>(a.gamma) + span.first, cols * sizeof(P), &shared.gamma_full);
    }
    while (!mbarrier_try_wait(&shared.gamma_full, 0)) {}
  }
  __device__ __forceinline__ void take(i64 row, int) {
    this->row = row;
    ring.wait();
  }
  __device__ __forceinline__ Floats<N> x(int v) const { return widen(load<X, N>(ring.current(0), first + v * kStride)); }
  __device__ __forceinline__ Floats<N> dz(int v) const {
    return widen(load<Dz, N>(ring.current(cols * sizeof(X)), first + v * kStride));
  }
  __device__ __forceinline__ Floats<N> add(int v) const {
    return load_as_floats<N>(a.add_dtype, ring.current(cols * kPair), first + v * kStride);
  }
  __device__ __forceinline__ void refill(const Slots<Scope>& slots) {
    if (leader) ring.refill(row, slots.count, a.rows);
  }
  __device__ __forceinline__ void advance() { ring.advance(); }
};

// With x^ = (x - mu) * rsigma (mu = 0 for RMSNorm) and w = dz * g, along rows:
//   dx = rsigma * (w - mean(w) - x^ * mean(w * x^)) + add, without mean(w) for RMSNorm
//   dgamma = sum over rows of dz * x^      dbeta = sum over rows of dz
//   x, dz, add (rows, cols) with pitches   mu, rsigma (rows,) f32   dx (rows, cols)   gamma, dgamma, dbeta (cols,)
// x, dz and add are read once, dx is written once: the floor. Partial sums of dgamma and dbeta stay in registers and
// cost 8 bytes a column and CTA on top, in the L2.
template <class Norm, class X, class Dz, class P, int N, int V, class Scope,
          template <class, class, class, class, int, int, class> class Source, int Threads>
__global__ __launch_bounds__(Threads, 1) void norm_backward(const __grid_constant__ Backward a) {
  constexpr int kSums = Norm::kCentered ? 2 : 1;
  using Rows = Source<Norm, X, Dz, P, N, V, Scope>;
  __shared__ struct { typename Scope::Shared scope; typename Rows::Shared rows; } shared;
  Scope scope(shared.scope, a.row_threads);
  const Span<Scope, N> span(a.cols);
  const Slots<Scope> slots(scope);
  const Share<Scope, V> share(scope, span.vectors);
  Rows rows(shared.rows, a, scope, span, share);
  rows.start(slots, span);
  scope.open();

  const auto gain = [&](int v) {
    Floats<N> g = widen(load<P, N>(dynamic_shared(), (share.first + v * share.kStep) * N));
#pragma unroll
    for (int i = 0; i < N; ++i) g[i] += a.gamma_offset;
    return g;
  };
  Floats<N> dgamma[V] = {}, dbeta[V] = {};
  const auto statistic = [&](const float* p, i64 row) { return row < a.rows ? p[row] : 0.f; };
  float next_r = statistic(a.rsigma, slots.first), next_mu = Norm::kCentered ? statistic(a.mu, slots.first) : 0.f;
  const int neighbour = Scope::kRowsPerWarp == 1 ? 0 : scope.slot() % Scope::kRowsPerWarp;
  for (i64 row = slots.first; row - neighbour < a.rows; row += slots.count) {
    const int vectors = Scope::kRowsPerWarp == 1 || row < a.rows ? share.count : 0;
    const float r = next_r, mu = next_mu;
    next_r = statistic(a.rsigma, row + slots.count);
    if (Norm::kCentered) next_mu = statistic(a.mu, row + slots.count);
    rows.take(row, vectors);

    float sums[kSums] = {};
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (v < vectors) {
        const Floats<N> x = rows.x(v), dz = rows.dz(v), g = gain(v);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float w = dz[i] * g[i];
          sums[0] = fmaf(w, (x[i] - mu) * r, sums[0]);
          if (Norm::kCentered) sums[kSums - 1] += w;
        }
      }
    scope.sum(sums);
    rows.refill(slots);
    const float scale = r * a.inverse_cols, projection = scale * sums[0];
    const float mean = Norm::kCentered ? scale * sums[kSums - 1] : 0.f;  // both times rsigma already

#pragma unroll
    for (int v = 0; v < V; ++v)
      if (v < vectors) {
        const Floats<N> x = rows.x(v), dz = rows.dz(v), g = gain(v);
        Floats<N> dx;
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float normal = (x[i] - mu) * r;
          dx[i] = fmaf(-normal, projection, fmaf(dz[i] * g[i], r, -mean));
          dgamma[v][i] = fmaf(dz[i], normal, dgamma[v][i]);
          if (Norm::kCentered) dbeta[v][i] += dz[i];
        }
        if constexpr (Norm::kAdds) {
          const Floats<N> add = rows.add(v);
#pragma unroll
          for (int i = 0; i < N; ++i) dx[i] += add[i];
        }
        Vec<X, N> out;
        narrow(dx, out);
        store(a.dx, row * a.cols + span.first + (share.first + v * share.kStep) * N, out);
      }
    rows.advance();
  }

  // The stages are free now: they take the sums of each slot, dgamma and dbeta one behind the other.
  const int in_cta = blockDim.x / scope.size(), ctas = slots.count / in_cta, cta = slots.first / in_cta;
  const int width = span.vectors * N;
  float* const area = reinterpret_cast<float*>(dynamic_shared() + a.stages_offset);
  __syncthreads();
#pragma unroll
  for (int v = 0; v < V; ++v)
    if (v < share.count) {
      const int vector = share.first + v * share.kStep;
      Planes<N>::write(area + scope.slot() * width, width, vector, dgamma[v]);
      if (Norm::kCentered) Planes<N>::write(area + (in_cta + scope.slot()) * width, width, vector, dbeta[v]);
    }
  __syncthreads();
#pragma unroll 1
  for (int sum = 0; sum < kSums; ++sum)
    sum_slots<N>(area + sum * in_cta * width, a.partial + (i64(cta) * kSums + sum) * a.cols + span.first, in_cta, width);
  scope.close();
  grid_sync();
  sum_partials(a.partial, ctas, kSums * a.cols, kSums * a.cols, [&](int c, float sum) {
    static_cast<P*>(c < a.cols ? a.dgamma : a.dbeta)[c < a.cols ? c : c - a.cols] = P(sum);
  });
}
