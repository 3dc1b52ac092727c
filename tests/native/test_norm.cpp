#include "operators/normalization/group_norm/op.h"
#include "operators/normalization/row_norm/op.h"
#include "testing.h"

namespace graphopt::test {
namespace {

template <class T>
std::vector<double> widen(const std::vector<T>& values) {
  std::vector<double> wide;
  for (const T& v : values) wide.push_back(static_cast<double>(static_cast<float>(v)));
  return wide;
}

struct Statistics {
  double mean, variance;
};

Statistics statistics(const double* x, int64_t n) {
  double mean = 0, variance = 0;
  for (int64_t i = 0; i < n; ++i) mean += x[i] / static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) variance += (x[i] - mean) * (x[i] - mean) / static_cast<double>(n);
  return {mean, variance};
}

// Adds `offset` to the first `moved` values (to all, if `moved` is negative): the variance must not lose
// digits by cancellation.
template <class T>
void compare_group_norm(const GroupNormProblem& p, size_t workers, float offset = 0.0f, int64_t moved = -1) {
  const int64_t n = p.N * p.C * p.inner;
  auto x = random_tensor<T>(n, 1);
  for (int64_t i = 0; i < (moved < 0 ? n : moved); ++i) {
    T& v = x[static_cast<size_t>(i)];
    v = static_cast<T>(static_cast<float>(v) + offset);
  }
  const auto gamma = random_tensor<T>(p.C, 2), beta = random_tensor<T>(p.C, 3);
  const auto wide = widen(x);
  std::vector<double> expected(wide.size());
  const int64_t size = p.C / p.groups * p.inner;
  Statistics s{};
  for (int64_t i = 0; i < n; ++i) {
    if (i % size == 0) s = statistics(wide.data() + i, size);
    const auto c = static_cast<size_t>(i / p.inner % p.C);
    const double normal =
        (wide[static_cast<size_t>(i)] - s.mean) / std::sqrt(s.variance + static_cast<double>(p.epsilon));
    expected[static_cast<size_t>(i)] = reference_activation(p.act, normal * gamma[c] + beta[c]);
  }
  ThreadParallel parallel(workers);
  HeapWorkspace heap;
  void* workspace = heap.allocate(cpu::group_norm_workspace<T>(p, workers));
  std::vector<T> y(x.size());
  cpu::group_norm(p, x.data(), gamma.data(), beta.data(), y.data(), parallel, workspace);
  const double bound = tolerance<T>() * (1 + (moved < 0 ? static_cast<double>(offset) : 0.0));
  CHECK(relative_error(y, expected) < bound);
  cpu::group_norm(p, x.data(), gamma.data(), beta.data(), x.data(), parallel, workspace);  // in place
  CHECK(relative_error(x, expected) < bound);
}

GroupNormProblem group_problem(int64_t N, int64_t C, int64_t inner, int64_t groups, Activation act = {}) {
  GroupNormProblem p;
  p.N = N;
  p.C = C;
  p.inner = inner;
  p.groups = groups;
  p.act = act;
  return p;
}

TEST_CASE("group norm of every activation") {
  for (const Activation& act : every_activation()) {
    compare_group_norm<float>(group_problem(2, 6, 35, 3, act), 2);
    compare_group_norm<half>(group_problem(2, 6, 35, 3, act), 2);
  }
}

TEST_CASE("group norm of odd shapes") {
  const int64_t shapes[][4] = {{1, 1, 1, 1},      {2, 4, 1, 2},     {3, 5, 7, 5},
                               {1, 32, 1024, 32}, {2, 10, 1023, 2}, {1, 3, 50001, 1},
                               {1, 4, 40000, 2},  {300, 4, 3, 2},   {1, 640, 9, 32}};
  for (const auto& s : shapes) {
    for (size_t workers : {1, 4}) {
      compare_group_norm<float>(group_problem(s[0], s[1], s[2], s[3]), workers);
      compare_group_norm<half>(group_problem(s[0], s[1], s[2], s[3]), workers);
    }
  }
  compare_group_norm<float>(group_problem(0, 4, 3, 2), 2);
}

TEST_CASE("group norm of a distant mean") {
  compare_group_norm<float>(group_problem(1, 4, 3000, 2), 1, 1000.0f);
  compare_group_norm<float>(group_problem(1, 2, 70000, 1), 4, 1000.0f);
}

TEST_CASE("group norm of blocks with different means") {
  for (const int64_t moved : {int64_t{1}, int64_t{1024}, int64_t{5000}}) {
    for (const size_t workers : {1, 4}) {
      compare_group_norm<float>(group_problem(1, 1, 70001, 1), workers, 1e5f, moved);
    }
  }
}

TEST_CASE("group norm is the same with any number of threads") {
  const int64_t sets = 3, size = 70001;
  const GroupNormProblem p = group_problem(1, sets, size, sets);
  const std::vector<float> gamma(sets, 2.0f), beta(sets, 0.0f);
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    const auto x = random_tensor<float>(sets * size, seed);
    const auto with = [&](size_t workers) {
      std::vector<float> y(x.size());
      ThreadParallel parallel(workers);
      HeapWorkspace heap;
      cpu::group_norm(p, x.data(), gamma.data(), beta.data(), y.data(), parallel,
                      heap.allocate(cpu::group_norm_workspace<float>(p, workers)));
      return y;
    };
    CHECK(with(5) == with(1));
  }
}

