// Products and loads of a warp, element by element from the layouts of the PTX manual.
#pragma once
#include "device/base.cuh"

struct Lane {
  u32 a[4], b[2];
  const char* row;
};
inline Lane lanes[kContexts];
inline const Lane& lane_of_warp(int lane) { return lanes[current / 32 * 32 + lane]; }

// Element k of a row of A or a column of B, of which a register holds PerRegister neighbours.
template <class T, int PerRegister>
inline float element(const u32* registers, int k) {
  T value;
  memcpy(&value, reinterpret_cast<const char*>(registers) + k % PerRegister * sizeof(T), sizeof(T));
  return float(value);
}

template <class T, int K>
inline void multiply_in_warp(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  constexpr int kPer = 4 / sizeof(T);
  Lane& mine = lanes[current];
  memcpy(mine.a, a, sizeof a);
  mine.b[0] = b0, mine.b[1] = b1;
  sync_warp();
  const int g = current % 32 / 4, t = current % 4;
  for (int i = 0; i < 4; ++i) {
    const int row = g + 8 * (i / 2), col = 2 * t + i % 2;
    for (int k = 0; k < K; ++k) {
      const int holder = k % (K / 2) / kPer, half = k / (K / 2);
      const float x = element<T, kPer>(&lane_of_warp(row % 8 * 4 + holder).a[row / 8 + 2 * half], k);
      const float y = element<T, kPer>(&lane_of_warp(col * 4 + holder).b[half], k);
      d[i] = fmaf(x, y, d[i]);
    }
  }
  sync_warp();
}
inline void mma_m16n8k16_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  multiply_in_warp<bf16, 16>(d, a, b0, b1);
}
inline void mma_m16n8k16_f16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  multiply_in_warp<f16, 16>(d, a, b0, b1);
}
inline void mma_m16n8k8_tf32(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  multiply_in_warp<f32, 8>(d, a, b0, b1);
}

inline u32 round_to_tf32(float value) {
  u32 bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7f800000) != 0x7f800000) bits += 0x1000;
  return bits & ~0x1fffu;
}

// Calls visit(element of a row in memory, half of a register) for what this lane has of four matrices.
template <class Visit>
inline void visit_matrices(const void* row, bool transposed, Visit visit) {
  if (uintptr_t(row) % 16) die("a row of a matrix is misaligned");
  lanes[current].row = static_cast<const char*>(row);
  sync_warp();
  const int g = current % 32 / 4, t = current % 4;
  for (int i = 0; i < 4; ++i)
    for (int half = 0; half < 2; ++half) {
      const int y = transposed ? 2 * t + half : g, x = transposed ? g : 2 * t + half;
      visit(const_cast<char*>(lane_of_warp(8 * i + y).row) + 2 * x, 4 * i + 2 * half);
    }
  sync_warp();
}
template <bool Transposed>
inline void load_matrices(const void* row, u32 (&pairs)[4]) {
  visit_matrices(row, Transposed, [&](const char* element, int at) {
    memcpy(reinterpret_cast<char*>(pairs) + at, element, 2);
  });
}
inline void store_matrices_of_warp(void* row, const u32 (&pairs)[4], bool transposed) {
  visit_matrices(row, transposed, [&](char* element, int at) {
    memcpy(element, reinterpret_cast<const char*>(pairs) + at, 2);
  });
}
