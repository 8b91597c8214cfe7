// Barriers that count arrivals and bytes, loads that are there at once, products that read as long as they are awaited,
// by one CTA of a cluster whose other one does the same at the same time. Anybody may be held up for long.
#pragma once
#include <map>
#include <random>
#include <vector>

#include "device/base.cuh"

struct int2 { int x, y; };
struct int4 { int x, y, z, w; };
inline int2 make_int2(int x, int y) { return {x, y}; }
template <class V>
inline V __ldg(const V* p) { return *p; }
inline int told[kContexts];
inline int __shfl_sync(unsigned, int value, int lane) {
  told[current] = value;
  sync_warp();
  const int other = told[current / 32 * 32 + lane];
  sync_warp();
  return other;
}
inline void __syncwarp() { sync_warp(); }

inline std::mt19937 random_source(1);
inline void yield() { swapcontext(&contexts[current].state, &scheduler); }
inline void be_held_up(int one_of) {
  if (current % 32 == 0 && random_source() % one_of == 0)
    for (int i = random_source() % 100; i > 0; --i) yield();
}

// Shared memory.
alignas(1024) inline char swizzled[1 << 18];
inline u32 shared_address(const void* p) { return static_cast<const char*>(p) - swizzled; }

struct State {
  int count, pending, bytes;
  long phase;
};
inline std::map<u32, State> barriers;
inline void settle(State& b) {
  if (b.pending == 0 && b.bytes == 0) b.pending = b.count, ++b.phase;
}
inline void mbarrier_init(u64* barrier, u32 arrivals) {
  barriers[shared_address(barrier)] = {int(arrivals), int(arrivals), 0, 0};
}
inline void mbarrier_arrive_cluster(u32 barrier) { --barriers[barrier].pending, settle(barriers[barrier]); }
inline void mbarrier_arrive_expect_tx(u64* barrier, u32 bytes) {
  State& b = barriers[shared_address(barrier)];
  b.bytes += bytes, --b.pending, settle(b);
}
inline bool mbarrier_try_wait(u64* barrier, u32 parity) {
  if (barriers[shared_address(barrier)].phase % 2 != parity) return true;
  yield();
  return false;
}

inline u32 cluster_rank() { return 0; }
inline u32 map_shared(u32 address, u32) { return address; }
inline Barrier named_barriers[16];
inline void bar_sync(int id, int threads) { named_barriers[id].wait(threads); }
inline void bar_arrive(int id, int threads) {
  Barrier& b = named_barriers[id];
  if (++b.arrived == threads) b.arrived = 0, ++b.generation;
}
inline bool elect() {
  sync_warp();
  be_held_up(64);
  return current % 32 == 0;
}

// A box of `rows` rows of 128 bytes; every int of it says which rows of K it has.
struct TensorMap { int rows; };
inline void tensor_load(void* shared, const TensorMap* map, int x, int y, u64* barrier, int times = 1) {
  const int bytes = times * map->rows * 128;
  std::fill_n(static_cast<int*>(shared), bytes / 4, x / 64 + 1000 * (y / (2 * map->rows)));
  State& b = barriers[shared_address(barrier)];
  b.bytes -= bytes, settle(b);
}
// The other CTA brings the other half.
inline void tensor_load_multicast(void* shared, const TensorMap* map, int x, int y, u64* barrier, unsigned short) {
  tensor_load(shared, map, x, y, barrier, 2);
}

inline int wrong = 0, read_count = 0;
struct Reader {
  int item, step = 0, products = 0;
  std::vector<std::pair<u32, int>> open, committed[2];  // what is read, and what is there
};
inline std::vector<Reader> readers(kContexts);
inline int there(u32 at) { return *reinterpret_cast<const int*>(swizzled + at); }
template <int TransA, int TransB, class E, int N>
inline void wgmma(E, float (&)[N], u64 a, u64 b, u32) {
  Reader& r = readers[current];
  for (u64 operand : {a, b}) {
    const u32 at = (operand & 0x3FFF) << 4;
    ++read_count, wrong += there(at) != 1000 * r.item + r.step;
    r.open.emplace_back(at, there(at));
  }
}
inline void wgmma_fence() {}
inline void wgmma_commit() {
  Reader& r = readers[current];
  r.committed[r.step++ % 2].swap(r.open);
}
template <int Groups>
inline void wgmma_wait() {
  be_held_up(Groups ? 64 : 4);
  Reader& r = readers[current];
  for (int i = Groups; i < 2; ++i) {
    auto& group = r.committed[(r.step + 1 - i) % 2];
    for (auto [at, tag] : group) wrong += there(at) != tag;
    group.clear();
  }
}
inline void pin(float&) {}
