// FusedConvTranspose against sums in double.
#include <cmath>
#include <limits>

#include "operators/conv/fused_conv_transpose/op.h"
#include "testing.h"

namespace graphopt::test {
namespace {

using Axes = ConvolutionProblem::Axes;

struct Operands {
  std::vector<float> x, w, b, r, slopes;
  std::vector<double> sums;  // without bias and epilogue

  explicit Operands(const ConvolutionProblem& p)
      : x(random_tensor<float>(p.N * p.x_channels() * p.in_size(), 1, 1.0f)),
        w(random_tensor<float>(p.x_channels() * p.M * p.taps(), 2, 0.2f)),
        b(random_tensor<float>(p.y_channels(), 3, 1.0f)),
        r(random_tensor<float>(p.N * p.y_channels() * p.out_size(), 4, 1.0f)),
        slopes(random_tensor<float>(p.y_channels(), 5, 1.0f)),
        sums(r.size()) {
    for (int64_t n = 0; n < p.N; ++n) {
      for (int64_t c = 0; c < p.x_channels(); ++c) {
        const int64_t g = c / p.C;
        for (int64_t m = 0; m < p.M; ++m) {
          const float* image = x.data() + (n * p.x_channels() + c) * p.in_size();
          double* plane = sums.data() + (n * p.y_channels() + g * p.M + m) * p.out_size();
          for (int64_t tap = 0; tap < p.taps(); ++tap) {
            add_tap(p, double(w[static_cast<size_t>((c * p.M + m) * p.taps() + tap)]), tap, image, plane);
          }
        }
      }
    }
  }

