// InvertedResidual against sums in double.
#include "operators/conv/inverted_residual/op.h"
#include "testing.h"

namespace graphopt::test {
namespace {

using Problem = InvertedResidualProblem;

double at(const std::vector<float>& v, int64_t i) { return static_cast<double>(v[static_cast<size_t>(i)]); }

// Computes the three convolutions one after the other; weights are in this order.
std::vector<double> reference(const Problem& p, const std::vector<float>& x,
                              const std::vector<std::vector<float>>& w) {
  std::vector<double> y;
  for (int64_t n = 0; n < p.N; ++n) {
    std::vector<double> filtered;
    for (int64_t m = 0; m < p.M; ++m) {
      std::vector<double> hidden;
      for (int64_t i = 0; i < p.in_size(); ++i) {
        double sum = at(w[1], m);
        for (int64_t c = 0; c < p.C; ++c)
          sum += at(w[0], m * p.C + c) * at(x, (n * p.C + c) * p.in_size() + i);
        hidden.push_back(reference_activation(p.act, sum));
      }
      for (int64_t i = 0; i < p.out_size(); ++i) {
        double sum = at(w[3], m);
        for (int64_t tap = 0; tap < p.taps(); ++tap) {
          const int64_t h = i / p.out[1] * p.stride[0] - p.pad[0] + tap / p.kernel[1];
          const int64_t v = i % p.out[1] * p.stride[1] - p.pad[1] + tap % p.kernel[1];
          if (h < 0 || h >= p.in[0] || v < 0 || v >= p.in[1]) continue;
          sum += at(w[2], m * p.taps() + tap) * hidden[static_cast<size_t>(h * p.in[1] + v)];
        }
        filtered.push_back(reference_activation(p.act, sum));
      }
    }
    for (int64_t o = 0; o < p.O; ++o) {
      for (int64_t i = 0; i < p.out_size(); ++i) {
        double sum = at(w[5], o);
        for (int64_t m = 0; m < p.M; ++m) {
          sum += at(w[4], o * p.M + m) * filtered[static_cast<size_t>(m * p.out_size() + i)];
        }
        y.push_back(sum);
      }
    }
  }
  return y;
}

std::vector<float> result(const Problem& p, const std::vector<float>& x, const std::vector<float>& r,
                          const std::vector<std::vector<float>>& w, size_t workers) {
  std::vector<float> y(static_cast<size_t>(p.N * p.O * p.out_size()) + 1, 77.0f);
  ThreadParallel pool(workers);
  HeapWorkspace arena;
  cpu::InvertedResidualWeights<float> from;
  for (size_t i = 0; i < from.size(); ++i) from[i] = w[i].data();
  void* packed = arena.allocate(cpu::inverted_residual_weights<float>(p));
  cpu::inverted_residual_prepare(p, from, packed);
  void* workspace = arena.allocate(cpu::inverted_residual_workspace<float>(p, workers));
  cpu::inverted_residual(p, x.data(), packed, p.has_residual ? r.data() : nullptr, y.data(), pool, workspace);
  return y;
}

void compare(const Problem& p) {
  const auto x = random_tensor<float>(p.N * p.C * p.in_size(), 1, 1.0f);
  const auto r = random_tensor<float>(p.has_residual ? p.N * p.O * p.out_size() : 0, 2, 1.0f);
  std::vector<std::vector<float>> w;
  for (const int64_t size : {p.M * p.C, p.M, p.M * p.taps(), p.M, p.O * p.M, p.O}) {
    w.push_back(random_tensor<float>(size, static_cast<uint32_t>(w.size()) + 3, 0.3f));
  }
  const std::vector<float> one = result(p, x, r, w, 1);
  const std::vector<double> wanted = reference(p, x, w);
  double worst = 0, square = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const double y = wanted[i] + (p.has_residual ? static_cast<double>(r[i]) : 0.0);
    worst = std::max(worst, std::abs(static_cast<double>(one[i]) - y));
    square += y * y;
  }
  CHECK(one.back() == 77.0f);
  CHECK(worst <= 1e-5 * std::sqrt(square / static_cast<double>(std::max<size_t>(wanted.size(), 1))));
  for (const size_t workers : {2, 5, 16}) CHECK(result(p, x, r, w, workers) == one);
}

TEST_CASE("inverted residual of odd sizes") {
  // C, M, O, height, width, kernel, stride
  for (const auto& [C, M, O, H, W, kernel, stride] :
       {std::array<int64_t, 7>{5, 37, 11, 7, 9, 3, 1},
        {16, 96, 24, 31, 33, 3, 2},
        {3, 130, 17, 60, 41, 3, 1},  // a few rows at a time
        {2, 200, 40, 61, 70, 3, 2},
        {4, 90, 3, 64, 52, 5, 1},
        {4, 33, 24, 20, 21, 5, 2},
        {2, 150, 8, 50, 40, 2, 3},  // rows of x that no window covers
        {1, 1, 1, 1, 1, 3, 1},
        {3, 4, 5, 0, 6, 2, 1},  // only padding
        {3, 4, 5, 6, 7, 3, 1}}) {
    for (const bool residual : {false, true}) {
      Problem p;
      p.N = 3;
      p.C = C;
      p.M = M;
      p.O = O;
      p.in = {H, W};
      p.kernel = {kernel, kernel};
      p.stride = {stride, stride};
      p.pad = {kernel / 2, kernel / 2};
      for (size_t i = 0; i < 2; ++i) p.out[i] = (p.in[i] + 2 * p.pad[i] - kernel) / stride + 1;
      p.has_residual = residual;
      p.act.kind = residual ? ActivationKind::kSilu : ActivationKind::kClip;
      p.act.a = 0.0f;
      p.act.b = 6.0f;
      compare(p);
    }
  }
}

}  // namespace
}  // namespace graphopt::test
