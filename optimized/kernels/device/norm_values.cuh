#pragma once
#include "device/ptx/registers.cuh"
#include "device/vec.cuh"

// As kept() of each word.
template <class T, int N>
__device__ __forceinline__ Vec<T, N> kept_vector(Vec<T, N> v) {
  if constexpr (sizeof(v) == 2) {
    auto& half = reinterpret_cast<unsigned short&>(v.lane[0]);
    half = kept(u32(half));
  }
#pragma unroll
  for (int i = 0; i < int(sizeof(v) / 4); ++i) {
    u32& word = reinterpret_cast<u32*>(v.lane)[i];
    word = kept(word);
  }
  return v;
}

// What a thread has of a row, less what was taken off, as float32: widened once, or, where registers do not hold that,
// at each use.
template <class X, int N, int V, bool Widened>
struct Values {
  Floats<N> value[V];

  __device__ __forceinline__ Values(const Vec<X, N> (&x)[V], int vectors) {
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (v < vectors) value[v] = widen(x[v]);
  }
  // In the place of those that are not there.
  __device__ __forceinline__ void fill(int vectors, float with) {
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (v >= vectors) value[v] = Floats<N>::filled(with);
  }
  // Not to be worked out again where it is used.
  __device__ __forceinline__ void keep() {
#pragma unroll
    for (int v = 0; v < V; ++v)
#pragma unroll
      for (int i = 0; i < N; ++i) value[v][i] = kept(value[v][i]);
  }
  __device__ __forceinline__ void take_off(float mu) {
#pragma unroll
    for (int v = 0; v < V; ++v) value[v] = less(value[v], mu);
  }
  __device__ __forceinline__ Floats<N> operator[](int v) const { return value[v]; }
};
template <class X, int N, int V>
struct Values<X, N, V, false> {
  Vec<X, N> (&x)[V];
  float off = 0.f;

  __device__ __forceinline__ Values(Vec<X, N> (&x)[V], int) : x(x) {}
  __device__ __forceinline__ void keep() {
#pragma unroll
    for (int v = 0; v < V; ++v) x[v] = kept_vector(x[v]);
  }
  __device__ __forceinline__ void take_off(float mu) { off = mu; }
  __device__ __forceinline__ Floats<N> operator[](int v) const { return less(widen(x[v]), off); }
};
