#pragma once
#include "device/vec.cuh"

// `cols` floats in shared memory, N neighbouring ones a thread, in planes of 16 bytes a vector: then neighbouring
// threads touch neighbouring banks.
template <int N>
struct Planes {
  static constexpr int kWidth = N < 4 ? N : 4, kPlanes = N / kWidth;
  float* const area;
  const int cols;

  __device__ __forceinline__ int place(int plane, int vector) const {
    return plane * (cols / kPlanes) + vector * kWidth;
  }
  __device__ __forceinline__ void write(int vector, const Floats<N>& values) const {
#pragma unroll
    for (int p = 0; p < kPlanes; ++p) {
      Vec<f32, kWidth> part;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) part.lane[i] = values[p * kWidth + i];
      store(area, place(p, vector), part);
    }
  }
  __device__ __forceinline__ Floats<N> read(int vector) const {
    Floats<N> values;
#pragma unroll
    for (int p = 0; p < kPlanes; ++p) {
      const Vec<f32, kWidth> part = load<f32, kWidth>(area, place(p, vector));
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[p * kWidth + i] = part.lane[i];
    }
    return values;
  }
  // Takes values + offset, by all threads of the CTA, at most V vectors each; `values` may lie in the area.
  template <int V, class T>
  __device__ __forceinline__ void widen_from(const T* values, int vectors, float offset) const {
    Vec<T, N> raw[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const int vector = threadIdx.x + v * blockDim.x;
      if (vector < vectors) raw[v] = load<T, N>(values, vector * N);
    }
    __syncthreads();
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const int vector = threadIdx.x + v * blockDim.x;
      if (vector < vectors) {
        Floats<N> wide = widen(raw[v]);
#pragma unroll
        for (int i = 0; i < N; ++i) wide[i] += offset;
        write(vector, wide);
      }
    }
    __syncthreads();
  }
};
