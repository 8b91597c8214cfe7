#pragma once
#include "device/strip.cuh"
#include "device/tile.cuh"

// The scale is given; amax grows by what is seen.
struct Delayed {
  static constexpr bool kTwice = false;
};
// The scale follows from what is seen, so that x is read twice.
struct Current {
  static constexpr bool kTwice = true;
};

// The scale of current scaling, of what has `most` as the bits of its largest magnitude. `Args` has amax_epsilon and
// pow_2_scales.
template <class Code, class Args>
__device__ __forceinline__ float current_scale(u32 most, const Args& a) {
  const float amax = max_nan(__uint_as_float(most), a.amax_epsilon);
  const float scale = amax == 0.f || !(amax <= kFloatMax) ? 1.f : fminf(__fdiv_rn(Code::kLargest, amax), kFloatMax);
  return a.pow_2_scales ? __uint_as_float(__float_as_uint(scale) & kExponent) : scale;
}

// FP8 with one scale for the tensor: q = cast(y * scale), columnwise data the transpose of the same bytes.
template <class From, class Code, class Scaling>
struct Fp8 {
  using Part = From;
  using X = typename Part::type;
  using Fill = typename Part::fill;
  static constexpr bool kTwice = Scaling::kTwice, kLooks = true;
  struct Empty {};
  struct Bytes { Turned<kEdge> turned; };
  struct Shared {
    typename GridMax<1>::Shared most;
    typename Either<Part::kColumns, Bytes, Empty>::type data;
  };

  const Quantize& a;
  Shared& shared;
  Peaks<X> peaks;
  float scale = 1.f, amax = 0.f;

  __device__ __forceinline__ Fp8(const Quantize& a, Shared& shared) : a(a), shared(shared) {
    if constexpr (!kTwice) scale = *a.scale, amax = __ldcg(a.amax);
  }
  __device__ __forceinline__ void look(const Part& part) { part.add_to(peaks); }
  __device__ __forceinline__ void settle() {
    u32 most[1] = {peaks.bits()};
    GridMax<1>::template apply<Part::kMeets>(shared.most, a.partial, most);
    scale = current_scale<Code>(most[0], a);
  }
  __device__ __forceinline__ void finish() {
    if (blockIdx.x == 0 && threadIdx.x == 0) *a.scale_inv = __fdiv_rn(1.f, scale);
    if constexpr (!kTwice) raise_amax(a, amax, peaks.bits(), shared.most.before);
  }
  __device__ __forceinline__ void encode(const Strip<X, Fill>& strip) const {
#pragma unroll
    for (int i = 0; i < Strip<X, Fill>::kRuns; ++i) {
      const Spot at = strip.template spot<kRun>(a, i);
      store_run<Fill>(a.rowwise, at.place, fp8_codes<Code>(widen(strip.run[i]), scale), at.count);
    }
  }
  __device__ __forceinline__ void encode(const Tile<X, Fill>& tile) {
    u32 low[kRun], high[kRun];  // of row i: codes of columns 0 … 3 and 4 … 7
    i64 place = tile.place(a);
#pragma unroll
    for (int i = 0; i < kRun; ++i, place += a.cols) {
      const u64 codes = fp8_codes<Code>(tile.values(i), scale);
      low[i] = codes, high[i] = codes >> 32;
      if (a.rowwise) store_run<Fill>(a.rowwise, place, codes, tile.in_row(i));
    }
    if constexpr (Part::kColumns) {
      constexpr int kStep = Turned<kEdge>::kStep;
      char* const to = shared.data.turned.find(Lattice::left(), Lattice::top());
      put_transposed(to, kStep, low);
      put_transposed(to + 4 * kStep, kStep, high);
      __syncthreads();
      shared.data.turned.flush(a.columnwise, tile.first_col, a.cols, tile.first_row, a.rows);
      __syncthreads();
    }
  }
};
