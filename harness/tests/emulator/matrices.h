// Matrices in memory, and launches of kernels on them.
#pragma once
#include <random>

#include "copies.h"

inline std::mt19937 source(1);

// rows x cols values within 1 of 0, NaN around them.
template <class T>
struct Matrix {
  std::vector<char> memory;
  int rows, cols, pitch, skipped;
  Matrix(int rows, int cols, int padding, int skipped)
      : rows(rows), cols(cols), pitch(cols + padding), skipped(skipped) {
    memory.assign((size_t(max(rows, 1)) * max(pitch, 1) + skipped) * sizeof(T) + 128, char(0xff));
    std::uniform_real_distribution<float> values(-1, 1);
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < cols; ++j) at(i, j) = T(values(source));
    readable.push_back(extent(rows));
  }
  Matrix(const Matrix&) = delete;
  T* data() { return reinterpret_cast<T*>((uintptr_t(memory.data()) + 63) / 64 * 64) + skipped; }
  std::pair<const char*, const char*> extent(int rows) {
    const T* const end = data() + (rows && cols ? size_t(rows - 1) * pitch + cols : 0);
    return {reinterpret_cast<const char*>(data()), reinterpret_cast<const char*>(end)};
  }
  T& at(int i, int j) { return data()[size_t(i) * pitch + j]; }
  bool fits(int size) { return uintptr_t(data()) % size == 0 && (rows < 2 || pitch * sizeof(T) % size == 0); }
  int unit() { return fits(16) ? 16 : fits(4) ? 4 : sizeof(T); }
  int run() { return fits(4 * sizeof(T)) ? 4 : fits(2 * sizeof(T)) ? 2 : 1; }
};

template <class Body>
void launch(int grid, Body body, bool reversed) {
  gridDim.x = grid;
  for (int block = 0; block < grid; ++block) {
    for (auto& mine : copy_groups) mine.clear();
    run_cta(block, body, reversed);
    for (const auto& mine : copy_groups)
      for (const auto& group : mine)
        if (!group.empty()) die("a copy has not been waited for");
    for (const auto& mine : copies_asked)
      if (!mine.empty()) die("a copy is in no group");
  }
}
