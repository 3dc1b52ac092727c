#include "operators/normalization/scale_shift/op.h"
#include "testing.h"

namespace graphopt::test {
namespace {

template <class T>
void compare(const ScaleShiftProblem& p, size_t workers) {
  const int64_t n = p.N * p.C * p.inner;
  const auto x = random_tensor<T>(n, 1), r = random_tensor<T>(n, 2);
  const auto scale = random_tensor<T>(p.C, 3), shift = random_tensor<T>(p.C, 4);
  std::vector<double> expected(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const int64_t c = i / p.inner % p.C;
    double v = static_cast<double>(static_cast<float>(x[i])) * static_cast<float>(scale[c]) +
               static_cast<float>(shift[c]);
    if (p.has_residual) v += static_cast<double>(static_cast<float>(r[i]));
    expected[static_cast<size_t>(i)] = reference_activation(p.act, v);
  }
  ThreadParallel parallel(workers);
  HeapWorkspace heap;
  void* workspace = heap.allocate(cpu::scale_shift_workspace<T>(p, 1));
  const T* residual = p.has_residual ? r.data() : nullptr;
  std::vector<T> y(x.size());
  cpu::scale_shift(p, x.data(), scale.data(), shift.data(), residual, y.data(), parallel, workspace);
  CHECK(relative_error(y, expected) < tolerance<T>());
  // In place over X, and over R.
  std::vector<T> over_x = x;
  cpu::scale_shift(p, over_x.data(), scale.data(), shift.data(), residual, over_x.data(), parallel,
                   workspace);
  CHECK(relative_error(over_x, expected) < tolerance<T>());
  if (p.has_residual) {
    std::vector<T> over_r = r;
    cpu::scale_shift(p, x.data(), scale.data(), shift.data(), over_r.data(), over_r.data(), parallel,
                     workspace);
    CHECK(relative_error(over_r, expected) < tolerance<T>());
  }
}

TEST_CASE("scale shift of every activation") {
  for (const Activation& act : every_activation()) {
    for (bool residual : {false, true}) {
      ScaleShiftProblem p;
      p.N = 2;
      p.C = 5;
      p.inner = 49;
      p.has_residual = residual;
      p.act = act;
      compare<float>(p, 2);
      compare<half>(p, 2);
    }
  }
}

TEST_CASE("scale shift of odd shapes") {
  const int64_t shapes[][3] = {{1, 1, 1},    {3, 1, 1},    {1, 7, 1},    {5, 33, 1},    {2, 3, 4},
                               {3, 5, 15},   {3, 5, 16},   {2, 3, 17},   {1, 2, 20011}, {64, 65, 9},
                               {7, 3, 1023}, {2, 9, 1025}, {40, 500, 1}, {1, 1, 16384}, {1, 3, 16385}};
  for (const auto& s : shapes) {
    for (bool residual : {false, true}) {
      ScaleShiftProblem p;
      p.N = s[0];
      p.C = s[1];
      p.inner = s[2];
      p.has_residual = residual;
      p.act.kind = ActivationKind::kRelu;
      compare<float>(p, 3);
      compare<half>(p, 3);
    }
  }
}

TEST_CASE("scale shift of nothing") {
  for (int64_t empty : {0, 1, 2}) {
    ScaleShiftProblem p;
    p.N = empty == 0 ? 0 : 2;
    p.C = empty == 1 ? 0 : 2;
    p.inner = empty == 2 ? 0 : 2;
    ThreadParallel parallel(2);
    HeapWorkspace heap;
    cpu::scale_shift<float>(p, nullptr, nullptr, nullptr, nullptr, nullptr, parallel,
                            heap.allocate(cpu::scale_shift_workspace<float>(p, 1)));
  }
}

}  // namespace
}  // namespace graphopt::test
