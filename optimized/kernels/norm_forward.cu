#include "device/norm_output.cuh"
#include "device/ptx/dependency.cuh"

// y = (x - mu) * rsigma * g + b along rows of x, with mu = 0 and b = 0 for RMSNorm and g = Gamma::gain(gamma).
//   x (rows, cols) with a pitch   gamma, beta (cols,)   y (rows, cols)   mu, rsigma (rows,) f32
// `Output` says what becomes of y: stored, or cast to FP8 or MXFP8 straight from the registers.
// x is read once, into registers, and y written once: rows * cols * (sizeof(X) + bytes of an element of y), the floor
// of this function; 4 (8) bytes a row of statistics, the scales of blocks and the parameters, from the L1 or L2, come
// on top.
// CTAs that come and go in the order of the rows keep what is in flight together in memory; those that stay would
// drift apart.
template <class Norm, class X, class Gamma, int N, int V, class Scope, class Fill, int Threads, int Ctas, class Output>
__global__ __launch_bounds__(Threads, Ctas) void norm_forward(const __grid_constant__ typename Output::Args a) {
  __shared__ typename Scope::Shared shared;
  __shared__ typename Output::Shared of_output;
  Scope scope(shared, a.row_threads);
  const HeldRows<Norm, X, Gamma, N, V, Scope, Fill, Threads> rows(scope, a.cols);
  wait_for_grids_in_front();
  let_grid_behind_come();
  Output output(a);
  rows.walk(a, scope, output);
  output.finish(of_output);
}
