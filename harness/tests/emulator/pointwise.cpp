// Runs kernels/pointwise.cu on matrices of every access, tail and pitch; prints what is wrong.
#include "emulator.h"
#include "pointwise.cu"
#include "matrices.h"

int wrong = 0, checked = 0;

enum Result { kApart, kInA, kInB };

// `spread`: elements more than a row has from a row of A, of B and of the result to the next; rows may be one.
template <class Op, class T, int N>
void check(int rows, int cols, const int (&spread)[3], int grid, Result result) {
  Matrix<T> a(rows, cols, spread[0], 0), b(rows, cols, spread[1], 0), apart(rows, cols, spread[2], 0);
  Matrix<T>& y = result == kInA ? a : result == kInB ? b : apart;
  const float factor = 0.37f;
  std::vector<T> wanted;
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < cols; ++j) wanted.push_back(T(Op::apply(float(a.at(i, j)), float(b.at(i, j)), factor)));
  const std::vector<char> start = y.memory;
  launch(grid, [&] {
    pointwise<Op, T, N>({a.data(), Op::kSecond ? b.data() : nullptr, y.data(), factor, 0, rows, cols, a.pitch, b.pitch,
                         y.pitch});
  }, checked & 1);

  std::vector<char> elsewhere = y.memory;
  bool same = true;
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < cols; ++j) {
      same &= !memcmp(&y.at(i, j), &wanted[size_t(i) * cols + j], sizeof(T));
      const size_t at = reinterpret_cast<char*>(&y.at(i, j)) - y.memory.data();
      memcpy(&elsewhere[at], &start[at], sizeof(T));
    }
  ++checked, wrong += !(same && elsewhere == start);
  if (!same || elsewhere != start)
    printf("%s: %d of %zu bytes, rows %d cols %d grid %d\n", same ? "written beside y" : "wrong", N, sizeof(T), rows, cols,
           grid);
}

template <class T, int N>
void all() {
  constexpr int kTile = kThreads * kBytes / sizeof(T);  // elements of a CTA
  const int flat[] = {1, N, kTile - 1, kTile, 2 * kTile + N, 3 * kTile + N + 1};
  for (const int cols : flat)
    for (const int grid : {1, 2, 5}) {
      check<Add, T, N>(1, cols, {0, 0, 0}, grid, Result(checked % 3));
      check<Scale, T, N>(1, cols, {0, 0, 0}, grid, Result(checked % 2));
    }
  const int short_of = N > 1 ? 1 : 0;  // a pitch is a multiple of N, the columns are not
  for (const int runs : {1, 3, 130, 700})
    for (const int less : {0, short_of}) {
      const int spread[3] = {less, less + N, less + 3 * N};
      check<Add, T, N>(5, runs * N - less, spread, 3, Result(checked % 3));
      check<Scale, T, N>(7, runs * N - less, spread, 2, Result(checked % 2));
    }
}

int main() {
  all<bf16, 8>(), all<bf16, 4>(), all<bf16, 2>(), all<bf16, 1>();
  all<f16, 8>();
  all<f32, 4>(), all<f32, 2>(), all<f32, 1>();
  printf("%d of %d checks failed\n", wrong, checked);
  return wrong != 0;
}
