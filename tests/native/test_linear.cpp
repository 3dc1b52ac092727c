// Linear in float32, float16 and bfloat16 against sums in double.
#include <cstring>
#include <limits>

#include "operators/matmul/linear/cpu.h"
#include "testing.h"

namespace graphopt::test {
namespace {

template <class T>
void compare(LinearProblem p, size_t workers) {
  const auto w_size = p.K * p.N, y_size = p.rows * p.N;
  const auto x = random_tensor<T>(p.rows * p.K, 1, 1.0f);
  const auto w = random_tensor<T>(w_size, 2, 1.0f / std::sqrt(static_cast<float>(std::max<int64_t>(p.K, 1))));
  const auto b = random_tensor<T>(p.N, 3, 1.0f);
  const auto r = random_tensor<T>(p.has_residual ? y_size : 0, 4, 1.0f);
  std::vector<T> y(static_cast<size_t>(y_size) + 1, T(77.0f));
  ThreadParallel pool(workers);
  HeapWorkspace arena;
  void* weights = arena.allocate(cpu::linear_weights<T>(p, {}));
  cpu::linear_prepare(p, cpu::OnlyAlgorithm(), w.data(), weights);
  cpu::linear<T>(p, cpu::OnlyAlgorithm(), x.data(), weights, b.data(), p.has_residual ? r.data() : nullptr,
                 nullptr, y.data(), pool, arena.allocate(cpu::linear_workspace<T>(p, {}, workers)));
  const auto at = [](const std::vector<T>& v, int64_t i) {
    return static_cast<double>(static_cast<float>(v[static_cast<size_t>(i)]));
  };
  double worst = 0;
  const int64_t step = p.rows * w_size < 1 << 22 ? 1 : 11;  // stride of the compared columns
  for (int64_t i = 0; i < p.rows; ++i) {
    for (int64_t n = 0; n < p.N; n += step) {
      double sum = at(b, n);
      for (int64_t k = 0; k < p.K; ++k) {
        const double a = at(x, i * p.K + k), c = at(w, k * p.N + n);
        sum += p.bfloat16 ? rounded(a) * rounded(c) : a * c;
      }
      if (p.has_residual) sum += at(r, i * p.N + n);
      worst = std::max(worst, std::abs(reference_activation(p.act, sum) - at(y, i * p.N + n)));
    }
  }
  CHECK(static_cast<float>(y.back()) == 77.0f);
  CHECK(worst < (sizeof(T) == 4 ? 1e-5 : 1e-2));
}

LinearProblem problem(int64_t rows, int64_t K, int64_t N, bool residual, ActivationKind kind) {
  LinearProblem p;
  p.rows = rows;
  p.K = K;
  p.N = N;
  p.has_residual = residual;
  p.act.kind = kind;
  return p;
}

TEST_CASE("linear of odd sizes") {
  using A = ActivationKind;
  for (const auto& [rows, K, N] : {std::array<int64_t, 3>{1, 1, 1},
                                   {13, 7, 17},
                                   {29, 33, 70},
                                   {31, 64, 32},
                                   {2, 129, 16},
                                   {1, 37, 300},
                                   {60, 31, 100},
                                   {3, 0, 5},
                                   {0, 3, 5},
                                   {3, 5, 0}}) {
    for (const A kind : {A::kNone, A::kRelu, A::kGelu}) {
      for (const bool residual : {false, true}) {
        LinearProblem p = problem(rows, K, N, residual, kind);
        for (const size_t workers : {1, 3}) {
          compare<float>(p, workers);
          compare<half>(p, workers);
          p.bfloat16 = true;
          compare<float>(p, workers);
          p.bfloat16 = false;
        }
      }
    }
  }
}

// More rows than are packed at a time: packed, they take more than kChunkBytes.
TEST_CASE("linear of many rows") {
  LinearProblem p;
  p.rows = 233;
  p.K = 2051;
  p.N = 35;
  compare<float>(p, 2);
  p.bfloat16 = true;
  compare<float>(p, 2);
}

// A GEMM of 101 rows, which is large enough for Strassen's algorithm, and its two halves, which are not.
struct Large {
  LinearProblem p;
  std::vector<float> x = random_tensor<float>(101 * 512, 1, 1.0f),
                     w = random_tensor<float>(512 * 512, 2, 0.05f);
  std::vector<float> b = random_tensor<float>(512, 3, 1.0f);

  Large() {
    p.rows = 101;
    p.K = p.N = 512;
  }
  std::vector<float> rows(int64_t begin, int64_t end, size_t workers) {
    p.rows = end - begin;
    std::vector<float> y(static_cast<size_t>(p.rows * p.N));
    ThreadParallel pool(workers);
    HeapWorkspace arena;
    void* weights = arena.allocate(cpu::linear_weights<float>(p, {}));
    cpu::linear_prepare(p, cpu::OnlyAlgorithm(), w.data(), weights);
    cpu::linear<float>(p, cpu::OnlyAlgorithm(), x.data() + begin * p.K, weights, b.data(), nullptr, nullptr,
                       y.data(), pool, arena.allocate(cpu::linear_workspace<float>(p, {}, workers)));
    return y;
  }
  // Whether each row depends only on its own inputs: the bits equal those of GEMMs with few rows.
  bool is_plain() {
    const std::vector<float> all = rows(0, 101, 1);
    std::vector<float> few = rows(0, 50, 1);
    const std::vector<float> rest = rows(50, 101, 1);
    few.insert(few.end(), rest.begin(), rest.end());
    return std::memcmp(all.data(), few.data(), all.size() * sizeof(float)) == 0;
  }
};

TEST_CASE("linear by Strassen's algorithm") {
  for (const auto& [rows, K, N] :
       {std::array<int64_t, 3>{96, 512, 512}, {101, 1536, 576}, {197, 514, 512}, {400, 768, 512}}) {
    for (const bool residual : {false, true}) {
      const ActivationKind kind = residual ? ActivationKind::kNone : ActivationKind::kGelu;
      const LinearProblem p = problem(rows, K, N, residual, kind);
      compare<float>(p, 3);
      if (residual) compare<half>(p, 1);
    }
  }
  Large large;
  CHECK(!large.is_plain());
  CHECK(large.rows(0, 101, 1) == large.rows(0, 101, 5));
}

// Strassen's algorithm adds values of different magnitude, which would lose the digits of the smaller ones.
TEST_CASE("linear of numbers that Strassen's algorithm must not add") {
  Large row, column_of_w, inner, nan, infinite;
  for (int k = 0; k < 512; ++k) row.x[40 * 512 + k] *= 1e4f;
  CHECK(row.is_plain());
  for (int k = 0; k < 512; ++k) column_of_w.w[k * 512 + 7] *= 1e-4f;
  CHECK(column_of_w.is_plain());
  for (int i = 0; i < 101; ++i) inner.x[i * 512 + 300] = 1e4f;
  CHECK(!inner.is_plain());  // every result is a sum with this large value anyway
  for (int n = 0; n < 512; ++n) inner.w[300 * 512 + n] *= 1e-4f;
  CHECK(inner.is_plain());
  nan.x[99 * 512 + 5] = std::numeric_limits<float>::quiet_NaN();
  CHECK(nan.is_plain());
  infinite.x[100 * 512] = std::numeric_limits<float>::infinity();
  CHECK(infinite.is_plain());
  infinite.x[100 * 512] = 1e30f;  // its square is infinite
  CHECK(infinite.is_plain());
}

}  // namespace
}  // namespace graphopt::test
