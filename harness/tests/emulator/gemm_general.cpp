// Runs kernels/gemm_general.cu on matrices of every kind of shape, pitch and alignment; prints what is wrong.
#include "emulator.h"
#include "gemm_general.cu"
#include "matrices.h"

int wrong = 0, checked = 0;

// One product with its operands as Core takes them, and what it must give.
template <class Core, class Epilogue, class T>
struct Product {
  using D = typename Epilogue::type;
  static constexpr bool kAlongA = Core::LiesA::kAlongK, kAlongB = Core::LiesB::kAlongK;
  static constexpr bool kAdds = std::is_same_v<Epilogue, ScaleAdd<D>>;
  int m, n, k;
  Matrix<T> a, b;
  Matrix<D> d;
  std::vector<double> wanted;
  float factor = 0.5f;

  Product(int m, int n, int k, int padding, int skipped)
      : m(m), n(n), k(k), a(kAlongA ? m : k, kAlongA ? k : m, padding, skipped),
        b(kAlongB ? n : k, kAlongB ? k : n, padding, skipped), d(m, n, padding % 3, skipped) {
    for (int i = 0; i < m; ++i)
      for (int j = 0; j < n; ++j) {
        double sum = 0;
        for (int q = 0; q < k; ++q)
          sum += double(float(kAlongA ? a.at(i, q) : a.at(q, i))) * float(kAlongB ? b.at(j, q) : b.at(q, j));
        wanted.push_back(0.75 * sum + (kAdds ? float(d.at(i, j)) : 0.f));
        if (!kAdds) d.at(i, j) = D(NAN);
      }
  }
  int tiles() const { return (m + Core::kM - 1) / Core::kM * ((n + Core::kN - 1) / Core::kN); }
  Pointers pointers() { return {a.data(), b.data(), kAdds ? d.data() : nullptr, d.data(), &factor, 1.5f, 0}; }
  Shape shape() { return {a.pitch, b.pitch, d.pitch, d.pitch, m, n, k, a.unit(), b.unit(), d.run(), tiles()}; }
  void check(double allowed) {
    bool right = true;
    for (int i = 0; i < m; ++i)
      for (int j = 0; j < d.pitch; ++j) {
        const D& value = d.at(i, j);
        if (j < n) right &= std::fabs(float(value) - wanted[i * n + j]) <= allowed * (1 + std::fabs(wanted[i * n + j]));
        else for (size_t z = 0; z < sizeof(D); ++z) right &= reinterpret_cast<const unsigned char*>(&value)[z] == 0xff;
      }
    ++checked, wrong += !right;
    if (!right) printf("wrong: m %d n %d k %d, unit %d, run %d\n", m, n, k, a.unit(), d.run());
  }
};

template <class T, template <class, class> class Core>
void all(double allowed, double allowed_f32) {
  const int shapes[][3] = {{64, 64, 64}, {1, 1, 1}, {130, 70, 33}, {65, 129, 96}, {17, 200, 5}, {3, 5, 0}};
  const int layouts[][2] = {{0, 0}, {8, 0}, {2, 2}, {1, 1}};  // padding, elements skipped
  int number = 0;
  for (const auto& [m, n, k] : shapes)
    for (const auto& [padding, skipped] : layouts) {
      const bool reversed = ++number & 1;
      copies_are_late = number & 2;
      using Forward = Core<AlongK, AlongK>;
      using Dgrad = Core<AlongK, Across>;
      using Wgrad = Core<Across, Across>;
      Product<Forward, ScaleAdd<T>, T> y(m, n, k, padding, skipped);
      const General forward{y.pointers(), y.shape()};
      launch(y.tiles(), [&] { gemm_general<Forward, ScaleAdd<T>>(forward); }, reversed);
      y.check(allowed);
      Product<Dgrad, Store<T>, T> dx(m, k, n, padding, skipped);
      Product<Wgrad, ScaleAdd<f32>, T> dw(n, k, m, padding, skipped);
      const Pair pair{{dx.pointers(), dw.pointers()}, {dx.shape(), dw.shape()}};
      const auto both = [&] { gemm_general_pair<Dgrad, Store<T>, Wgrad, ScaleAdd<f32>>(pair); };
      launch(dx.tiles() + dw.tiles(), both, !reversed);
      dx.check(allowed);
      dw.check(allowed_f32);
    }
}

// A long sum in exact float32 is far nearer than one chain of multiplications would come. Prints a number that its bits
// give.
template <class Core>
void long_sum() {
  const int m = 40, n = 24, k = 4000;
  source.seed(2);
  Product<Core, Store<f32>, f32> product(m, n, k, 0, 0);
  const General g{product.pointers(), product.shape()};
  launch(product.tiles(), [&] { gemm_general<Core, Store<f32>>(g); }, false);
  double errors = 0, errors_of_chain = 0;
  uint64_t bits = 0;
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      float chain = 0, found = product.d.at(i, j);
      for (int q = 0; q < k; ++q) chain = fmaf(product.a.at(i, q), product.b.at(j, q), chain);
      const double wanted = product.wanted[i * n + j];
      errors += std::pow(found - wanted, 2), errors_of_chain += std::pow(0.75f * chain - wanted, 2);
      uint32_t word;
      memcpy(&word, &found, 4);
      bits = bits * 0x9E3779B97F4A7C15 + word;
    }
  const double times = std::sqrt(errors_of_chain / errors);
  ++checked, wrong += times < 4.5;
  printf("a chain is off by %.1f times as much; bits %llx\n", times, (unsigned long long)bits);
}

template <class A, class B> using Bf16 = TensorCore<bf16, A, B, TILE_M, TILE_N>;
template <class A, class B> using F16 = TensorCore<f16, A, B, TILE_M, TILE_N>;
template <class A, class B> using Tf32 = TensorCore<f32, A, B, TILE_M, TILE_N>;
template <class A, class B> using Exact = Simt<A, B, TILE_M, TILE_N>;

int main() {
  all<ELEMENT, CORE>(ALLOWED, ALLOWED_F32);
  printf("%d of %d products are wrong\n", wrong, checked);
  if (EXACT) long_sum<CORE<AlongK, AlongK>>();
  return wrong != 0;
}
