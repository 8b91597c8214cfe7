// CUDA C++ as a C++ compiler takes it: a CTA of 256 threads, or of THREADS, is as many contexts that take turns at
// barriers.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__
#define __align__(n) __attribute__((aligned(n)))

using std::max;
using std::min;

#ifndef THREADS
#define THREADS 256
#endif
constexpr int kContexts = THREADS;
struct Dimensions { unsigned x; };
inline int current = 0;
inline Dimensions blockIdx, gridDim, blockDim{kContexts};
struct ThreadIndex {
  struct { operator unsigned() const { return current % blockDim.x; } } x;
};
inline ThreadIndex threadIdx;
inline char bytes[1 << 18] __align__(1024);  // of dynamic_shared()

struct Context {
  ucontext_t state;
  std::vector<char> stack;
  bool done;
};
inline std::vector<Context> contexts(kContexts);
inline ucontext_t scheduler;
inline std::function<void()> kernel;

struct Barrier {
  long generation = 0;
  int arrived = 0;
  void wait(int count) {
    const long mine = generation;
    if (++arrived == count) {
      arrived = 0, ++generation;
    } else {
      while (generation == mine) swapcontext(&contexts[current].state, &scheduler);
    }
  }
};
inline Barrier cta_barrier, warp_barriers[kContexts / 32];
inline void __syncthreads() { cta_barrier.wait(kContexts); }
inline void sync_warp() { warp_barriers[current / 32].wait(32); }

inline void enter() {
  kernel();
  contexts[current].done = true;
  swapcontext(&contexts[current].state, &scheduler);
}

// Runs CTA number `block`; threads take turns upwards, or downwards where `reversed`.
inline void run_cta(int block, std::function<void()> body, bool reversed) {
  blockIdx.x = block, kernel = body;
  memset(bytes, 0xff, sizeof bytes);  // NaN
  for (Context& context : contexts) {
    context.stack.resize(1 << 17), context.done = false;
    getcontext(&context.state);
    context.state.uc_stack.ss_sp = context.stack.data();
    context.state.uc_stack.ss_size = context.stack.size();
    makecontext(&context.state, enter, 0);
  }
  for (bool any = true; any;) {
    any = false;
    for (int i = 0; i < kContexts; ++i) {
      current = reversed ? kContexts - 1 - i : i;
      if (!contexts[current].done) any = true, swapcontext(&scheduler, &contexts[current].state);
    }
  }
}

[[noreturn]] inline void die(const char* why) {
  printf("thread %d: %s\n", current, why);
  fflush(stdout);
  _Exit(2);  // without what would free the stack that this runs on
}

struct __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  explicit __nv_bfloat16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    bits = (u & 0x7fffffff) > 0x7f800000 ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
  }
  operator float() const {
    const uint32_t u = uint32_t(bits) << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
  }
};
struct __half {
  _Float16 value;
  __half() = default;
  explicit __half(float f) : value(f) {}
  operator float() const { return value; }
};
struct __nv_bfloat162 { __nv_bfloat16 x, y; };
struct __half2 { __half x, y; };
inline __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
inline __half __float2half_rn(float f) { return __half(f); }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {__nv_bfloat16(a), __nv_bfloat16(b)}; }
inline __half2 __floats2half2_rn(float a, float b) { return {__half(a), __half(b)}; }
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float2 __half22float2(__half2 pair) { return {pair.x, pair.y}; }
inline float2 __bfloat1622float2(__nv_bfloat162 pair) { return {pair.x, pair.y}; }
struct int2 { int x, y; };
struct int4 { int x, y, z, w; };
inline int2 make_int2(int x, int y) { return {x, y}; }
template <class T>
inline T __ldg(const T* p) { return *p; }
inline float __uint_as_float(unsigned bits) {
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
inline float4 __ldcg(const float4* p) { return *p; }
inline float __ldcg(const float* p) { return *p; }
inline void __stcg(float4* p, float4 v) { *p = v; }
inline void __stcg(float* p, float v) { *p = v; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
