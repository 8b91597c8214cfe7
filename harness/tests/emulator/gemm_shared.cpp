// Runs gemm_general.cu's exact float32 with tiles that the two CTAs of a cluster share: `emulated SEED`. Prints what is
// wrong.
#include "cluster.h"
#define dynamic_shared of_the_gpu
#include "device/base.cuh"
#undef dynamic_shared
#define dynamic_shared shared_memory_of_cta
#define blockIdx (Dimensions{unsigned(block + cta())})
inline int block = 0;  // the first of the cluster
#include "gemm_general.cu"
#undef blockIdx
#include "matrices.h"

constexpr int kM = 64, kN = 64;
int wrong = 0;

struct Product {
  int m, n, k;
  Matrix<f32> a, b, d;
  std::vector<double> wanted;
  float factor = 0.5f;

  // Its operands lie along K, or both across.
  Product(int m, int n, int k, bool across)
      : m(m), n(n), k(k), a(across ? k : m, across ? m : k, 0, 0), b(across ? k : n, across ? n : k, 0, 0),
        d(m, n, 0, 0) {
    for (int i = 0; i < m; ++i)
      for (int j = 0; j < n; ++j) {
        double sum = 0;
        for (int q = 0; q < k; ++q)
          sum += double(across ? a.at(q, i) : a.at(i, q)) * (across ? b.at(q, j) : b.at(j, q));
        wanted.push_back(0.75 * sum + d.at(i, j));
      }
  }
  int tiles() const { return (m + kM - 1) / kM * ((n + kN - 1) / kN); }
  Pointers pointers() { return {a.data(), b.data(), d.data(), d.data(), &factor, 1.5f, 0}; }
  Shape shape() { return {a.pitch, b.pitch, d.pitch, d.pitch, m, n, k, a.unit(), b.unit(), d.run(), tiles()}; }
  void check() {
    for (int i = 0; i < m; ++i)
      for (int j = 0; j < n; ++j)
        wrong += !(std::fabs(d.at(i, j) - wanted[i * n + j]) <= 1e-5 * (1 + std::fabs(wanted[i * n + j])));
  }
};

template <class Body>
void launch_clusters(int ctas, int seed, Body body) {
  blockDim.x = kContexts / kCtas, gridDim.x = ctas;
  for (block = 0; block < ctas; block += kCtas) {
    begin_cluster();
    unsigned left[kCtas] = {};  // threads that have; the memory of a CTA goes with its last
    for (auto& mine : copy_groups) mine.clear();
    run_cta(block, [&] {
      for (int i = 0; i < 300 && cta() == (seed + block) % 3; ++i) yield();  // one of them, or none, begins late
      body();
      if (++left[cta()] == blockDim.x) memset(shared_memory_of_cta(), 0xff, kSharedBytes);
    }, seed % 2);
    end_cluster();
  }
}

int main(int, char** arguments) {
  const int seed = atoi(arguments[1]);
  source.seed(seed), random_source.seed(seed), copies_are_late = seed % 2;
  using Along = Simt<AlongK, AlongK, kM, kN, true>;
  using Alone = Simt<Across, Across, kM, kN>;
  using Shares = Simt<Across, Across, kM, kN, true>;
  for (const auto& [m, n, k] : {std::array{70, 40, 200}, {64, 64, 16}, {3, 130, 70}, {5, 8, 0}}) {
    Product y(m, n, k, false);
    const General g{y.pointers(), y.shape()};
    launch_clusters(kCtas * y.tiles(), seed, [&] { gemm_general<Along, ScaleAdd<f32>>(g); });
    y.check();

    Product first(m, n, k, false), second(n, 60, 90, true);  // the first's tiles are shared
    const Pair pair{{first.pointers(), second.pointers()}, {first.shape(), second.shape()}};
    launch_clusters(kCtas * first.tiles() + (second.tiles() + 1) / kCtas * kCtas, seed,
                    [&] { gemm_general_pair<Along, ScaleAdd<f32>, Alone, ScaleAdd<f32>>(pair); });
    first.check(), second.check();

    Product whole(m, 60, 33, true), shared(n, m, k, true);  // the second's are
    const Pair other{{whole.pointers(), shared.pointers()}, {whole.shape(), shared.shape()}};
    launch_clusters((whole.tiles() + 1) / kCtas * kCtas + kCtas * shared.tiles(), seed,
                    [&] { gemm_general_pair<Alone, ScaleAdd<f32>, Shares, ScaleAdd<f32>>(other); });
    whole.check(), shared.check();
  }
  printf("%d wrong\n", wrong);
  return wrong != 0;
}
