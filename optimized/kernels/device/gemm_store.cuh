#pragma once
#include "device/gemm_multiply.cuh"
#include "device/ptx/barrier.cuh"
#include "device/ptx/bulk.cuh"
#include "device/ptx/matrix.cuh"

// What becomes of the sums: they leave in chunks of 64 rows of 64 bytes, two in a slot of shared memory.

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

// The same of a row of 128.
__device__ __forceinline__ int across_at(int row, int unit) { return row * 128 + ((unit ^ (row & 7)) << 4); }

// Of 2-byte elements: 64 rows of 32 columns, or of 32 rows of D where the tile lies across.
template <class E, bool Across>
struct Chunk {
  static constexpr int kCols = 32;
  static constexpr u32 kMinusZeros = 0x80008000;

  // Visits the two runs of 16 columns with the place of this lane's part.
  template <class Visit>
  static __device__ __forceinline__ void visit(Visit visit) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % 4, low = lane / 8 & 1, high = lane / 16;
#pragma unroll
    for (int run = 0; run < 2; ++run)
      visit(Across ? across_at(run * 16 + high * 8 + lane % 8, 2 * warp + low)
                   : at(warp * 16 + low * 8 + lane % 8, 2 * run + high),
            run);
  }

  // With one rounding. A sum with -0 is the other summand.
  template <bool MayAdd>
  static __device__ __forceinline__ void store(char* chunk, const float* acc, float scale, const char* c) {
    visit([&](int place, int run) {
      u32 pairs[4] = {kMinusZeros, kMinusZeros, kMinusZeros, kMinusZeros};
      if (MayAdd && c) load_matrices<Across>(c + place, pairs);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 more = MayAdd ? unpack(pairs[i], E()) : make_float2(-0.f, -0.f);
        pairs[i] = pack(fmaf(acc[8 * run + 2 * i], scale, more.x), fmaf(acc[8 * run + 2 * i + 1], scale, more.y), E());
      }
      store_matrices<Across>(chunk + place, pairs);
    });
  }
};

// Of floats: 16 columns, so that it is as large.
template <>
struct Chunk<f32, false> {
  static constexpr int kCols = 16;

  template <bool>
  static __device__ __forceinline__ void store(char* chunk, const float* acc, float scale, const char*) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = warp * 16 + i % 2 * 8 + lane / 4, unit = i / 2 * 2 + lane % 4 / 2;
      *reinterpret_cast<float2*>(chunk + at(row, unit) + lane % 2 * 8) =
          make_float2(acc[2 * i] * scale, acc[2 * i + 1] * scale);
    }
  }
};

// What a kernel can do with the sums; less is less code to fetch at the start of a launch.
struct Stores {
  static constexpr bool kAddsC = false, kFloats = false, kAcross = false;
};
struct ScaleAdds {  // the product, or the only one, whose items say so
  static constexpr bool kAddsC = true, kFloats = false, kAcross = false;
};
struct FloatResults {  // of the second product, or the only one
  static constexpr bool kAddsC = false, kFloats = true, kAcross = false;
};
// Where A are the rows of W and B those of x: rows of a tile are columns of D and C.
struct StoresAcross {
  static constexpr bool kAddsC = false, kFloats = false, kAcross = true;
};
struct ScaleAddsAcross {
  static constexpr bool kAddsC = true, kFloats = false, kAcross = true;
};

// One consumer's way from sums to memory. A slot is one group of the leader's stores, so that it is free when at most
// kSlots - 1 groups have still to be read.
// C comes in stages behind those of A and B where both consumers wait for it; where they take turns it would hold up
// the other one there, and comes to the slots ahead of need: its chunks become those of D where they lie.
template <class E, class Way, class T, class Results, class Shared>
struct Epilogue {
  static constexpr bool kInStages = Results::kAddsC && T::kTurns == 1;
  static constexpr bool kInSlots = Results::kAddsC && T::kTurns > 1;
  static_assert(!kInSlots || Way::kProducts == 1 && T::kTileChunks >= T::kSlots * kSlotChunks, "C of this item");
  static_assert(!kInSlots || T::kSlots > 1 || T::kTileChunks == kSlotChunks, "C is fetched one slot ahead");
  static_assert(!kInStages || T::kResidualStages < T::kStages, "the last stage is held until all of C is there");

  const Gemm& g;
  Shared& s;
  const int consumer = consumer_index();
  const bool leads = threadIdx.x % kWarpgroup == 0;
  int slot = 0;
  u32 phases = 0;  // of the slots' barriers, a bit each

  __device__ __forceinline__ void meet() { bar_sync(1 + consumer, kWarpgroup); }
  __device__ __forceinline__ int first_chunk() const { return T::kTogether > 1 ? consumer * T::kTileChunks / 2 : 0; }

