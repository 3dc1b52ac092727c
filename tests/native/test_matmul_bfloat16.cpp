// MatMulBf16 against sums in double.
#include <algorithm>
#include <iterator>
#include <limits>

#include "operators/matmul/matmul_bfloat16/op.h"
#include "testing.h"

namespace graphopt::test {
namespace {

// A batch of contiguous matrices.
MatMulBfloat16Problem problem(int64_t batch, int64_t M, int64_t K, int64_t N, bool b_transposed) {
  MatMulBfloat16Problem p;
  p.M = M;
  p.K = K;
  p.N = N;
  p.batch = Shape{batch};
  p.a_batch = {M * K};
  p.b_batch = {K * N};
  p.a_row = K;
  p.b_transposed = b_transposed;
  p.b_next = b_transposed ? K : N;
  return p;
}

// Returns the offset of the i-th matrix.
int64_t begin_of(const MatMulBfloat16Problem& p, const std::vector<int64_t>& distances, int64_t i) {
  int64_t at = 0;
  for (size_t axis = p.batch.rank(); axis-- > 0; i /= p.batch[axis]) {
    at += i % p.batch[axis] * distances[axis];
  }
  return at;
}

std::vector<float> run(const MatMulBfloat16Problem& p, const std::vector<float>& a,
                       const std::vector<float>& b, size_t workers) {
  std::vector<float> y(static_cast<size_t>(p.batch.elements() * p.M * p.N) + 1, 77.0f);
  ThreadParallel pool(workers);
  HeapWorkspace arena;
  cpu::matmul_bfloat16(p, a.data(), b.data(), y.data(), pool,
                       arena.allocate(cpu::matmul_bfloat16_workspace<float>(p, workers)));
  CHECK(y.back() == 77.0f);
  y.pop_back();
  return y;
}

void compare(const MatMulBfloat16Problem& p, int64_t a_size, int64_t b_size, size_t workers) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(std::max<int64_t>(p.K, 1)));
  std::vector<float> a = random_tensor<float>(a_size, 1), b = random_tensor<float>(b_size, 2, scale);
  for (size_t i = 0; i < a.size(); i += 7) a[i] = 0.0f;
  for (size_t i = 0; i < b.size(); i += 11) b[i] *= 1e3f;
  const std::vector<float> y = run(p, a, b, workers);
  std::vector<double> rounded_a, rounded_b, wanted;
  std::transform(a.begin(), a.end(), std::back_inserter(rounded_a), rounded);
  std::transform(b.begin(), b.end(), std::back_inserter(rounded_b), rounded);
  for (int64_t i = 0; i < p.batch.elements(); ++i) {
    const double* left = rounded_a.data() + begin_of(p, p.a_batch, i);
    const double* right = rounded_b.data() + begin_of(p, p.b_batch, i);
    for (int64_t m = 0; m < p.M; ++m) {
      for (int64_t n = 0; n < p.N; ++n) {
        double sum = 0;
        for (int64_t k = 0; k < p.K; ++k) {
          sum += left[m * p.a_row + k] * right[p.b_transposed ? n * p.b_next + k : k * p.b_next + n];
        }
        wanted.push_back(p.alpha * sum);
      }
    }
  }
  REQUIRE(wanted.size() == y.size());
  if (!wanted.empty()) CHECK(relative_error(y, wanted) < tolerance<float>());
}

TEST_CASE("matmul of odd sizes") {
  for (const auto& [batch, M, K, N] : {std::array<int64_t, 4>{1, 1, 1, 1},
                                       {3, 13, 7, 17},
                                       {2, 29, 33, 70},
                                       {5, 31, 64, 32},
                                       {1, 2, 129, 16},
                                       {7, 1, 37, 300},
                                       {2, 60, 31, 100},
                                       {4, 15, 2, 3},
                                       {2, 3, 0, 5},
                                       {0, 3, 4, 5},
                                       {2, 0, 3, 5},
                                       {2, 3, 5, 0}}) {
    for (const bool b_transposed : {false, true}) {
      for (const size_t workers : {1, 3}) {
        MatMulBfloat16Problem p = problem(batch, M, K, N, b_transposed);
        p.alpha = workers == 1 ? 1.0f : -0.375f;
        compare(p, batch * M * K, batch * K * N, workers);
      }
    }
  }
}

// More than the second-level caches hold: a few matrices at a time, and one matrix in parts.
TEST_CASE("matmul of many numbers") {
  const MatMulBfloat16Problem many = problem(31, 70, 300, 65, true);
  compare(many, 31 * 70 * 300, 31 * 300 * 65, 1);
  compare(many, 31 * 70 * 300, 31 * 300 * 65, 2);
  const MatMulBfloat16Problem tall = problem(1, 500, 1030, 35, false);
  compare(tall, 500 * 1030, 1030 * 35, 1);
  compare(tall, 500 * 1030, 1030 * 35, 3);
  compare(problem(2, 500, 1030, 35, true), 2 * 500 * 1030, 2 * 1030 * 35, 2);
}

// Rows and columns interleaved with others, as in attention heads, and one matrix shared by several.
TEST_CASE("matmul of operands in other orders") {
  MatMulBfloat16Problem p = problem(1, 19, 24, 41, true);
  p.batch = Shape{2, 3};
  p.a_row = p.b_next = 3 * 24;
  p.a_batch = {19 * 3 * 24, 24};
  p.b_batch = {41 * 3 * 24, 24};
  compare(p, 2 * 19 * 3 * 24, 2 * 41 * 3 * 24, 2);
  p.b_batch = {0, 24};
  compare(p, 2 * 19 * 3 * 24, 41 * 3 * 24, 2);
  p.a_batch = {0, 0};
  p.b_transposed = false;
  p.b_next = 41;
  p.b_batch = {3 * 24 * 41, 24 * 41};
  compare(p, 19 * 3 * 24, 2 * 3 * 24 * 41, 1);
}

TEST_CASE("matmul is the same with any number of threads") {
  const MatMulBfloat16Problem p = problem(3, 77, 90, 130, false);
  const auto a = random_tensor<float>(3 * 77 * 90, 1), b = random_tensor<float>(3 * 90 * 130, 2);
  CHECK(run(p, a, b, 1) == run(p, a, b, 5));
}

// A row, a column and a value that are not finite keep their position, and change no other result.
TEST_CASE("infinite numbers of a matmul stay in their rows and columns") {
  for (const bool b_transposed : {false, true}) {
    const MatMulBfloat16Problem p = problem(2, 17, 35, 18, b_transposed);
    auto a = random_tensor<float>(2 * 17 * 35, 1), b = random_tensor<float>(2 * 35 * 18, 2);
    a[3 * 35 + 34] = std::numeric_limits<float>::infinity();
    b[static_cast<size_t>(35 * 18 + (b_transposed ? 5 * 35 + 34 : 34 * 18 + 5))] =
        std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> y = run(p, a, b, 2);
    for (size_t i = 0; i < y.size(); ++i) {
      const size_t matrix = i / (17 * 18), row = i / 18 % 17, column = i % 18;
      CHECK(std::isinf(y[i]) == (matrix == 0 && row == 3));
      CHECK(std::isnan(y[i]) == (matrix == 1 && column == 5));
    }
  }
}

}  // namespace
}  // namespace graphopt::test
