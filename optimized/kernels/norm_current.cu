#include "device/norm_output.cuh"
#include "device/ptx/dependency.cuh"
#include "device/quantize_fp8.cuh"

// What the launcher packs around Forward.
struct CurrentPointers {
  float* scale_inv;  // (1,)
  u32* partial;  // what the CTAs tell each other
};
struct CurrentScalars {
  int pow_2_scales;
  float amax_epsilon;
  int kept;  // rows of a slot in dynamic shared memory
};
struct ForwardCurrent : CurrentPointers, Forward, CurrentScalars {};

// Casts y, rounded to X, with one scale.
template <class Code, class X>
struct CastBy {
  const float scale;

  template <int N>
  __device__ __forceinline__ void put(const Forward& a, i64 row, i64 column, const Floats<N>& y, bool) const {
    Vec<X, N> rounded;
    narrow(y, rounded);
    store(a.y, row * a.cols + column, fp8_vector<Code>(widen(rounded), scale));
  }
};

// y = norm(x) as in norm_forward.cu, to FP8 with current scaling, rowwise, in one cooperative launch: the statistics of
// every row and the amax of y; then, when all CTAs are that far, each CTA's rows once more, the last first, the first
// ones from shared memory as far as they fit there.
// Bytes an element, for x of 2 bytes, which are the floor of this function: 5; 3 where x stays on the chip.
// One CTA an SM: few wait for one another, and for the slowest of them.
template <class Norm, class X, class Gamma, int N, int V, class Scope, class Fill, int RowThreads, int Threads,
          class Code>
__global__ __launch_bounds__(Threads, 1) void norm_current(const __grid_constant__ ForwardCurrent a) {
  __shared__ typename Scope::Shared shared;
  __shared__ BlockMax<1>::Shared before, after;
  Scope scope(shared, a.row_threads);
  constexpr bool kWidened = Fill::kWhole && N * V <= 32 && Threads <= 768;  // or registers do not hold that
  using Rows = HeldRows<Norm, X, Gamma, N, V, Scope, Fill, RowThreads, kWidened, SpreadSlots<Scope>>;
  const Rows rows(scope, a.cols);
  wait_for_grids_in_front();
  let_grid_behind_come();

  const KeptRows<X, N, V> kept{a.kept};
  PeakOf<X> peak;
  rows.walk(a, scope, peak, kept);
  Peaks<X> peaks;
  peaks.word[0] = peak.word;
  u32 most[1] = {peaks.bits()};
  BlockMax<1>::apply(before, most);
  if (threadIdx.x == 0) a.partial[blockIdx.x] = most[0];
  grid_sync();
  most[0] = 0;
  for (u32 cta = threadIdx.x; cta < gridDim.x; cta += blockDim.x) most[0] = max(most[0], __ldcg(a.partial + cta));
  BlockMax<1>::apply(after, most);

  CastBy<Code, X> cast{current_scale<Code>(most[0], a)};
  rows.walk_back(a, cast, kept);
  if (blockIdx.x == 0 && threadIdx.x == 0) *a.scale_inv = __fdiv_rn(1.f, cast.scale);
}
