// Runs kernels/gemm.cu, all clusters of a launch one after the other: `emulated JOB SEED`, of a file that has the
// kernel's argument and behind it the memory that pointers are offsets to, which is written back. The seed says who is
// held up.
#include <fstream>
#include <iterator>

#include "cluster.h"
#define swizzled_shared of_the_gpu
#include "device/gemm_stages.cuh"
#undef swizzled_shared
#define swizzled_shared shared_memory_of_cta
#include "gemm.cu"

int main(int, char** arguments) {
  random_source.seed(atoi(arguments[2]));
  std::ifstream file(arguments[1], std::ios::binary);
  const std::vector<char> job{std::istreambuf_iterator<char>(file), {}};
  Gemm g;
  memcpy(&g, job.data(), sizeof g);
  std::vector<char> memory(job.size() - sizeof g + 256);
  char* const base = reinterpret_cast<char*>((uintptr_t(memory.data()) + 255) / 256 * 256);
  memcpy(base, job.data() + sizeof g, job.size() - sizeof g);
  for (Product& p : g.products)
    for (TensorMap* map : {&p.a, &p.b, &p.c, &p.d, &p.a_edge, &p.b_edge}) map->address += uintptr_t(base);
  g.items = reinterpret_cast<const Item*>(base + uintptr_t(g.items));
  if (g.factor) g.factor = reinterpret_cast<const float*>(base + uintptr_t(g.factor));

  blockDim.x = kGemmThreads;
  for (int cluster = 0; cluster < g.clusters; ++cluster) {
    begin_cluster();
    run_cta(kClusterCtas * cluster, [&] { be_held_up(4), KERNEL(g); }, cluster % 2);
    end_cluster();
    for (int i = 0; i < kContexts; ++i)
      if (!groups[i].empty() || !asked[i].empty() || !committed[i].empty()) die("an end before all has been read");
  }
  std::ofstream(arguments[1], std::ios::binary).write(job.data(), sizeof g).write(base, job.size() - sizeof g);
  return 0;
}
