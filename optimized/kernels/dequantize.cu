#include "device/dequantize.cuh"
#include "device/ptx/dependency.cuh"

// y = element * scale in float32, rounded once to Y, of FP8, MXFP8 or NVFP4 data in the layout of the tensor.
// Reads 1, 33/32 or 9/16 bytes an element and writes sizeof(Y): the floor of this function.
template <class Format, class Y>
__global__ __launch_bounds__(kThreads) void dequantize_rows(const __grid_constant__ Dequantize a) {
  constexpr int kRuns = 4;
  wait_for_grids_in_front();
  let_grid_behind_come();
  const Format format(a);
  for (i64 part = blockIdx.x; part * (kRuns * kThreads) < runs_of(a); part += gridDim.x) {
    Spot at[kRuns];
    Floats<kRun> v[kRuns];
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      at[i] = spot_of<Format::kBlock>(a, (part * kRuns + i) * kThreads + threadIdx.x);
      v[i] = format.values(a, at[i]);
    }
#pragma unroll
    for (int i = 0; i < kRuns; ++i) store_values<Y>(a.y, at[i].place, v[i], at[i].count);
  }
}

// The same of transposed data, (cols, rows), by way of shared memory. The same floor.
template <class Format, class Y>
__global__ __launch_bounds__(kThreads, 3) void dequantize_columns(const __grid_constant__ Dequantize a) {
  __shared__ typename Format::Shared turned;
  wait_for_grids_in_front();
  let_grid_behind_come();
  Format format(a);
  const u32 across = (a.cols + kEdge - 1) / kEdge;
  const i64 tiles = (a.rows + kEdge - 1) / kEdge * across;
  const int top = Lattice::top(), left = Lattice::left();
  for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const i64 row = u32(tile) / across * kEdge, col = u32(tile) % across * kEdge;
    format.load(a, turned, row, col);
    __syncthreads();
    format.take(a, turned, row, col, top, left);
    __syncthreads();
    const int columns = min(i64(kRun), max(i64(0), a.cols - col - left));
#pragma unroll
    for (int i = 0; i < kRun; ++i)
      if (row + top + i < a.rows) store_values<Y>(a.y, (row + top + i) * a.cols + col + left, format.row(i), columns);
  }
}