 private:
  // Adds each element of a plane of x, times a weight, to this tap's position of its window.
  static void add_tap(const ConvolutionProblem& p, double weight, int64_t tap, const float* image,
                      double* plane) {
    const Axes k = {tap / p.kernel[2] / p.kernel[1], tap / p.kernel[2] % p.kernel[1], tap % p.kernel[2]};
    for (int64_t i = 0; i < p.in_size(); ++i) {
      const Axes from = {i / p.in[2] / p.in[1], i / p.in[2] % p.in[1], i % p.in[2]};
      int64_t place = 0;
      bool inside = true;
      for (size_t axis = 0; axis < 3; ++axis) {
        const int64_t at = from[axis] * p.stride[axis] + k[axis] * p.dilation[axis] - p.pad[axis];
        inside = inside && at >= 0 && at < p.out[axis];
        place = place * p.out[axis] + at;
      }
      if (inside) plane[place] += weight * double(image[i]);
    }
  }
};

std::vector<float> computed(const ConvolutionProblem& p, const Operands& given, size_t workers) {
  std::vector<float> y(given.sums.size() + 1, 77.0f);
  ThreadParallel pool(workers);
  HeapWorkspace arena;
  void* weights = arena.allocate(cpu::fused_conv_transpose_weights<float>(p, {}));
  cpu::fused_conv_transpose_prepare(p, {}, given.w.data(), weights);
  void* scratch = arena.allocate(cpu::fused_conv_transpose_workspace<float>(p, {}, workers));
  const float* r = p.has_residual ? given.r.data() : nullptr;
  const float* slopes = p.has_slopes ? given.slopes.data() : nullptr;
  cpu::fused_conv_transpose(p, {}, given.x.data(), weights, given.b.data(), r, slopes, y.data(), pool,
                            scratch);
  return y;
}

void check_result(const ConvolutionProblem& p, const Operands& given, const std::vector<float>& y) {
  double worst = 0;
  for (size_t i = 0; i < given.sums.size(); ++i) {
    const auto m = static_cast<size_t>(static_cast<int64_t>(i) / p.out_size() % p.y_channels());
    const double sum = given.sums[i] + double(given.b[m]) + double(p.has_residual ? given.r[i] : 0.0f);
    const double want =
        p.has_slopes ? (sum < 0 ? sum * double(given.slopes[m]) : sum) : reference_activation(p.act, sum);
    const double error = std::abs(want - double(y[i]));
    worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
  }
  CHECK(y.back() == 77.0f);
  CHECK(worst < 5e-5);
}

// Sets the output size for trailing padding and additional trailing elements.
ConvolutionProblem sized(ConvolutionProblem p, const Axes& pad_end = {}, const Axes& more = {}) {
  p.transposed = true;
  for (size_t i = 0; i < 3; ++i) {
    p.out[i] = (p.in[i] - 1) * p.stride[i] + p.span(i) + more[i] - p.pad[i] - pad_end[i];
  }
  return p;
}

std::vector<ConvolutionProblem> problems() {
  std::vector<ConvolutionProblem> all;
  const auto add = [&](int64_t groups, int64_t C, int64_t M, const Axes& in, const Axes& kernel,
                       const Axes& stride, const Axes& pad, const Axes& pad_end, const Axes& more,
                       const Axes& dilation) {
    ConvolutionProblem p;
    p.N = all.size() % 3 == 1 ? 2 : 1;
    p.groups = groups;
    p.C = C;
    p.M = M;
    p.in = in;
    p.kernel = kernel;
    p.stride = stride;
    p.pad = pad;
    p.dilation = dilation;
    all.push_back(sized(p, pad_end, more));
  };
  const Axes none = {}, ones = {1, 1, 1}, around = {0, 1, 1};
  // Windows that do not overlap, with channels that do not fill a block, and with one channel.
  add(1, 20, 7, {1, 9, 13}, {1, 2, 2}, {1, 2, 2}, none, none, none, ones);
  add(1, 5, 1, {1, 11, 17}, {1, 2, 2}, {1, 2, 2}, none, none, none, ones);
  add(1, 3, 33, {1, 5, 6}, {1, 4, 4}, {1, 4, 4}, none, none, none, ones);
  add(1, 9, 4, {1, 4, 7}, {1, 2, 3}, {1, 2, 3}, none, none, none, ones);
  add(1, 6, 5, {3, 4, 5}, {2, 2, 2}, {2, 2, 2}, none, none, none, ones);
  // Overlapping windows.
  add(1, 17, 19, {1, 8, 12}, {1, 4, 4}, {1, 2, 2}, around, around, none, ones);
  add(1, 8, 13, {1, 7, 9}, {1, 3, 3}, {1, 2, 2}, around, around, around, ones);
  add(1, 7, 6, {1, 6, 21}, {1, 5, 3}, ones, {0, 2, 0}, {0, 1, 2}, none, ones);
  add(1, 4, 3, {4, 3, 5}, {3, 4, 2}, {2, 2, 1}, {1, 1, 0}, {1, 1, 1}, {1, 0, 0}, ones);
  add(1, 40, 12, {1, 1, 103}, {1, 1, 16}, {1, 1, 8}, {0, 0, 4}, {0, 0, 4}, none, ones);
  add(1, 12, 5, {1, 1, 29}, {1, 1, 11}, {1, 1, 5}, {0, 0, 3}, {0, 0, 3}, none, ones);
  add(1, 3, 2, {1, 1, 9}, {1, 1, 70}, {1, 1, 35}, {0, 0, 17}, {0, 0, 18}, none, ones);
  // In groups, some with single channels.
  add(3, 5, 2, {1, 6, 7}, {1, 4, 3}, {1, 2, 2}, around, around, none, ones);
  add(20, 1, 1, {1, 9, 11}, {1, 4, 4}, {1, 2, 2}, around, around, none, ones);
  // Elements without any tap, because of dilations or of windows smaller than the stride.
  add(1, 5, 6, {1, 6, 8}, {1, 3, 2}, {1, 2, 2}, none, none, around, {1, 2, 4});
  add(1, 5, 6, {1, 6, 8}, {1, 3, 2}, {1, 2, 3}, none, {0, 1, 2}, none, {1, 3, 5});
  add(1, 4, 3, {1, 4, 5}, {1, 2, 3}, {1, 3, 4}, none, none, {0, 2, 3}, ones);
  add(1, 4, 3, {2, 3, 4}, {1, 1, 1}, {3, 2, 2}, none, none, {2, 0, 1}, ones);
  // Pads beyond the first elements of x.
  add(1, 6, 4, {1, 9, 14}, {1, 4, 3}, {1, 2, 2}, {0, 9, 7}, {0, 3, 11}, none, ones);
  add(1, 6, 4, {1, 1, 30}, {1, 1, 2}, {1, 1, 2}, {0, 0, 23}, {0, 0, 29}, none, {1, 1, 3});
  // One element along an axis, none, and strides that are larger than Y.
  add(1, 30, 8, {1, 1, 1}, {1, 4, 4}, ones, none, none, none, ones);
  add(1, 3, 4, {1, 1, 1}, {1, 2, 2}, {1, 1000000, 1000000}, none, none, {0, 1, 2}, ones);
  add(1, 3, 4, {1, 0, 3}, {1, 4, 2}, {1, 2, 2}, none, none, none, ones);
  // Several strips, of rows and of columns.
  add(1, 64, 5, {1, 70, 61}, {1, 3, 3}, {1, 2, 2}, around, around, around, ones);
  add(1, 40, 6, {1, 1, 4001}, {1, 1, 5}, {1, 1, 2}, {0, 0, 2}, {0, 0, 2}, none, {1, 1, 3});
  return all;
}

TEST_CASE("fused transposed conv of many shapes") {
  using Kind = ActivationKind;
  // The kernels apply some activations in registers, others to stored results.
  const Activation activations[] = {{},
                                    {Kind::kRelu, 0, 0},
                                    {Kind::kLeakyRelu, -0.5f, 0},
                                    {Kind::kClip, -0.25f, 0.5f},
                                    {Kind::kSilu, 0, 0}};
  for (ConvolutionProblem& p : problems()) {
    const Operands given(p);
    for (const bool residual : {false, true}) {
      p.has_residual = residual;
      for (const Activation& act : activations) {
        p.act = act;
        p.has_slopes = act.kind == Kind::kNone && residual;
        const std::vector<float> y = computed(p, given, 1);
        check_result(p, given, y);
        CHECK(y == computed(p, given, 3));
      }
    }
  }
}

TEST_CASE("infinite numbers stay in their windows") {
  ConvolutionProblem p;
  p.C = 2;
  p.M = 3;
  p.in = {1, 5, 6};
  p.kernel = {1, 3, 4};
  p.stride = {1, 2, 2};
  p.pad = {0, 1, 1};
  p = sized(p, {0, 1, 1});
  Operands given(p);
  for (int64_t at = 0; at < p.in_size(); ++at) {
    given.x.assign(given.x.size(), 1.0f);
    given.x[static_cast<size_t>(at)] = std::numeric_limits<float>::infinity();
    const std::vector<float> y = computed(p, given, 1);
    for (int64_t i = 0; i < p.out_size(); ++i) {
      const int64_t h = i / p.out[2] + 1 - at / 6 * 2, w = i % p.out[2] + 1 - at % 6 * 2;
      CHECK(std::isfinite(y[static_cast<size_t>(i)]) != (h >= 0 && h < 3 && w >= 0 && w < 4));
    }
  }
}

}  // namespace
}  // namespace graphopt::test
