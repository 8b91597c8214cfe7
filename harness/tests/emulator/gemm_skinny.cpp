// Runs kernels/gemm_skinny.cu on matrices of every number of rows, tail and pitch; prints what is wrong.
#include "emulator.h"
#include "gemm_skinny.cu"
#include "matrices.h"

int wrong = 0, checked = 0;

void check(bool right, const char* what, const General& p) {
  ++checked, wrong += !right;
  if (!right) printf("%s: m %lld n %lld k %lld, run %d\n", what, p.m, p.n, p.k, p.run);
}

// The first rows of x, and W.
template <class T>
struct Problem {
  Matrix<T> x, w;
  int n, k;
  Problem(int n, int k, int padding)
      : x(16, k, (8 - k % 8) % 8 + padding, 0), w(n, k, (8 - k % 8) % 8 + padding, 0), n(n), k(k) {}

  double product(int i, int j) {
    double sum = 0;
    for (int q = 0; q < k; ++q) sum += double(float(x.at(i, q))) * float(w.at(j, q));
    return sum;
  }

  template <class Epilogue>
  void run(int m, Matrix<typename Epilogue::type>& d, double allowed) {
    using D = typename Epilogue::type;
    constexpr bool kAdds = std::is_same_v<Epilogue, ScaleAdd<D>>;
    const float factor = -0.5f;
    const int blocks = m > 8 ? 2 : 1, tiles = (n + 16 * blocks - 1) / (16 * blocks);
    std::vector<float> wanted;
    for (int i = 0; i < m; ++i)
      for (int j = 0; j < n; ++j) {
        wanted.push_back(0.75 * product(i, j) + (kAdds ? float(d.at(i, j)) : 0.f));
        if (!kAdds) d.at(i, j) = D(NAN);
      }
    const std::vector<char> start = d.memory;
    const General p{{x.data(), w.data(), kAdds ? d.data() : nullptr, d.data(), &factor, -1.5f, 0},
                    {x.pitch, w.pitch, d.pitch, d.pitch, m, n, k, 16, 16, d.run(), tiles}};
    readable = {x.extent(m), w.extent(n)};
    copies_are_late = checked & 1;
    const auto body = [&] { blocks == 1 ? gemm_skinny<T, 1, Epilogue>(p) : gemm_skinny<T, 2, Epilogue>(p); };
    launch(tiles, body, checked & 2);

    std::vector<char> elsewhere = d.memory;
    bool near = true;
    for (int i = 0; i < m; ++i)
      for (int j = 0; j < n; ++j) {
        const float value = wanted[size_t(i) * n + j];
        near &= std::fabs(float(d.at(i, j)) - value) <= allowed * (1 + std::fabs(value));
        const size_t at = reinterpret_cast<char*>(&d.at(i, j)) - d.memory.data();
        memcpy(&elsewhere[at], &start[at], sizeof(D));
      }
    check(near, "wrong", p);
    check(elsewhere == start, "written beside D", p);
  }
};

template <class T>
void all(double allowed) {
  const int rows[] = {1, 2, 7, 8, 9, 13, 16}, ks[] = {0, 1, 8, 33, 255, 512, 1030, 2305};
  int number = 0;
  for (const int k : ks)
    for (const int n : {1, 16, 45}) {
      Problem<T> problem(n, k, number % 2 * 8);
      Matrix<f32> first(16, n, 0, 0);
      problem.template run<Store<f32>>(16, first, 1e-5);
      for (int turn = 0; turn < 3; ++turn, ++number) {
        const int m = rows[number % 7];
        Matrix<T> d(16, n, number % 3, number % 5);
        if (number % 2) problem.template run<Store<T>>(m, d, allowed);
        else problem.template run<ScaleAdd<T>>(m, d, allowed);
        Matrix<f32> sums(16, n, 0, 0);
        problem.template run<Store<f32>>(m, sums, 1e-5);
        bool same = true;
        for (int i = 0; i < m; ++i) same &= !memcmp(&first.at(i, 0), &sums.at(i, 0), n * sizeof(f32));
        ++checked, wrong += !same;
        if (!same) printf("a row depends on others: m %d n %d k %d\n", m, n, k);
      }
    }
}

int main() {
  all<ELEMENT>(ALLOWED);
  printf("%d of %d checks failed\n", wrong, checked);
  return wrong != 0;
}