TEST_CASE("group norm of infinity is nan") {
  std::vector<float> x(5000, 1.0f), y(x.size());
  x[3000] = std::numeric_limits<float>::infinity();
  const float one = 1, zero = 0;
  ThreadParallel parallel(1);
  HeapWorkspace heap;
  const GroupNormProblem p = group_problem(1, 1, 5000, 1);
  cpu::group_norm(p, x.data(), &one, &zero, y.data(), parallel,
                  heap.allocate(cpu::group_norm_workspace<float>(p, 1)));
  for (const float v : y) CHECK(std::isnan(v));
}

template <class T>
void compare_row_norm(int64_t rows, int64_t D, bool rms, bool residual, bool writes_sum, size_t workers,
                      float offset = 0.0f) {
  RowNormProblem p;
  p.rows = rows;
  p.D = D;
  p.rms = rms;
  p.has_residual = residual;
  p.writes_sum = writes_sum;
  auto x = random_tensor<T>(rows * D, 1);
  for (T& v : x) v = static_cast<T>(static_cast<float>(v) + offset);
  const auto r = random_tensor<T>(rows * D, 2);
  const auto gamma = random_tensor<T>(D, 3), beta = random_tensor<T>(D, 4);
  auto total = widen(x);
  if (residual) {
    for (size_t i = 0; i < total.size(); ++i) total[i] += static_cast<double>(static_cast<float>(r[i]));
  }
  std::vector<double> expected(total.size());
  for (int64_t row = 0; row < rows; ++row) {
    const double* s = total.data() + row * D;
    Statistics st = statistics(s, D);
    if (rms) st = {0, st.variance + st.mean * st.mean};
    for (int64_t i = 0; i < D; ++i) {
      const double normal = (s[i] - st.mean) / std::sqrt(st.variance + static_cast<double>(p.epsilon));
      expected[static_cast<size_t>(row * D + i)] =
          normal * gamma[static_cast<size_t>(i)] +
          (rms ? 0.0 : static_cast<double>(static_cast<float>(beta[static_cast<size_t>(i)])));
    }
  }
  ThreadParallel parallel(workers);
  HeapWorkspace heap;
  void* workspace = heap.allocate(cpu::row_norm_workspace<T>(p, workers));
  std::vector<T> y(x.size()), sum(x.size());
  cpu::row_norm(p, x.data(), residual ? r.data() : nullptr, gamma.data(), rms ? nullptr : beta.data(),
                y.data(), writes_sum ? sum.data() : nullptr, parallel, workspace);
  const double bound = tolerance<T>() * (1 + static_cast<double>(offset));
  CHECK(relative_error(y, expected) < bound);
  if (writes_sum) CHECK(relative_error(sum, total) < tolerance<T>());
  if (!writes_sum) {  // in place
    cpu::row_norm(p, x.data(), residual ? r.data() : nullptr, gamma.data(), rms ? nullptr : beta.data(),
                  x.data(), static_cast<T*>(nullptr), parallel, workspace);
    CHECK(relative_error(x, expected) < bound);
  }
}

TEST_CASE("row norms") {
  for (int64_t D : {1, 3, 16, 31, 768, 1025, 9001}) {
    for (int64_t rows : {1, 5, 97}) {
      for (bool rms : {false, true}) {
        for (int variant : {0, 1, 2}) {
          compare_row_norm<float>(rows, D, rms, variant > 0, variant > 1, 3);
          compare_row_norm<half>(rows, D, rms, variant > 0, variant > 1, 3);
        }
      }
    }
  }
  compare_row_norm<float>(0, 8, false, true, true, 2);
}

TEST_CASE("layer norm of a distant mean") {
  compare_row_norm<float>(3, 4096, false, false, false, 1, 1000.0f);
}

// x - mean is 0, however the sum was rounded.
template <class T>
void check_equal_numbers(int64_t D, bool residual) {
  RowNormProblem p;
  p.rows = 50;
  p.D = D;
  p.has_residual = residual;
  p.epsilon = 1e-12f;
  auto x = random_tensor<T>(p.rows * D, 1), r = random_tensor<T>(p.rows * D, 2);
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t first = i / static_cast<size_t>(D) * static_cast<size_t>(D);
    x[i] = x[first];
    r[i] = r[first];
  }
  const auto gamma = random_tensor<T>(D, 3), beta = random_tensor<T>(D, 4);
  ThreadParallel parallel(2);
  HeapWorkspace heap;
  std::vector<T> y(x.size());
  cpu::row_norm(p, x.data(), residual ? r.data() : nullptr, gamma.data(), beta.data(), y.data(),
                static_cast<T*>(nullptr), parallel, heap.allocate(cpu::row_norm_workspace<T>(p, 2)));
  for (size_t i = 0; i < y.size(); ++i) {
    CHECK(static_cast<float>(y[i]) == static_cast<float>(beta[i % static_cast<size_t>(D)]));
  }
}

TEST_CASE("layer norm of equal numbers") {
  for (int64_t D : {2, 3, 20, 333, 768, 1025, 9001}) {
    for (const bool residual : {false, true}) {
      check_equal_numbers<float>(D, residual);
      check_equal_numbers<half>(D, residual);
    }
  }
}

}  // namespace
}  // namespace graphopt::test
