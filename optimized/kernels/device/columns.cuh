#pragma once
#include "device/dtype.cuh"
#include "device/grid.cuh"

// Deterministic sums over rows, in two steps: each CTA adds up its row slots and writes one row of partial sums; after
// a grid barrier every CTA adds up a few columns of them.

// A slot's sums of N neighbouring columns a thread, in planes of 16 bytes a vector so that neighbours write
// neighbouring banks.
template <int N>
struct Planes {
  static constexpr int kWidth = N < 4 ? N : 4, kPlanes = N / kWidth;

  static __device__ __forceinline__ void write(float* slot, int width, int vector, const Floats<N>& sums) {
#pragma unroll
    for (int p = 0; p < kPlanes; ++p) {
      Vec<f32, kWidth> part;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) part.lane[i] = sums[p * kWidth + i];
      store(slot, p * (width / kPlanes) + vector * kWidth, part);
    }
  }
  // The column that is kept at `place`.
  static __device__ __forceinline__ int column(int place, int width) {
    const int plane = place / (width / kPlanes), in_plane = place % (width / kPlanes);
    return in_plane / kWidth * N + plane * kWidth + in_plane % kWidth;
  }
};

// partial[c] = sum over the slots of the CTA; `area` holds `slots` rows of `width` floats, filled and synchronised.
template <int N>
__device__ __forceinline__ void sum_slots(const float* area, float* partial, int slots, int width) {
  constexpr int kWidth = Planes<N>::kWidth;
  for (int place = threadIdx.x * kWidth; place < width; place += blockDim.x * kWidth) {
    Floats<kWidth> sum = {};
    for (int s = 0; s < slots; ++s) {
      const Floats<kWidth> part = widen(load<f32, kWidth>(area, s * width + place));
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum[i] += part[i];
    }
    const int column = Planes<N>::column(place, width);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) partial[column + i] = sum[i];
  }
}

// The sum of column c of `count` rows of `pitch` floats, for c in this CTA's share of `cols` columns: given to
// `put(c, sum)` by one thread. Comes after a grid barrier: the other CTAs' rows are read from the L2.
template <class Put>
__device__ __forceinline__ void sum_partials(const float* partial, int count, int pitch, int cols, Put put) {
  __shared__ float sums[32][kWarp];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
  const int groups = ceil_div(cols, kWarp), mine = ceil_div(groups, gridDim.x);  // of 32 columns
  const int side_by_side = min(mine, warps), deep = warps / side_by_side;
  for (int base = 0; base < mine; base += side_by_side) {
    const int group = base + warp % side_by_side, part = warp / side_by_side;
    const int c = (blockIdx.x * mine + group) * kWarp + lane;
    float sum = 0.f;
    if (group < mine && c < cols && part < deep) {
#pragma unroll 8
      for (int p = part; p < count; p += deep) sum += __ldcg(partial + i64(p) * pitch + c);
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (part == 0 && group < mine && c < cols) {
      sum = 0.f;
      for (int d = 0; d < deep; ++d) sum += sums[d * side_by_side + warp][lane];
      put(c, sum);
    }
    __syncthreads();
  }
}