  static __device__ __forceinline__ int residual_stages(const Item& item) {
    return kInStages && item.result() == Item::kAddsC ? T::kResidualStages : 0;
  }
  __device__ __forceinline__ const char* residual_chunk(const Place<T::kStages>& residual, int chunk) {
    const int stage = residual.stage + chunk / T::kStageChunks;
    return s.stages[stage < T::kStages ? stage : stage - T::kStages].residual(chunk % T::kStageChunks);
  }

  // C for a slot that is free. Chunks beyond the item's are those of the next one.
  __device__ __forceinline__ void fetch(const Item& item, const Walk& next, int chunk, int to) {
    const Item wanted = chunk < T::kTileChunks ? item : next.item();
    if (!wanted.steps) return;
    const Corner<T> corner(wanted);
    u64* arrived = &s.arrived[consumer][to];
    mbarrier_arrive_expect_tx(arrived, kSlotChunks * kChunkBytes);
#pragma unroll
    for (int i = 0; i < kSlotChunks; ++i) {
      const int one = (chunk + i) % T::kTileChunks;
      const int2 at = placed<Results::kAcross>(corner.col + Chunks<T>::x(one), corner.row + Chunks<T>::y(one));
      tensor_load(s.staging[consumer][to] + i * kChunkBytes, &g.products[0].c, at.x, at.y, arrived);
    }
  }
  __device__ __forceinline__ void begin(const Walk& walk) {
    if (kInSlots && leads)
      for (int i = 0; i < T::kSlots; ++i) fetch(walk.item(), walk, i * kSlotChunks, i);
  }

  // Waits until the slot is free, or has C.
  __device__ __forceinline__ void enter_slot() {
    if constexpr (kInSlots) {
      wait(&s.arrived[consumer][slot], phases >> slot & 1);
      phases ^= 1u << slot;
    } else {
      if (leads) bulk_wait_read<T::kSlots - 1>();
      meet();
    }
  }

  // `residual` is the place of the first stage of C, `next` that of the item after this one.
  template <class Type>
  __device__ __forceinline__ void store(const Accumulators<T>& acc, float scale, const Item& item,
                                        Place<T::kStages> residual, const Walk& next) {
    using Piece = Chunk<Type, Results::kAcross>;
    using Places = Chunks<T, Piece::kCols>;
    constexpr int kCount = T::kBlocks * Places::kAcross;
    static_assert(kCount % kSlotChunks == 0);
    const TensorMap& d = g.products[item.second()].d;
    const Corner<T> corner(item);
    const int first_row = T::kTogether > 1 ? consumer * T::kBlocks * kChunkRows : 0;
    const int top = corner.row + first_row;
#pragma unroll
    for (int chunk = 0; chunk < kCount; chunk += kSlotChunks) {
      char* const to = s.staging[consumer][slot];
      enter_slot();
#pragma unroll
      for (int i = 0; i < kSlotChunks; ++i) {
        const char* c = kInSlots ? to + i * kChunkBytes : nullptr;
        if (residual_stages(item)) c = residual_chunk(residual, first_chunk() + chunk + i);
        const float* sums = &acc[(chunk + i) / Places::kAcross][Places::x(chunk + i) / 2];
        Piece::template store<Results::kAddsC>(to + i * kChunkBytes, sums, scale, c);
      }
      fence_async_proxy();
      meet();
      if (leads) {
#pragma unroll
        for (int i = 0; i < kSlotChunks; ++i) {
          const int2 at = placed<Results::kAcross>(corner.col + Places::x(chunk + i), top + Places::y(chunk + i));
          if (Results::kFloats && item.result() == Item::kAddsFloats)
            tensor_add(&d, to + i * kChunkBytes, at.x, at.y);
          else
            tensor_store(&d, to + i * kChunkBytes, at.x, at.y);
        }
        bulk_commit();
        if (kInSlots && chunk > 0) {
          bulk_wait_read<1>();
          fetch(item, next, chunk + (T::kSlots - 1) * kSlotChunks, before(slot));
        }
      }
      slot = slot + 1 == T::kSlots ? 0 : slot + 1;
    }
    if (kInSlots && leads) {
      bulk_wait_read<0>();
      fetch(item, next, kCount + (T::kSlots - 1) * kSlotChunks, before(slot));
    }
    for (int i = 0; i < residual_stages(item); ++i, residual.advance()) release(&s.empty[residual.stage]);
  }
  static __device__ __forceinline__ int before(int slot) { return slot == 0 ? T::kSlots - 1 : slot - 1; }

  __device__ __forceinline__ void finish(const Accumulators<T>& acc, float scale, const Item& item,
                                         const Place<T::kStages>& residual, const Walk& next) {
    if constexpr (!Results::kFloats)
      store<E>(acc, scale, item, residual, next);
    else if (Way::kProducts == 1 || item.result() >= Item::kStoresFloats)
      store<f32>(acc, scale, item, residual, next);
    else
      store<E>(acc, scale, item, residual, next);
  }
};
