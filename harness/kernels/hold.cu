#include "device/ptx/timer.cuh"

struct Report {
  u64 overslept;  // 1: the limit ended it
  u64 cycles, nanoseconds;
};

struct Hold {
  const volatile u64* released;  // in host memory; 1: go on
  volatile Report* report;
  i64 least_ns, limit_ns;
};

// Keeps the stream until the host sets `released`, for `least_ns` at the least and `limit_ns` at the most, so that it
// can never hang; and counts the cycles of its SM in that time: the clock that the SMs have just then.
template <int Unused>
__global__ void hold(const __grid_constant__ Hold a) {
  const u64 began = global_nanoseconds();
  const i64 first = clock64();
  u64 passed = 0;
  bool released = false;
  while (passed < a.least_ns || (!released && passed < a.limit_ns)) {
    if (!released) released = *a.released;  // a microsecond or more away
    passed = global_nanoseconds() - began;
  }
  a.report->cycles = clock64() - first;
  a.report->nanoseconds = passed;
  a.report->overslept = !released;
}
