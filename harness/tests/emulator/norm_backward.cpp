// Runs kernels/norm_backward.cu by two CTAs, which are a cluster or each by itself: `emulated SEED`. Prints what is
// wrong.
#include "cluster.h"
#define dynamic_shared of_the_gpu
#include "device/base.cuh"
#undef dynamic_shared
#define dynamic_shared shared_memory_of_cta
#define blockIdx (Dimensions{unsigned(cta())})

// What is static in shared memory, one for each CTA.
template <class T, int Place>
T& in_cta() {
  static_assert(sizeof(T) <= 1 << 14);
  return *reinterpret_cast<T*>(shared_memory_of_cta() + Place);
}
#include "norm_backward.cu"
#undef blockIdx

using X = ELEMENT;
using Norm = NORM;
constexpr int kWidth = 16 / sizeof(X), kRowsAll = ROWS, kCols = COLS, kThreads = THREADS / kCtas, kOwn = ROW_THREADS;
constexpr bool kTogether = SCOPE::kCluster;
constexpr int kSlab = kTogether ? (kCols / 8 + 1) / 2 * 8 : kCols, kPlanes = Norm::kCentered ? 2 : 1;
constexpr int kStage = kSlab * sizeof(X) * (Norm::kAdds ? 3 : 2), kOffset = (4 * kSlab + 127) / 128 * 128;
static_assert(kOffset + kThreads / kOwn * std::max<int>(STAGES * kStage, 4 * kPlanes * kSlab) <= 3 << 16);

std::vector<X> made(int count, double scale, double offset) {
  std::normal_distribution<double> normal(offset, scale);
  std::vector<X> values(count + 16);
  for (X& value : values) value = X(float(normal(random_source)));
  return values;
}
X* aligned(std::vector<X>& values) { return reinterpret_cast<X*>((uintptr_t(values.data()) + 15) / 16 * 16); }

constexpr double kX = X_SCALE, kDz = DZ_SCALE, kDx = kDz / kX;  // sizes of x, dz and dx

int wrong = 0;
void check(double got, double wanted, double unit, const char* what, int row, int col) {
  const double off = (sizeof(X) == 4 ? 1e-5 : 1. / 128) * (std::fabs(wanted) + unit);
  if (std::fabs(got - wanted) <= off) return;
  if (++wrong < 9) printf("%s of row %d, column %d: %g instead of %g\n", what, row, col, got, wanted);
}

int main(int, char** arguments) {
  random_source.seed(atoi(arguments[1]));
  const int all = kRowsAll * kCols;
  auto x_ = made(all, kX, kX / 2), dz_ = made(all, kDz, 0), add_ = made(all, kDx, 0), gamma_ = made(kCols, 0.3, 1);
  X *const x = aligned(x_), *const dz = aligned(dz_), *const add = aligned(add_), *const gamma = aligned(gamma_);
  std::vector<float> mu(kRowsAll, 0.25 * kX), r(kRowsAll, 0.75 / kX), partial(kCtas * kPlanes * kCols, NAN);
  std::vector<X> dx(all, X(NAN)), dgamma(kCols, X(NAN)), dbeta(kCols, X(NAN));
  constexpr DType kAdd = sizeof(X) == 4 ? DType::kF32 : DType::kBf16;
  const Backward a{x, dz, add, gamma, mu.data(), r.data(), dx.data(), dgamma.data(), dbeta.data(), partial.data(),
                   kRowsAll, kCols, kCols, kCols, kCols, kOwn, 0.f, 1.f / kCols, kAdd, STAGES, kStage, kOffset};
  blockDim.x = kThreads, gridDim.x = kCtas;
  begin_cluster();
  const int seed = atoi(arguments[1]);
  const auto body = [&] {
    for (int i = 0; i < 300 && cta() == seed % 3; ++i) yield();  // one of the CTAs, or none, begins late
    norm_backward<Norm, X, X, X, kWidth, VECTORS, SCOPE, Ringed, kThreads>(a);
  };
  run_cta(0, body, seed % 2);
  end_cluster();

  std::vector<double> sums(2 * kCols);
  for (int i = 0; i < kRowsAll; ++i) {
    const double m = Norm::kCentered ? mu[i] : 0;
    double projection = 0, mean = 0;
    for (int j = 0; j < kCols; ++j) {
      const double w = double(dz[i * kCols + j]) * gamma[j], normal = (double(x[i * kCols + j]) - m) * r[i];
      projection += w * normal / kCols, mean += Norm::kCentered ? w / kCols : 0;
      sums[j] += dz[i * kCols + j] * normal, sums[kCols + j] += dz[i * kCols + j];
    }
    for (int j = 0; j < kCols; ++j) {
      const int at = i * kCols + j;
      const double w = double(dz[at]) * gamma[j], normal = (double(x[at]) - m) * r[i];
      check(dx[at], r[i] * (w - mean - normal * projection) + (Norm::kAdds ? double(add[at]) : 0), kDx, "dx", i, j);
    }
  }
  for (int j = 0; j < kCols; ++j) {
    check(dgamma[j], sums[j], 4 * kDz, "dgamma", -1, j);
    if (Norm::kCentered) check(dbeta[j], sums[kCols + j], 4 * kDz, "dbeta", -1, j);
  }
  printf("%d wrong\n", wrong);
  return wrong != 0;
}
