#pragma once
#include "device/gemm_general_mma.cuh"

// 16 or 32 rows of W by 8 or 16 rows of x, one CTA's: the rows of W are those of the mma's A, the rows of x the columns
// of its B. K goes to the eight warps by turns of kTurn elements, in the same order for either size, so that a row of D
// is the same whatever other rows there are.
//
// Of each row that a lane works on it copies 16 bytes of a turn, eight neighbours along K, to shared memory and back to
// its registers: the first four for one mma, the others for the next. Which of K's elements an mma takes for which of
// its own matters to none, as long as A and B agree. Nobody else reads what a lane has copied, so that nobody waits.
template <class T, int Blocks>
struct Skinny {
  static constexpr int kWarps = kThreads / kWarp, kTurn = 32, kTurns = 2 / Blocks;  // turns of a stage
  static constexpr int kCtas = 4 - Blocks, kStages = 2 + Blocks;  // of an SM; that its shared memory then holds
  static constexpr int kDepth = kTurns * kWarps * kTurn, kHigh = 16 * Blocks, kWide = 8 * Blocks;
  static constexpr int kPitch = kHigh + 4;  // of sums, so that lanes store to different banks

  struct Turn {
    Vec<u32, 4> w[2 * Blocks][kThreads], x[Blocks][kThreads];
  };
  struct Stage {
    Turn turns[kTurns];
  };
  struct Sums {
    float of[kWarps][kWide][kPitch];
  };
  static_assert(sizeof(Sums) <= kStages * sizeof(Stage));

  const int warp = threadIdx.x / kWarp, g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
  const T *w[2 * Blocks], *x[Blocks];  // this lane's part of the next stage
  i64 left;                            // elements from there to the end of K
  float sum[Blocks][Blocks][4] = {};

  // A row that does not exist is another one: what comes of it is not stored.
  __device__ __forceinline__ Skinny(const General& p, i64 first) {
    const int k = warp * kTurn + 8 * t;
    left = p.k - k;
#pragma unroll
    for (int i = 0; i < 2 * Blocks; ++i)
      w[i] = static_cast<const T*>(p.b) + min(first + 8 * i + g, p.n - 1) * p.b_pitch + k;
#pragma unroll
    for (int i = 0; i < Blocks; ++i)
      x[i] = static_cast<const T*>(p.a) + min(i64(8 * i + g), p.m - 1) * p.a_pitch + k;
  }

  // Zeros for what lies behind K. W comes once, and leaves the L1 to x, which all CTAs of an SM read.
  __device__ __forceinline__ void load(Stage& stage) {
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      constexpr int kStep = kWarps * kTurn;
      const int bytes = int(max(i64(0), min(i64(8), left - i * kStep))) * int(sizeof(T));
#pragma unroll
      for (int j = 0; j < 2 * Blocks; ++j)
        copy_async_16_of_stream(&stage.turns[i].w[j][threadIdx.x], w[j] + i * kStep, bytes);
#pragma unroll
      for (int j = 0; j < Blocks; ++j) copy_async_16_by_l1(&stage.turns[i].x[j][threadIdx.x], x[j] + i * kStep, bytes);
    }
#pragma unroll
    for (int j = 0; j < 2 * Blocks; ++j) w[j] += kDepth;
#pragma unroll
    for (int j = 0; j < Blocks; ++j) x[j] += kDepth;
    left -= kDepth;
  }

  __device__ __forceinline__ void multiply(const Stage& stage) {
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      Vec<u32, 4> a[2 * Blocks], b[Blocks];
#pragma unroll
      for (int j = 0; j < 2 * Blocks; ++j) a[j] = stage.turns[i].w[j][threadIdx.x];
#pragma unroll
      for (int j = 0; j < Blocks; ++j) b[j] = stage.turns[i].x[j][threadIdx.x];
#pragma unroll
      for (int half = 0; half < 4; half += 2)
#pragma unroll
        for (int high = 0; high < Blocks; ++high) {
          const Vec<u32, 4>&top = a[2 * high], &low = a[2 * high + 1];
          const u32 rows[4] = {top.lane[half], low.lane[half], top.lane[half + 1], low.lane[half + 1]};
#pragma unroll
          for (int wide = 0; wide < Blocks; ++wide)
            Mma<T>::add(sum[high][wide], rows, b[wide].lane[half], b[wide].lane[half + 1]);
        }
    }
  }

  // The warps' sums are added in order. The memory is that of the stages, which nobody needs any more.
  template <class Epilogue>
  __device__ __forceinline__ void finish(const General& p, float alpha, i64 first, Sums& sums) const {
#pragma unroll
    for (int high = 0; high < Blocks; ++high)
#pragma unroll
      for (int wide = 0; wide < Blocks; ++wide)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          sums.of[warp][8 * wide + 2 * t + i % 2][16 * high + 8 * (i / 2) + g] = sum[high][wide][i];
    __syncthreads();
    const int row = threadIdx.x / (kHigh / 2), col = threadIdx.x % (kHigh / 2) * 2;  // of D
    if (row >= kWide || row >= p.m) return;
    Floats<2> total = Floats<2>::filled(0.f);
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      total[0] += sums.of[i][row][col];
      total[1] += sums.of[i][row][col + 1];
    }
    put<Epilogue>(p, alpha, total, row, first + col);
  }
};
