#include "device/norm_slab_output.cuh"
#include "device/ptx/dependency.cuh"

// y = norm(x) as in norm_forward.cu, quantized as in quantize.cu to MXFP8 or to FP8 with delayed scaling, columnwise or
// both ways, whole rows of x being in the shared memory of a cluster of up to sixteen CTAs.
//   x (rows, cols), cols a multiple of 64 and rows of x on 16 bytes
// x is read once. Bytes an element, for x of 2 bytes, which are the floor of this function:
//   FP8      2 + 1 an orientation      MXFP8    2 + 33/32 an orientation
template <class Output, int Ctas>
__global__ __launch_bounds__(Output::kThreads, Ctas) void norm_slab(const __grid_constant__ NormQuantize a) {
  using Rows = typename Output::Rows;
  __shared__ typename Rows::Shared of_rows;
  __shared__ typename Output::Shared of_output;
  Rows rows(of_rows, a);
  const int ctas = cluster_size();
  const i64 step = i64(gridDim.x / ctas) * kSlabRows;
  i64 top = i64(blockIdx.x / ctas) * kSlabRows;
  wait_for_grids_in_front();
  let_grid_behind_come();

  if (top < a.rows) {
    rows.fetch(a, top);
    rows.fetch_parameters(a);
  }
  Output output(a, of_output);
  cluster_wait();  // all CTAs are there and ready to be written to
  for (; top < a.rows; top += step) {
    rows.take_statistics(a, top);
    __syncthreads();
    rows.wait_for_parameters();
    output.put(rows, top);
    if (top + step < a.rows) {
      fence_async_proxy();
      __syncthreads();
      rows.fetch(a, top + step);
    }
  }
  output.finish();
}
