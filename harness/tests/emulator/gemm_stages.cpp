// Runs the loads and the products of many items of work; prints how often a stage had other than what was to be read.
#include <unistd.h>

#include "emulator.h"
#include "device/gemm_load.cuh"
#include "device/gemm_multiply.cuh"

using T = TILE;
using Shared = GemmShared<T>;
struct Sides {
  using A = KMajor;
  using B = KMajor;
};

std::vector<Item> items;

void produce(const Gemm& g, Shared& s, int warp) {
  if (warp >= kLoaders) return;
  Loader<T, Shared> loader(g, s, warp);
  for (const Item& item : items) loader.item<Sides>(item, g.products[0], 1 << 30, 1 << 30);
  loader.drain();
}

void consume(Shared& s) {
  Turn<T> turn;
  Place<T::kStages> place;
  size_t i = 0;
  if (T::kTurns > 1 && consumer_index() > 0) place.skip(items[i++].steps);
  static float sums[T::kBlocks][T::kCols / 2];
  for (; i < items.size(); i += T::kTurns) {
    readers[current].item = i, readers[current].step = 0;
    multiply<bf16, Sides, T>(sums, s, place, turn, items[i].steps, 0);
    if (T::kTurns > 1 && i + 1 < items.size()) place.skip(items[i + 1].steps);
  }
}

int main() {
  alarm(10);  // for those who wait for each other
  Shared& s = *reinterpret_cast<Shared*>(swizzled);
  for (int i = 0; i < T::kStages; ++i) {
    mbarrier_init(&s.full[i], 1);
    mbarrier_init(&s.empty[i], kClusterCtas * T::kTogether * kWarpgroup / kWarp);
  }
  for (int i = 0; i < 16; ++i) {
    const int steps = 1 + int(random_source() % (i % 4 ? 2 * T::kStages : 3));
    items.push_back({i * T::kRows, i * T::kCols, steps, i % 3 ? 0 : 2});
  }
  Gemm g{};
  g.products[0].a = {T::kRows / 2}, g.products[0].b = {T::kCols / 2};
  run_cta(0, [&] {
    const int warp = __shfl_sync(~0u, threadIdx.x / kWarp, 0);
    warp < kWarpgroup / kWarp ? produce(g, s, warp) : consume(s);
  }, false);
  printf("%d of %d reads wrong\n", wrong, read_count);
  return wrong != 0;
}
