#include "device/norm_output.cuh"
#include "device/norm_shared.cuh"
#include "device/ptx/dependency.cuh"

// As norm_forward.cu, of rows that begin at and fill whole 16-byte units, and that are too wide for registers to hold
// enough of them. x is read once, into shared memory.
template <class Norm, class X, class Gamma, int N, int Threads, int Ctas, class Output>
__global__ __launch_bounds__(Threads, Ctas) void norm_forward_shared(const __grid_constant__ typename Output::Args a) {
  __shared__ Block::Shared shared;
  __shared__ typename Output::Shared of_output;
  __shared__ u64 full;
  Block scope(shared, Threads);
  SharedRows<Norm, X, Gamma, N, Threads> rows(reinterpret_cast<X*>(dynamic_shared()), &full);
  wait_for_grids_in_front();
  let_grid_behind_come();
  Output output(a);
  rows.walk(a, scope, output);
  output.finish(of_output);
}
