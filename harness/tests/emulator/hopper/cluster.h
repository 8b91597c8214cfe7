// The two CTAs of a cluster at once: their shared memory, and barriers that count arrivals and bytes. Copies and
// products happen behind a thread's back, sooner or later, and anybody may be held up for long.
#pragma once
#include <deque>
#include <random>

#include "warps.h"
#include "lanes.h"

constexpr int kCtas = 2, kSharedBytes = 1 << 18;
alignas(1024) inline char shared_memory[kCtas][kSharedBytes];
inline int cta() { return current / blockDim.x; }
inline char* shared_memory_of_cta() { return shared_memory[cta()]; }

// What arrives in shared memory from elsewhere: soon, or when nothing else happens.
using Work = std::function<void()>;
inline std::vector<Work> arriving, late;
inline std::mt19937 random_source(1);
inline bool chance(int one_of) { return random_source() % one_of == 0; }
inline void arrives(Work work) { (chance(8) ? late : arriving).push_back(work); }
inline int turns = 0, events = 0;  // turns since the last event
inline void yield() {
  if (++turns > 5'000'000) die("everybody waits");
  auto& works = turns > 10 * kContexts && !late.empty() ? late : arriving;
  if (!works.empty() && chance(100)) {
    std::swap(works[random_source() % works.size()], works.back());
    const Work work = works.back();
    works.pop_back();
    work();
  }
  swapcontext(&contexts[current].state, &scheduler);
}
// Now and then, until nothing else has happened for a while, short or long.
inline void be_held_up(int one_of) {
  if (current % 32 != 0 || !chance(one_of)) return;
  const int limit = chance(2) ? 3 : 30;
  for (int quiet = 0, seen = events; quiet < limit; ++quiet, yield())
    if (seen != events) quiet = 0, seen = events;
}

// Addresses in shared memory, as numbers; those of a certain CTA are mapped.
constexpr u32 kMapped = 1 << 30;
inline u32 shared_address(const void* p) {
  const i64 offset = static_cast<const char*>(p) - shared_memory_of_cta();
  if (offset < 0 || offset >= kSharedBytes) die("an address that is not in the CTA's shared memory");
  return offset;
}
inline u32 map_shared(u32 address, u32 rank) { return kMapped + rank * kSharedBytes + address; }
inline u32 cluster_rank() { return cta(); }
inline u32 cluster_size() { return kCtas; }

struct Phases {
  int arrivals = 0, pending = 0, bytes = 0;
  long phase = 0, known = 0;  // ended ones, and those that somebody has waited for
  void arrive(int count, int more_bytes) {
    turns = 0, ++events, pending -= count, bytes += more_bytes;
    if (!arrivals || pending < 0) die("an arrival that a barrier does not expect");
    if (pending == 0 && bytes == 0) pending = arrivals, ++phase;
  }
};
inline Phases barriers[kCtas * kSharedBytes / 8];
inline Phases& barrier_at(u32 mapped) { return barriers[(mapped - kMapped) / 8]; }
inline u32 mapped_barrier(u64* barrier) { return map_shared(shared_address(barrier), cta()); }
inline void mbarrier_init(u64* barrier, u32 arrivals) {
  barrier_at(mapped_barrier(barrier)) = {int(arrivals), int(arrivals)};
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive(u64* barrier) { barrier_at(mapped_barrier(barrier)).arrive(1, 0); }
inline void mbarrier_arrive_cluster(u32 mapped) { arrives([=] { barrier_at(mapped).arrive(1, 0); }); }
inline void mbarrier_arrive_expect_tx(u64* barrier, u32 bytes) {
  barrier_at(mapped_barrier(barrier)).arrive(1, bytes);
}
inline bool mbarrier_try_wait(u64* barrier, u32 parity) {
  Phases& of = barrier_at(mapped_barrier(barrier));
  if (of.phase % 2 == parity) return yield(), false;
  of.known = of.phase;
  return true;
}

inline bool mbarrier_try_wait_cluster(u64* barrier, u32 parity) {
  if (!mbarrier_try_wait(barrier, parity)) return false;
  be_held_up(8);
  return true;
}
inline void store_async(u32 mapped, float value, u32 barrier) {
  be_held_up(64);
  arrives([=] {
    memcpy(shared_memory[0] + (mapped - kMapped), &value, sizeof value);
    barrier_at(barrier).arrive(0, -int(sizeof value));
  });
}

inline float4 load_cluster(u32 mapped) {
  float4 values;
  memcpy(&values, shared_memory[0] + (mapped - kMapped), sizeof values);
  be_held_up(64);
  return values;
}

inline Barrier cta_barriers[kCtas];
inline void sync_cta() { cta_barriers[cta()].wait(blockDim.x); }
#define __syncthreads sync_cta
inline Barrier named_barriers[kCtas][16];
inline void bar_sync(int id, int threads) { named_barriers[cta()][id].wait(threads); }
inline void bar_arrive(int id, int threads) {
  Barrier& b = named_barriers[cta()][id];
  if (++b.arrived == threads) b.arrived = 0, ++b.generation;
}
inline void begin_cluster() {
  memset(shared_memory, 0xff, sizeof shared_memory);  // NaN
  std::fill(std::begin(barriers), std::end(barriers), Phases());
  for (auto& of_cta : named_barriers) std::fill(std::begin(of_cta), std::end(of_cta), Barrier());
}
inline void end_cluster() {
  const auto at_rest = [](const Phases& of) { return of.pending == of.arrivals && !of.bytes && of.known == of.phase; };
  if (!arriving.empty() || !late.empty() || !std::all_of(std::begin(barriers), std::end(barriers), at_rest))
    die("an end before all is known to have arrived");
}
inline Barrier cluster_barrier;
inline long met[kContexts];
inline void cluster_arrive_relaxed() {
  met[current] = cluster_barrier.generation;
  if (++cluster_barrier.arrived == kContexts) cluster_barrier.arrived = 0, ++cluster_barrier.generation;
}
inline void cluster_arrive() { cluster_arrive_relaxed(); }
inline void cluster_wait() {
  while (cluster_barrier.generation == met[current]) yield();
}

inline bool elect() {
  sync_warp();
  be_held_up(64);
  return current % 32 == 0;
}
