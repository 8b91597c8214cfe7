#pragma once
#include "device/grid.cuh"
#include "device/planes.cuh"

// Deterministic sums over rows, in two steps: each CTA adds up its row slots and writes one row of partial sums; after
// a grid barrier every CTA adds up a few columns of them.

// A row of K * pitch floats: sum k of column c of this CTA goes to k * pitch + c.
struct Partial {
  float* row;
  int pitch;
};

// part(0) + … + part(count - 1), four at a time: a quarter of the additions in one chain, so less error and latency.
template <int W, class Part>
__device__ __forceinline__ Floats<W> sum_in_fours(int count, Part part) {
  Floats<W> total = {};
  for (int first = 0; first < count; first += 4) {
    Floats<W> four[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (first + i < count) four[i] = part(first + i);
#pragma unroll
    for (int j = 0; j < W; ++j) total[j] += (four[0][j] + four[1][j]) + (four[2][j] + four[3][j]);
  }
  return total;
}

// The sums of K values a column over the slots of the CTA, `Parts` sums of every Parts-th slot first where slots are
// many. `area` is shared memory for K * slots rows of `cols` floats.
template <int Parts, int K, int N, int V, class Share>
__device__ __forceinline__ void sum_slots(const Floats<N> (&mine)[K][V], const Share& share, float* area, int slots,
                                          int slot, int cols, Partial out) {
  constexpr int kWidth = Planes<N>::kWidth;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < K; ++k)
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (v < share.count)
        Planes<N>{area + (k * slots + slot) * cols, cols}.write(share.first + v * share.kStep, mine[k][v]);
  __syncthreads();
  // Of the slots first, first + step, … below `end`.
  const auto sum_of = [&](int k, int place, int first, int step, int end) {
    return sum_in_fours<kWidth>(ceil_div(end - first, step), [&](int s) {
      return widen(load<f32, kWidth>(area, (k * slots + first + s * step) * cols + place));
    });
  };
  if constexpr (Parts > 1) {
    for (int i = threadIdx.x * kWidth; i < Parts * K * cols; i += blockDim.x * kWidth) {
      const int part = i / (K * cols), k = i / cols % K, place = i % cols;
      Vec<f32, kWidth> result;
      narrow(sum_of(k, place, part, Parts, slots), result);
      store(area, (k * slots + part) * cols + place, result);
    }
    __syncthreads();
  }
  for (int i = threadIdx.x * kWidth; i < K * cols; i += blockDim.x * kWidth) {
    const int k = i / cols, place = i % cols;
    Vec<f32, kWidth> result;
    narrow(sum_of(k, place, 0, 1, Parts > 1 ? Parts : slots), result);
    store(out.row, k * out.pitch + Planes<N>{area, cols}.column(place), result);
  }
}

// The sums of W neighbouring columns of `count` rows of `cols` floats, for all columns of this CTA's share, given to
// `put(first column, sums)` by one thread. Comes after a grid barrier: the other CTAs' rows are read from the L2, 8
// vectors of 4 rows a warp at a time.
template <int W, class Put>
__device__ __forceinline__ void sum_partials(const float* partial, int count, int cols, Put put) {
  constexpr int kLanes = 8, kRows = kWarp / kLanes;
  __shared__ Vec<f32, W> sums[32][kLanes];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
  const int mine = ceil_div(ceil_div(cols, kLanes * W), gridDim.x);  // strips of 8 vectors
  const int side_by_side = min(mine, warps), deep = warps / side_by_side;
  for (int base = 0; base < mine; base += side_by_side) {
    const int strip = base + warp % side_by_side, part = warp / side_by_side;
    const int c = ((blockIdx.x * mine + strip) * kLanes + lane % kLanes) * W;
    const bool valid = strip < mine && c < cols && part < deep;
    Floats<W> sum = {};
    if (valid) {
      const int first = part * kRows + lane / kLanes, stride = deep * kRows;
      sum = sum_in_fours<W>(ceil_div(max(0, count - first), stride), [&](int p) {
        return widen(load_past_l1<W>(partial + i64(first + p * stride) * cols + c));
      });
    }
#pragma unroll
    for (int i = 0; i < W; ++i)
#pragma unroll
      for (int other = kLanes; other < kWarp; other *= 2) sum[i] += __shfl_xor_sync(~0u, sum[i], other);
    if (lane < kLanes) narrow(sum, sums[warp][lane]);
    __syncthreads();
    if (valid && part == 0 && lane < kLanes) {
      sum = sum_in_fours<W>(deep, [&](int d) { return widen(sums[d * side_by_side + warp][lane]); });
      put(c, sum);
    }
    __syncthreads();
  }
}
