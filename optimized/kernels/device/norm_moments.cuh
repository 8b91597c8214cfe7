#pragma once
#include "device/norm.cuh"

// Mean of a row of 16-bit elements and sum of squares about it, with one barrier: each warp (of `Lanes`: all that share
// the row) takes the mean of its own elements and the squares about that, then warps tell each other. Nothing as large
// as the squares is taken from them again; and equal elements have their value as mean, and no squares, to the last
// bit: what up to 4,096 of them add up to is exact.

struct Moments {
  float mean, square;
  const float2* parts;  // of each warp, where more than one share the row: sum times kShrink, squares about its mean
};

// What elements are multiplied by where they are added up: 4,096 of any size then have a finite sum.
template <class X>
constexpr float kShrink = 1.f;
template <>
constexpr float kShrink<bf16> = 1.f / 4096;

// How many elements there are, 0 to 4,096, and the inverse of that, over kShrink.
struct Size {
  float elements, inverse;
};
template <class X>
__device__ __forceinline__ Size size_of(int elements) {
  return {float(elements), __frcp_rn(kShrink<X> * max(1, elements))};
}

// The mean of elements whose sum, times kShrink, is `sum`, and how much more than that many means they are. `Even`:
// a quotient needs no rounding.
template <class X, bool Even>
struct Center {
  static constexpr float kLargest = 0x1.fffffep127f;
  float mean, rest = 0.f;

  __device__ __forceinline__ Center(float sum, Size size) : mean(sum * size.inverse) {
    if constexpr (!Even) {
      const float n = kShrink<X> * size.elements;
      mean = fmaf(fminf(fmaf(-mean, n, sum), kLargest), size.inverse, mean);  // an infinite mean stays
      rest = fmaf(-mean, n, sum) * (1.f / kShrink<X>);
    }
  }
  // The rest, multiplied: known to be nothing where it is.
  __device__ __forceinline__ float left(float times) const { return Even ? 0.f : times * rest; }
};

// What each of up to `Warps` warps has of a row: runs of `Run` elements, the last shorter unless it is `Whole`;
template <class X, class Fill, int Run, int Warps>
struct Runs {
  static constexpr int kWarps = Warps;
  static constexpr bool kEven = Fill::kWhole && (Run & (Run - 1)) == 0;
  const int cols;

  __device__ __forceinline__ Size of(int warp) const {
    constexpr float kInverse = 1.f / (kShrink<X> * Run);
    if constexpr (Fill::kWhole) return {warp * Run < cols ? float(Run) : 0.f, kInverse};
    return size_of<X>(max(0, min(Run, cols - warp * Run)));
  }
};
// every so many runs one, the last cut short.
template <class X, int Run, int Warps>
struct Turns {
  static constexpr int kWarps = Warps;
  static constexpr bool kEven = false;
  const int cols;

  __device__ __forceinline__ Size of(int warp) const {
    const u32 turns = u32(cols) / (Run * Warps), rest = u32(cols) % (Run * Warps);
    return size_of<X>(turns * Run + max(0, min(Run, int(rest) - warp * Run)));
  }
};

// Of a row what its warps have found, put together by each of them; a lane takes that of the warp of its number.
template <class X, class Sizes>
__device__ __forceinline__ Moments merged(const float2* parts, Size size, float inverse_cols) {
  static_assert(Sizes::kWarps <= kWarp && (Sizes::kWarps & (Sizes::kWarps - 1)) == 0, "lanes add up in pairs");
  float2 part = {};
  if (size.elements > 0.f) part = parts[threadIdx.x % Sizes::kWarps];
  const Center<X, Sizes::kEven> center(part.x, size);
  const float anchor = __shfl_sync(~0u, center.mean, 0);
  float more[1] = {fmaf(size.elements * inverse_cols, center.mean - anchor, center.left(inverse_cols))};
  warp_sum<Sizes::kWarps, Each>(more);
  const float mean = anchor + more[0], off = center.mean - mean;
  float squares[1] = {fmaf(off, fmaf(size.elements, off, center.left(2.f)), part.y)};
  warp_sum<Sizes::kWarps, Each>(squares);
  return {mean, squares[0], parts};
}

// sum_of(lanes, term): sum over what a warp has of term(element, sum), in each of its lanes. Before the second, of
// squares about the warp's mean, fill(mean).
template <class X, class Sizes, class SumOf, class Fill>
__device__ __forceinline__ Moments moments_of(Group& scope, const Sizes& sizes, float inverse_cols, SumOf sum_of,
                                              Fill fill) {
  Lanes<kWarp>::Shared none;
  Lanes<kWarp> lanes(none, 0);
  const int warp = scope.lane() / kWarp;
  const Size size = sizes.of(threadIdx.x % Sizes::kWarps);
  Size own = size;
  if constexpr (!Sizes::kEven)
    own = {__shfl_sync(~0u, size.elements, warp), __shfl_sync(~0u, size.inverse, warp)};
  const float sum = sum_of(lanes, [](float x, float s) { return fmaf(x, kShrink<X>, s); });
  const float mean = Center<X, Sizes::kEven>(sum, own).mean;
  fill(mean);
  const float square = sum_of(lanes, [mean](float x, float s) { return fmaf(x - mean, x - mean, s); });
  return merged<X, Sizes>(scope.exchange({sum, square}), size, inverse_cols);
}

// Where squares are not finite: the mean as the formula has it in float32, infinite or no number where not all elements
// are finite, or what it adds up is not. Gives what y is scaled by, which then is no number.
template <class X>
__device__ __forceinline__ float settle(const Moments& moments, int warps, int cols, float first, float rsigma,
                                        float& mean) {
  float sum = moments.parts ? 0.f : moments.mean * cols * kShrink<X>;
#pragma unroll 1
  for (int w = 0; moments.parts && w < warps; ++w) sum += moments.parts[w].x;
  mean = first + (sum * (1.f / kShrink<X>) - first * cols) / cols;
  return fmaf(0.f, mean, rsigma);
}
