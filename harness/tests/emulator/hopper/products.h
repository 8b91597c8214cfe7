// Products of a warpgroup, whose operands are read at once or as late as they may be: layouts of the PTX manual.
#pragma once
#include "cluster.h"

template <class E, int Across>
inline float operand(const char* memory, u64 descriptor, int row, int k) {
  const u32 start = (descriptor & 0x3FFF) << 4, leading = (descriptor >> 16 & 0x3FFF) << 4;
  const u32 stride = (descriptor >> 32 & 0x3FFF) << 4;
  const u32 at = start + (Across ? row / 64 * leading + k / 8 * stride + k % 8 * 128 + row % 64 * 2
                                 : row / 8 * stride + row % 8 * 128 + k * 2);
  E value;
  memcpy(&value, memory + (at ^ (at >> 7 & 7) << 4), 2);
  return float(value);
}

inline bool fenced[kContexts];
inline std::vector<Work> open_products[kContexts];
inline std::deque<std::vector<Work>> committed[kContexts];
inline void run(std::vector<Work>& products) {
  for (const Work& product : products) product();
  products.clear();
}

template <int AcrossA, int AcrossB, class E, int Count>
inline void wgmma(E, float (&d)[Count], u64 a, u64 b, u32 add) {
  if (a >> 62 != 1 || b >> 62 != 1) die("a swizzle that is not of 128 bytes");
  if (!fenced[current]) die("a product of registers that may not have been written");
  const Work product = [=, &d, memory = shared_memory_of_cta()] {
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 % 4 * 16 + lane / 4;
    float rows[2][16];
    for (int i = 0; i < 32; ++i) rows[i / 16][i % 16] = operand<E, AcrossA>(memory, a, first + i / 16 * 8, i % 16);
    for (int i = 0; i < Count; i += 4)
      for (int j = 0; j < 2; ++j) {
        float sums[2] = {add ? d[i + j] : 0.f, add ? d[i + 2 + j] : 0.f};
        for (int k = 0; k < 16; ++k) {
          const float of_b = operand<E, AcrossB>(memory, b, 2 * i + 2 * (lane % 4) + j, k);
          for (int half = 0; half < 2; ++half) sums[half] = fmaf(rows[half][k], of_b, sums[half]);
        }
        d[i + j] = sums[0], d[i + 2 + j] = sums[1];
      }
  };
  open_products[current].push_back(product);
  if (chance(2)) {
    for (auto& group : committed[current]) run(group);
    run(open_products[current]);
  }
}
inline void wgmma_fence() { fenced[current] = true; }
inline void wgmma_commit() {
  fenced[current] = false;
  committed[current].push_back(open_products[current]);
  open_products[current].clear();
}
template <int Groups>
inline void wgmma_wait() {
  be_held_up(Groups ? 64 : 4);
  for (auto& mine = committed[current]; int(mine.size()) > Groups; mine.pop_front()) run(mine.front());
  sync_warp();
}
inline void pin(float&) {}
