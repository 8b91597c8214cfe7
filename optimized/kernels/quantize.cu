#include "device/ptx/dependency.cuh"
#include "device/quantize_fp8.cuh"
#include "device/quantize_mxfp8.cuh"
#include "device/quantize_nvfp4.cuh"

// x (rows, cols), with a pitch, to FP8, MXFP8 or NVFP4, rowwise, columnwise or both: `Work` says what is done with a
// part of x, a strip of rows or a tile, while it is in registers.
// Bytes an element, for x of 2 bytes, which are the floor of this function:
//   FP8      2 + 1 an orientation; current scaling reads x twice: 2 more
//   MXFP8    2 + 33/32 an orientation
//   NVFP4    4 + 9/16 an orientation, x being read twice
// The second reading goes backwards: it finds the last parts in registers and those before them in the L2.
template <class Work, int Ctas>
__global__ __launch_bounds__(kThreads, Ctas) void quantize(const __grid_constant__ Quantize a) {
  using Part = typename Work::Part;
  __shared__ typename Work::Shared shared;
  wait_for_grids_in_front();
  let_grid_behind_come();
  Work work(a, shared);
  Part part;
  const i64 parts = Part::count(a);
  if constexpr (Work::kTwice) {
    i64 p = blockIdx.x;
    for (; p < parts; p += gridDim.x) {
      part.load(a, p);
      work.look(part);
    }
    work.settle();
    bool here = true;
    for (p -= gridDim.x; p >= 0; p -= gridDim.x) {
      if (!here) part.load(a, p);
      here = false;
      work.encode(part);
    }
  } else {
    for (i64 p = blockIdx.x; p < parts; p += gridDim.x) {
      part.load(a, p);
      if constexpr (Work::kLooks) work.look(part);
      work.encode(part);
    }
  }
  work.finish();
}
