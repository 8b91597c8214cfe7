// Boxes of tensors, from and to shared memory, with the swizzle of the PTX manual.
#pragma once
#include "cluster.h"

struct alignas(64) TensorMap {
  char* address;
  i64 rows, cols, pitch_bytes;
  int size, box_rows, box_cols, row_bytes;  // bytes of an element; of a row of the box, also the swizzle's
  char unused[72];
};
static_assert(sizeof(TensorMap) == 128);
inline void prefetch_map(const TensorMap*) {}

// Calls visit(in shared memory, in the tensor or null) for each element of the box at column x of row y.
template <class Visit>
inline void visit_box(const TensorMap& map, char* memory, u32 place, int x, int y, Visit visit) {
  if (map.box_cols * map.size != map.row_bytes || map.row_bytes % 64) die("a box of a wrong size");
  if (place % 128 || uintptr_t(map.address) % 16 || map.pitch_bytes % 16) die("a box or its tensor is misaligned");
  for (int i = 0; i < map.box_rows; ++i)
    for (int j = 0; j < map.box_cols; ++j) {
      const u32 at = place + i * map.row_bytes + j * map.size;
      const bool inside = x + j >= 0 && x + j < map.cols && y + i >= 0 && y + i < map.rows;
      visit(memory + (at ^ (at >> 7 & (map.row_bytes == 128 ? 7 : 3)) << 4),
            inside ? map.address + (y + i) * map.pitch_bytes + (x + j) * map.size : nullptr);
    }
}

inline void load_to(int to, const TensorMap& map, u32 place, int x, int y, u32 barrier) {
  arrives([=] {
    visit_box(map, shared_memory[to], place, x, y, [&](char* shared, const char* element) {
      element ? memcpy(shared, element, map.size) : memset(shared, 0, map.size);
    });
    barrier_at(map_shared(barrier, to)).arrive(0, -map.box_rows * map.row_bytes);
  });
}
inline void tensor_load(void* shared, const TensorMap* map, int x, int y, u64* barrier) {
  load_to(cta(), *map, shared_address(shared), x, y, shared_address(barrier));
}
inline void tensor_load_multicast(void* shared, const TensorMap* map, int x, int y, u64* barrier, unsigned ctas) {
  for (int to = 0; to < kCtas; ++to)
    if (ctas >> to & 1) load_to(to, *map, shared_address(shared), x, y, shared_address(barrier));
}

// What a thread has written by rows of a matrix, and the copy engine may not see yet.
inline std::vector<u32> unfenced[kContexts];
inline void fence_async_proxy() { unfenced[current].clear(); }
inline void check_fenced(u32 begin, u32 end) {
  for (u32 i = 0; i < blockDim.x; ++i)
    for (const u32 at : unfenced[cta() * blockDim.x + i])
      if (at >= begin && at < end) die("a store of what the copy engine may not see");
}

// Stores read shared memory when they are asked for, or as late as they may.
inline std::vector<Work> asked[kContexts];
inline std::deque<std::vector<Work>> groups[kContexts];
template <class Put>
inline void leave(const TensorMap* map, const void* shared, int x, int y, Put put) {
  check_fenced(shared_address(shared), shared_address(shared) + map->box_rows * map->row_bytes);
  const Work store = [=, memory = shared_memory_of_cta(), place = shared_address(shared)] {
    visit_box(*map, memory, place, x, y, [&](const char* from, char* element) {
      if (element) put(element, from, map->size);
    });
  };
  chance(2) ? store() : asked[current].push_back(store);
}
inline void tensor_store(const TensorMap* map, const void* shared, int x, int y) {
  leave(map, shared, x, y, [](char* to, const char* from, int size) { memcpy(to, from, size); });
}
inline void tensor_add(const TensorMap* map, const void* shared, int x, int y) {
  leave(map, shared, x, y, [](char* to, const char* from, int) {
    *reinterpret_cast<float*>(to) += *reinterpret_cast<const float*>(from);
  });
}
inline void bulk_commit() {
  groups[current].push_back(asked[current]);
  asked[current].clear();
}
template <int Groups>
inline void bulk_wait_read() {
  be_held_up(16);
  for (auto& mine = groups[current]; int(mine.size()) > Groups; mine.pop_front())
    for (const Work& store : mine.front()) store();
}
