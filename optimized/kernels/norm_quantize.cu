#include "device/norm_parts.cuh"
#include "device/ptx/dependency.cuh"
#include "device/quantize_fp8.cuh"
#include "device/quantize_mxfp8.cuh"
#include "device/quantize_nvfp4.cuh"

// All parts of y, the last first.
template <class Work>
__device__ __forceinline__ void quantize_parts(const NormQuantize& a, Work& work) {
  typename Work::Part part;
  for (i64 p = Work::Part::count(a) - 1 - blockIdx.x; p >= 0; p -= gridDim.x) {
    part.load(a, p);
    if constexpr (Work::kLooks && !Work::kTwice) work.look(part);
    work.encode(part);
  }
}

// y = norm(x) as in norm_forward.cu, quantized as in quantize.cu, in one cooperative launch: first the statistics of
// every row and, where the scale needs it, the amax of y; then, when all CTAs are that far, y once more, part by part,
// quantized while it is in registers. y itself is never in memory.
// Bytes an element, for x of 2 bytes, which are the floor of this function where x does not stay on the chip:
//   FP8      4 + 1 an orientation      MXFP8    4 + 33/32 an orientation      NVFP4    4 + 9/16 an orientation
// The second reading goes backwards, so that what the L2 still holds of x is read from there: all of it, up to about
// 50 MB on an H200.
template <class Work, class Rows, class X, int Ctas>
__global__ __launch_bounds__(kThreads, Ctas) void norm_quantize(const __grid_constant__ NormQuantize a) {
  __shared__ typename Rows::Shared of_rows;
  __shared__ typename Work::Shared of_work;
  wait_for_grids_in_front();
  let_grid_behind_come();
  Work work(a, of_work);
  const Forward norm = a.forward();
  if constexpr (Work::kTwice) {
    PeakOf<X> peak;
    Rows::walk(norm, of_rows, peak);
    work.peaks.word[0] = peak.word;
    work.settle();
  } else {
    Nothing nothing;
    Rows::walk(norm, of_rows, nothing);
    grid_sync();
  }
  quantize_parts(a, work);
  work.finish();
}

// The same in two launches, for comparison: the statistics and the amax that each CTA has seen;
template <class Rows, class X, int Ctas>
__global__ __launch_bounds__(kThreads, Ctas) void norm_amax(const __grid_constant__ NormQuantize a) {
  __shared__ typename Rows::Shared of_rows;
  __shared__ GridMax<1>::Shared most;
  wait_for_grids_in_front();
  let_grid_behind_come();
  PeakOf<X> peak;
  const Forward norm = a.forward();
  Rows::walk(norm, of_rows, peak);
  Peaks<X> peaks;
  peaks.word[0] = peak.word;
  u32 bits[1] = {peaks.bits()};
  GridMax<1>::leave(most, a.partial, bits);
}

// then y, part by part.
template <class Work, int Ctas>
__global__ __launch_bounds__(kThreads, Ctas) void quantize_normed(const __grid_constant__ NormQuantize a) {
  __shared__ typename Work::Shared of_work;
  wait_for_grids_in_front();
  let_grid_behind_come();
  Work work(a, of_work);
  work.settle();
  quantize_parts(a, work);
  work.finish();
}
