// What lanes tell each other, named barriers, and rounded operations.
#pragma once
#include "emulator.h"

#define __builtin_assume(condition)
using std::isnan;

struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
inline double told[kContexts];
template <class T>
T from_lane(T value, int lane) {
  told[current] = value;
  sync_warp();
  const double other = told[current / 32 * 32 + lane];
  sync_warp();
  return T(other);
}
inline float __shfl_xor_sync(unsigned, float value, int mask) { return from_lane(value, current % 32 ^ mask); }
template <class T>
T __shfl_sync(unsigned, T value, int lane) { return from_lane(value, lane); }
inline void __syncwarp() { sync_warp(); }

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __frcp_rn(float a) { return 1 / a; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
template <class T>
inline void __stwb(T* p, T v) { *p = v; }
