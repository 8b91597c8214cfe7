#pragma once
#include "device/base.cuh"

// N neighbours of type T, moved in as few transactions of at most 16 bytes as alignment to the vector allows.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vec {
  static_assert((N & (N - 1)) == 0, "the alignment of a vector is its size");
  T lane[N];
};

template <int N>
struct Floats {
  float lane[N];
  static __device__ __forceinline__ Floats filled(float value) {
    Floats f;
#pragma unroll
    for (int i = 0; i < N; ++i) f.lane[i] = value;
    return f;
  }
  __device__ __forceinline__ float& operator[](int i) { return lane[i]; }
  __device__ __forceinline__ float operator[](int i) const { return lane[i]; }
};

// Each less what is given.
template <int N>
__device__ __forceinline__ Floats<N> less(const Floats<N>& v, float what) {
  Floats<N> f;
#pragma unroll
  for (int i = 0; i < N; ++i) f[i] = v[i] - what;
  return f;
}

template <class T, int N>
__device__ __forceinline__ Vec<T, N> load(const void* p, i64 element) {
  return *reinterpret_cast<const Vec<T, N>*>(static_cast<const T*>(p) + element);
}

template <class T, int N>
__device__ __forceinline__ void store(void* p, i64 element, const Vec<T, N>& v) {
  *reinterpret_cast<Vec<T, N>*>(static_cast<T*>(p) + element) = v;
}

// Data of other SMs, written during this launch: not from this SM's L1.
template <int N>
__device__ __forceinline__ Vec<f32, N> load_past_l1(const float* p) {
  Vec<f32, N> v;
  if constexpr (N == 4) {
    const float4 f = __ldcg(reinterpret_cast<const float4*>(p));
    v.lane[0] = f.x, v.lane[1] = f.y, v.lane[2] = f.z, v.lane[3] = f.w;
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) v.lane[i] = __ldcg(p + i);
  }
  return v;
}

// Data for other SMs, in one transaction: compilers take other vectors apart where registers are short.
template <int N>
__device__ __forceinline__ void store_past_l1(float* p, const Floats<N>& f) {
  if constexpr (N == 4) {
    __stcg(reinterpret_cast<float4*>(p), make_float4(f[0], f[1], f[2], f[3]));
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) __stcg(p + i, f[i]);
  }
}

template <class T, int N>
__device__ __forceinline__ Vec<T, N> negative_zeros() {
  Vec<T, N> v;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if constexpr (sizeof(T) == 4) v.lane[i] = -0.f;
    else reinterpret_cast<unsigned short&>(v.lane[i]) = 0x8000;
  }
  return v;
}

// Two neighbours that make a word.
template <class T>
__device__ __forceinline__ float2 widen_pair(u32 word);
template <>
__device__ __forceinline__ float2 widen_pair<bf16>(u32 word) {
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u)};
}
template <>
__device__ __forceinline__ float2 widen_pair<f16>(u32 word) {
  return __half22float2(reinterpret_cast<const __half2&>(word));
}

// One by one: what compilers rather do again than keep, where registers are short.
template <class T, int N>
__device__ __forceinline__ Floats<N> widen_singly(const Vec<T, N>& v) {
  Floats<N> f;
#pragma unroll
  for (int i = 0; i < N; ++i) f[i] = float(v.lane[i]);
  return f;
}

// By words where two neighbours make one: an instruction for each value instead of three for two.
template <class T, int N>
__device__ __forceinline__ Floats<N> widen(const Vec<T, N>& v) {
  if constexpr (sizeof(T) == 4 || N == 1) {
    return widen_singly(v);
  } else {
    Floats<N> f;
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const float2 pair = widen_pair<T>(reinterpret_cast<const u32*>(v.lane)[i / 2]);
      f[i] = pair.x, f[i + 1] = pair.y;
    }
    return f;
  }
}

template <int N>
__device__ __forceinline__ void narrow(const Floats<N>& f, Vec<f32, N>& v) {
#pragma unroll
  for (int i = 0; i < N; ++i) v.lane[i] = f[i];
}

// Two values round in one instruction where a pair is there.
template <int N>
__device__ __forceinline__ void narrow(const Floats<N>& f, Vec<bf16, N>& v) {
  if constexpr (N == 1) v.lane[0] = __float2bfloat16_rn(f[0]);
#pragma unroll
  for (int i = 0; i + 1 < N; i += 2)
    reinterpret_cast<__nv_bfloat162&>(v.lane[i]) = __floats2bfloat162_rn(f[i], f[i + 1]);
}

template <int N>
__device__ __forceinline__ void narrow(const Floats<N>& f, Vec<f16, N>& v) {
  if constexpr (N == 1) v.lane[0] = __float2half_rn(f[0]);
#pragma unroll
  for (int i = 0; i + 1 < N; i += 2)
    reinterpret_cast<__half2&>(v.lane[i]) = __floats2half2_rn(f[i], f[i + 1]);
}
