#include "device/dequantize.cuh"
#include "device/ptx/dependency.cuh"

// y = element * scale in float32, rounded once to Y, of FP8, MXFP8 or NVFP4 data in the layout of the tensor.
// Reads 1, 33/32 or 9/16 bytes an element and writes sizeof(Y): the floor of this function.
template <class Format, class Y>
__global__ __launch_bounds__(kThreads) void dequantize_rows(const __grid_constant__ Dequantize a) {
  constexpr int N = kTogether<Y>, kRuns = 32 / N;
  wait_for_grids_in_front();
  let_grid_behind_come();
  const i64 count = a.rows * a.cols, runs = count / N;
  for (i64 first = i64(blockIdx.x) * (kRuns * kThreads); first < runs; first += i64(gridDim.x) * (kRuns * kThreads)) {
    i64 scale[kRuns] = {};
    if constexpr (Format::kBlock > 0) find_scales<Format::kBlock>(a, (first + threadIdx.x) * N, kThreads * N, scale);
    typename Format::template Fetched<N> fetched[kRuns] = {};
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const i64 run = first + i * kThreads + threadIdx.x;
      if (run < runs) fetched[i] = Format::template fetch<N>(a, run * N, scale[i]);
    }
    const Format format(a);
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const i64 run = first + i * kThreads + threadIdx.x;
      if (run < runs) store_values<Y>(a.y, run * N, format.template values<N>(fetched[i]));
    }
  }
  if constexpr (Format::kBlock == 0) {  // blocks leave no rest
    const i64 place = runs * N + threadIdx.x;
    if (blockIdx.x == 0 && place < count)
      store_values<Y>(a.y, place, Format(a).template values<1>(Format::template fetch<1>(a, place, 0)));
  }
}

// The same of MXFP8 data whose blocks lie down the columns. The same floor.
template <class Code, class Y>
__global__ __launch_bounds__(kThreads) void dequantize_blocks_down(const __grid_constant__ Dequantize a) {
  wait_for_grids_in_front();
  let_grid_behind_come();
  if (a.cols % kTogether<Y> == 0) dequantize_down<Code, Y, kTogether<Y>>(a);
  else dequantize_down<Code, Y, 1>(a);
}

// The same of transposed data, (cols, rows), by way of shared memory. The same floor.
template <class Format, class Y>
__global__ __launch_bounds__(kThreads, 4) void dequantize_columns(const __grid_constant__ Dequantize a) {
  __shared__ typename Format::Shared turned;
  wait_for_grids_in_front();
  let_grid_behind_come();
  Format format(a);
  const u32 across = (a.cols + kEdge - 1) / kEdge;
  const i64 tiles = (a.rows + kEdge - 1) / kEdge * across;
  const int top = Lattice::top(), left = Lattice::left();
  for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const i64 row = u32(tile) / across * kEdge, col = u32(tile) % across * kEdge;
    Format::load(a, turned, row, col);
    __syncthreads();
    format.take(turned, top, left);
    __syncthreads();
    const i64 place = (row + top) * a.cols + col + left;
    const int columns = min(i64(kRun), max(i64(0), a.cols - col - left)), rows = min(i64(kRun), a.rows - row - top);
    const bool whole = columns == kRun && a.cols % kRun == 0;
#pragma unroll
    for (int i = 0; i < kRun; ++i)
      if (i < rows) store_some<Y>(a.y, place + i * a.cols, format.row(i), columns, whole);
  }
}
