// Runs the rows of LayerNorm on every kind of values; prints what is wrong.
#include "emulator.h"
#include "device/norm_shared.cuh"
#include "matrices.h"

#include <cfloat>

using X = ELEMENT;
using Rows = ROWS;
using Scope = SCOPE;
constexpr float kEps = 1e-5f;
constexpr int kCols = COLS, kRowThreads = ROW_THREADS, kKinds = 25;

union Shared {
  Group::Shared group;
  char bytes[sizeof(Group::Shared)];
  Shared() { memset(bytes, 0xff, sizeof bytes); }
} shared;
u64 full;
int wrong = 0, checked = 0;

void check(bool right, const char* what, int kind, double got, double wanted) {
  ++checked, wrong += !right;
  if (!right) printf("%s of a row of kind %d: %.9g instead of %.9g\n", what, kind, got, wanted);
}

// Kinds 0 to 8: all the same; to 16: finite; to 22: something is not; then float32 does
// not hold what bf16 adds up to, of differences from the first element or of squares alone.
double value(int kind, int j, double normal) {
  constexpr bool kBf16 = std::is_same_v<X, bf16>;
  const double largest = kBf16 ? 3.38e38 : 65504, ulp = kBf16 ? 1 / 128. : 1 / 1024.;
  const double same[] = {0.1, -7.3, 3e4, 1e-7, largest, -largest, largest / 2, 0, 257}, infinite = HUGE_VAL;
  const int last = kCols - 1, middle = kCols / 2;
  switch (kind) {
    case 9: return normal;
    case 10: return 1000 + 30 * normal;
    case 11: return j == 0 ? 3e4 : normal;
    case 12: return j == last ? 1 + ulp : 1;
    case 13: return j == middle / 3 ? 101 : 100;
    case 14: return j < middle ? 1e4 : -1e4;
    case 15: return j % 2 ? -1000 : 1000 + normal;
    case 16: return j / 96 % 5 * 3 + 1;
    case 17: return j == 0 ? infinite : normal;
    case 18: return j == 5 ? -infinite : normal;
    case 19: return j == last ? infinite : normal;
    case 20: return j == 1 ? infinite : j == last ? -infinite : normal;
    case 21: return j == 0 || j == last ? infinite : normal;
    case 22: return j == middle + 1 ? NAN : normal;
    case 23: return j == 0 ? largest : normal;
    case 24: return j == 1 ? largest : normal;
    default: return same[kind];
  }
}

void run(const Forward& a) {
#if SHARED_ROWS
  Block scope(shared.group, kRowThreads);
  Rows rows(reinterpret_cast<X*>(dynamic_shared()), &full);
#else
  Scope scope(reinterpret_cast<Scope::Shared&>(shared), kRowThreads);
  const Rows rows(scope, a.cols);
#endif
  Store<X> output(a);
  rows.walk(a, scope, output);
}

void check_row(int kind, X* x, X* y, Matrix<X>& weights, bool with_beta, float mu, float r) {
  double mean = 0, square = 0;
  const double first = float(x[0]);
  for (int j = 0; j < kCols; ++j) mean += float(x[j]) - first;
  const bool holds = !(std::fabs(mean) > FLT_MAX) || std::isinf(mean);
  mean = holds ? first + mean / kCols : std::copysign(HUGE_VAL, mean);
  for (int j = 0; j < kCols; ++j) square += (float(x[j]) - mean) * (float(x[j]) - mean);
  const double wanted = square > FLT_MAX ? 0 : 1 / std::sqrt(square / kCols + kEps);
  const double unit = std::max(std::fabs(mean), wanted > 0 ? 1 / wanted : 0);
  if (!std::isfinite(mean)) {
    check(isnan(mean) ? isnan(mu) : mu == mean, "mean", kind, mu, mean);
    check(holds ? isnan(r) : r == 0, "rsigma", kind, r, holds ? NAN : 0);
  } else {
    check(std::fabs(mu - mean) <= (kind < 9 ? 0 : 3e-7 * unit), "mean", kind, mu, mean);
    check(kind < 9 ? r == rsigma_of(0, 1.f / kCols, kEps) : std::fabs(r - wanted) <= 6e-7 * wanted, "rsigma", kind, r,
          wanted);
  }
  for (int j = 0; j < kCols; ++j) {
    const float beta = with_beta ? float(weights.at(1, j)) : -0.f;
    const X exact = X(fmaf((float(x[j]) - mu) * r, float(weights.at(0, j)), beta));
    if (memcmp(&exact, &y[j], sizeof(X)) && !(isnan(float(exact)) && isnan(float(y[j]))))
      return check(false, "y", kind, float(y[j]), float(exact));
  }
}

int main() {
  Matrix<X> x(kKinds, kCols, (8 - kCols % 8) % 8, 0), weights(2, kCols, (8 - kCols % 8) % 8, 0);
  std::normal_distribution<double> normal;
  for (int kind = 0; kind < kKinds; ++kind)
    for (int j = 0; j < kCols; ++j) x.at(kind, j) = X(float(value(kind, j, normal(source))));
  for (const bool with_beta : {true, false})
    for (const int grid : {1, 2}) {
      Matrix<X> y(kKinds, kCols, 0, 0);
      std::vector<float> mu(kKinds, NAN), r(kKinds, 0.f);
      const Forward a{x.data(), &weights.at(0, 0), with_beta ? &weights.at(1, 0) : nullptr, y.data(), mu.data(),
                      r.data(), kKinds, x.pitch, kCols, kRowThreads, kEps, 1.f / kCols};
      launch(grid, [&] { run(a); }, with_beta);
      for (int kind = 0; kind < kKinds; ++kind)
        check_row(kind, &x.at(kind, 0), &y.at(kind, 0), weights, with_beta, mu[kind], r[kind]);
    }
  printf("%d of %d checks failed\n", wrong, checked);
  return wrong != 0;
}
