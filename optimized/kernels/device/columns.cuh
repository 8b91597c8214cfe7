#pragma once
#include "device/grid.cuh"
#include "device/planes.cuh"
#include "device/warp.cuh"

// Deterministic sums over rows, in two steps: each CTA adds up its row slots and writes one row of partial sums; after
// a grid barrier every CTA adds up a few columns of them.

// A row of K * pitch floats: sum k of column c of this CTA goes to k * pitch + c.
struct Partial {
  float* row;
  int pitch;
};

// part(0) + part(step) + … below `end`, `Deep` at a time, and those in pairs: few additions in one chain, so less error
// and latency.
template <int W, int Deep = 4, class Part>
__device__ __forceinline__ Floats<W> sum_in_parts(int end, int step, Part part) {
  Floats<W> total = {};
#pragma unroll 1
  for (int first = 0; first < end; first += Deep * step) {
    Floats<W> parts[Deep] = {};
#pragma unroll
    for (int i = 0; i < Deep; ++i)
      if (first + i * step < end) parts[i] = part(first + i * step);
#pragma unroll
    for (int apart = 1; apart < Deep; apart *= 2)
#pragma unroll
      for (int i = 0; i < Deep; i += 2 * apart)
#pragma unroll
        for (int j = 0; j < W; ++j) parts[i][j] += parts[i + apart][j];
#pragma unroll
    for (int j = 0; j < W; ++j) total[j] += parts[0][j];
  }
  return total;
}

// visit(i, vector) for all i below Count and all vectors, each once, by some lane of the CTA.
template <int Count, class Visit>
__device__ __forceinline__ void share_out(int vectors, Visit visit) {
#pragma unroll 1
  for (int i = agreed(threadIdx.x / kWarp); i < ceil_div(vectors, kWarp) * Count; i += blockDim.x / kWarp) {
    const int vector = i / Count * kWarp + threadIdx.x % kWarp;
    if (vector < vectors) visit(i % Count, vector);
  }
}

// The sums of K values a column over the slots of the CTA, `Parts` sums of every Parts-th slot first where slots are
// many. `area` is shared memory for K * slots rows of `cols` floats.
template <int Parts, int K, int N, int V, class Share>
__device__ __forceinline__ void sum_slots(const Floats<N> (&mine)[K][V], const Share& share, float* area, int slots,
                                          int slot, int cols, Partial out) {
  constexpr int kPlanes = Planes<N>::kPlanes, kWidth = Planes<N>::kWidth;
  const auto put = [&](int k, int plane, int vector, const Floats<kWidth>& sums) {
    store_past_l1(out.row + k * out.pitch + vector * N + plane * kWidth, sums);
  };
  if (slots == 1) {
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (v < share.count)
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
          for (int plane = 0; plane < kPlanes; ++plane) {
            Floats<kWidth> sums;
#pragma unroll
            for (int i = 0; i < kWidth; ++i) sums[i] = mine[k][v][plane * kWidth + i];
            put(k, plane, share.first + v * share.kStep, sums);
          }
    return;
  }
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
    return sum_in_parts<kWidth>(end - first, step, [&](int s) {
      return widen(load<f32, kWidth>(area, (k * slots + first + s) * cols + place));
    });
  };
  const Planes<N> planes{area, cols};
  if constexpr (Parts > 1) {
    share_out<Parts * K * kPlanes>(cols / N, [&](int i, int vector) {
      const int part = i / (K * kPlanes), k = i / kPlanes % K, place = planes.place(i % kPlanes, vector);
      Vec<f32, kWidth> result;
      narrow(sum_of(k, place, part, Parts, slots), result);
      store(area, (k * slots + part) * cols + place, result);
    });
    __syncthreads();
  }
  share_out<K * kPlanes>(cols / N, [&](int i, int vector) {
    const int k = i / kPlanes, plane = i % kPlanes;
    put(k, plane, vector, sum_of(k, planes.place(plane, vector), 0, 1, Parts > 1 ? Parts : slots));
  });
}

// This CTA's strips of kLanes vectors of W columns, every gridDim.x-th of all, and how its warps share them: as many as
// there are strips `beside` each other, and in `deep` parts of their rows where there are warps for that.
template <int W>
struct Strips {
  static constexpr int kLanes = 8, kRows = kWarp / kLanes;
  const int cols;
  int count = 0, beside, deep, mine, part;  // the last two: this warp's

  __device__ __forceinline__ explicit Strips(int cols) : cols(cols) {
#pragma unroll 1
    for (int first = blockIdx.x * kLanes * W; first < cols; first += gridDim.x * kLanes * W) ++count;
    const int warp = agreed(threadIdx.x / kWarp), warps = blockDim.x / kWarp;
    beside = max(1, min(count, warps)), deep = warps / beside;
    part = warp / beside, mine = warp - part * beside;
  }
};

// The sums of the columns in `strips` of `count` rows, given to `put(first column, sums)` by one thread. Comes after a
// grid barrier: the other CTAs' rows are read from the L2, 8 vectors of 4 rows a warp at a time.
template <int W, class Put>
__device__ __forceinline__ void sum_partials(const float* partial, int count, const Strips<W>& strips, Put put) {
  constexpr int kLanes = Strips<W>::kLanes, kRows = Strips<W>::kRows;
  __shared__ Vec<f32, W> sums[32][kLanes];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int cols = strips.cols, beside = strips.beside, deep = strips.deep, part = strips.part;
#pragma unroll 1
  for (int base = 0; base < strips.count; base += beside) {
    const int c = ((blockIdx.x + (base + strips.mine) * gridDim.x) * kLanes + lane % kLanes) * W;
    const bool valid = c < cols && part < deep;
    Floats<W> sum = {};
    if (valid) {
      const int first = part * kRows + lane / kLanes, stride = deep * kRows;
      sum = sum_in_parts<W, 8>(max(0, count - first), stride, [&](int p) {
        return widen(load_past_l1<W>(partial + i64(first + p) * cols + c));
      });
    }
#pragma unroll
    for (int i = 0; i < W; ++i)
#pragma unroll
      for (int other = kLanes; other < kWarp; other *= 2) sum[i] += __shfl_xor_sync(~0u, sum[i], other);
    if (lane < kLanes) narrow(sum, sums[warp][lane]);
    __syncthreads();
    if (valid && part == 0 && lane < kLanes) {
      sum = sum_in_parts<W>(deep, 1, [&](int d) { return widen(sums[d * beside + warp][lane]); });
      put(c, sum);
    }
    __syncthreads();
  }
}
