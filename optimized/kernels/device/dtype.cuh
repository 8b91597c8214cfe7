#pragma once
#include "device/vec.cuh"

// Element type of an operand outside the inner loop: known at run time, so that it costs no specialization.
enum class DType : int { kF32 = 0, kF16 = 1, kBf16 = 2 };

template <class T>
struct Tag { using type = T; };

// f(Tag<T>) with the type that `dtype` stands for.
template <class F>
__device__ __forceinline__ void with_type(DType dtype, F f) {
  switch (dtype) {
    case DType::kF32: return f(Tag<f32>{});
    case DType::kF16: return f(Tag<f16>{});
    case DType::kBf16: return f(Tag<bf16>{});
  }
}

template <int N>
__device__ __forceinline__ Floats<N> load_as_floats(DType dtype, const void* p, i64 element) {
  Floats<N> f;
  with_type(dtype, [&](auto tag) { f = widen(load<typename decltype(tag)::type, N>(p, element)); });
  return f;
}
