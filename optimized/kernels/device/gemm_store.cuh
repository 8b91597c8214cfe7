#pragma once
#include "device/gemm_multiply.cuh"
#include "device/ptx/barrier.cuh"
#include "device/ptx/bulk.cuh"
#include "device/ptx/matrix.cuh"

// What becomes of the sums: they leave in chunks of 64 rows of 64 bytes, through a ring of staging buffers.

__device__ __forceinline__ u32 pack(float low, float high, bf16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const u32&>(pair);
}
__device__ __forceinline__ u32 pack(float low, float high, f16) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const u32&>(pair);
}
__device__ __forceinline__ float2 unpack(u32 pair, bf16) {
  return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
}
__device__ __forceinline__ float2 unpack(u32 pair, f16) {
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}

// Where the copy engine expects 16 bytes of a row of 64.
__device__ __forceinline__ int at(int row, int unit) { return row * 64 + ((unit ^ (row >> 1 & 3)) << 4); }

// Of 2-byte elements. Visits the two runs of 16 columns with the address of this lane's part.
template <class E>
struct Chunk {
  static constexpr int kCols = 32;
  static constexpr u32 kMinusZeros = 0x80008000;

  template <class Visit>
  static __device__ __forceinline__ void visit(char* buffer, Visit visit) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % 4;
    const int row = warp * 16 + (lane / 8 & 1) * 8 + lane % 8;
#pragma unroll
    for (int run = 0; run < 2; ++run) {
      visit(buffer + at(row, 2 * run + lane / 16), run);
    }
  }

  // C, which lies in the buffer where there is one, is replaced by D. A sum with -0 is the other summand.
  static __device__ __forceinline__ void store(char* buffer, const float* acc, float scale, bool adds) {
    visit(buffer, [&](char* p, int run) {
      u32 pairs[4] = {kMinusZeros, kMinusZeros, kMinusZeros, kMinusZeros};
      if (adds) load_matrices(p, pairs);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 c = unpack(pairs[i], E());
        pairs[i] = pack(fmaf(acc[8 * run + 2 * i], scale, c.x), fmaf(acc[8 * run + 2 * i + 1], scale, c.y), E());
      }
      store_matrices(p, pairs);
    });
  }
};

// Of floats: 16 columns, so that it is as large.
template <>
struct Chunk<f32> {
  static constexpr int kCols = 16;

  static __device__ __forceinline__ void store(char* buffer, const float* acc, float scale, bool) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = warp * 16 + i % 2 * 8 + lane / 4, unit = i / 2 * 2 + lane % 4 / 2;
      *reinterpret_cast<float2*>(buffer + at(row, unit) + lane % 2 * 8) =
          make_float2(acc[2 * i] * scale, acc[2 * i + 1] * scale);
    }
  }
};

// One consumer's way from sums to memory. Every chunk is one group of the leader's stores, so that a buffer is free when
// at most kBuffers - 1 groups have still to be read.
template <class E, class T, class Shared>
struct Epilogue {
  const Gemm& g;
  Shared& s;
  const int consumer = consumer_index();
  const bool leads = threadIdx.x % kWarpgroup == 0;
  int buffer = 0;
  u32 phases = 0;  // of the buffers' barriers, a bit each

  __device__ __forceinline__ void meet() { bar_sync(1 + consumer, kWarpgroup); }
  __device__ __forceinline__ void next_buffer() { buffer = buffer + 1 == T::kBuffers ? 0 : buffer + 1; }

  // A chunk's sums, and its place in D: the consumer's rows, block after block, each from left to right.
  template <class Type>
  struct Part {
    static constexpr int kAcross = T::kCols / Chunk<Type>::kCols, kCount = T::kBlocks * kAcross;
    static __device__ __forceinline__ const float* sums(const Accumulators<T>& acc, int chunk) {
      return &acc[chunk / kAcross][chunk % kAcross * (Chunk<Type>::kCols / 2)];
    }
    static __device__ __forceinline__ int x(const Corner<T>& corner, int chunk) {
      return corner.col + chunk % kAcross * Chunk<Type>::kCols;
    }
    static __device__ __forceinline__ int y(const Corner<T>& corner, int chunk, int consumer) {
      return corner.row + (chunk / kAcross + (T::kTogether > 1 ? consumer * T::kBlocks : 0)) * kChunkRows;
    }
  };

  // Chunks of C come to the buffers ahead of need; `to` is one that is free.
  __device__ __forceinline__ void fetch(const Item& item, int chunk, int to) {
    if (!item.steps() || item.result() != Item::kAddsC) return;
    u64* arrived = &s.arrived[consumer][to];
    const Corner<T> corner(item);
    mbarrier_arrive_expect_tx(arrived, kChunkBytes);
    tensor_load(s.staging[consumer][to], &g.products[item.second()].c, Part<E>::x(corner, chunk),
                Part<E>::y(corner, chunk, consumer), arrived);
  }
  __device__ __forceinline__ void fetch_first(const Item& item) {
    if (leads)
      for (int chunk = 0; chunk < T::kBuffers; ++chunk) fetch(item, chunk, (buffer + chunk) % T::kBuffers);
  }

  // Where C is added, its chunks become those of D where they lie, with one rounding; floats are added in memory.
  template <class Type>
  __device__ __forceinline__ void store(const Accumulators<T>& acc, float scale, const Item& item, const Walk& next) {
    const TensorMap& d = g.products[item.second()].d;
    const Corner<T> corner(item);
    const bool adds = item.result() == Item::kAddsC;
    const auto refill = [&](int chunk, int to) {
      const int wanted = chunk + T::kBuffers;
      wanted < Part<E>::kCount ? fetch(item, wanted, to) : fetch(next.item(), wanted - Part<E>::kCount, to);
    };
    int before = 0;
#pragma unroll
    for (int chunk = 0; chunk < Part<Type>::kCount; ++chunk, before = buffer, next_buffer()) {
      char* const to = s.staging[consumer][buffer];
      if (adds) {
        wait(&s.arrived[consumer][buffer], phases >> buffer & 1);
        phases ^= 1u << buffer;
      } else {
        if (leads) bulk_wait_read<T::kBuffers - 1>();
        meet();
      }
      Chunk<Type>::store(to, Part<Type>::sums(acc, chunk), scale, adds);
      fence_async_proxy();
      meet();
      if (leads) {
        const int x = Part<Type>::x(corner, chunk);
        const int y = Part<Type>::y(corner, chunk, consumer) + item.part() * g.part_rows;
        item.result() == Item::kAddsFloats ? tensor_add(&d, to, x, y) : tensor_store(&d, to, x, y);
        bulk_commit();
        if (adds && chunk > 0) {
          bulk_wait_read<1>();
          refill(chunk - 1, before);
        }
      }
    }
    if (leads && adds) {
      bulk_wait_read<0>();
      refill(Part<E>::kCount - 1, before);
    } else if (leads && next.item().result() == Item::kAddsC) {
      bulk_wait_read<0>();
      fetch_first(next.item());
    }
  }

  // `next` stands at the item that this consumer does next.
  __device__ __forceinline__ void finish(const Accumulators<T>& acc, float scale, const Item& item, const Walk& next) {
    if (item.result() <= Item::kAddsC)
      store<E>(acc, scale, item, next);
    else
      store<f32>(acc, scale, item, next);
  }
};
