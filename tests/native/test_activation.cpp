#include "operators/normalization/scale_shift/op.h"
#include "testing.h"

namespace graphopt::test {
namespace {

// Applies the activation to each value, through a ScaleShift with scale 1 and shift 0.
std::vector<float> activate(const Activation& act, const std::vector<float>& x) {
  ScaleShiftProblem p;
  p.N = 1;
  p.C = 1;
  p.inner = static_cast<int64_t>(x.size());
  p.act = act;
  const float one = 1, zero = 0;
  std::vector<float> y(x.size());
  ThreadParallel parallel(1);
  HeapWorkspace workspace;
  cpu::scale_shift(p, x.data(), &one, &zero, static_cast<const float*>(nullptr), y.data(), parallel,
                   workspace.allocate(cpu::scale_shift_workspace<float>(p, 1)));
  return y;
}

TEST_CASE("activations are accurate relative to each value") {
  std::vector<float> x;
  for (float v = -30.0f; v < 30.0f; v += 0.00137f) x.push_back(v);
  for (int e = -30; e < 10; ++e) {
    x.push_back(std::ldexp(1.1f, e));
    x.push_back(std::ldexp(-1.1f, e));
  }
  for (const Activation& act : every_activation()) {
    const std::vector<float> y = activate(act, x);
    double worst = 0;
    float at = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double expected = reference_activation(act, static_cast<double>(x[i]));
      // Where a sum in the formula cancels, or float exceeds its range, a single rounding error is absolute.
      const double error = std::abs(static_cast<double>(y[i]) - expected) / (std::abs(expected) + 1e-30);
      const bool cancels = act.kind == ActivationKind::kHardSigmoid || act.kind == ActivationKind::kHardSwish;
      const double bound = cancels ? std::abs(static_cast<double>(y[i]) - expected) : error;
      if (bound > worst) {
        worst = bound;
        at = x[i];
      }
    }
    // The tails of Gelu are e^(-x^2 / 2), with a relative condition number of x^2.
    const bool tail = act.kind == ActivationKind::kGelu || act.kind == ActivationKind::kGeluTanh;
    INFO("activation ", static_cast<int>(act.kind), " at ", at);
    CHECK(worst < (tail ? 1e-4 : 1e-6));
  }
}

// A later node may compute acos, atanh or a logarithm of the result.
TEST_CASE("activations that saturate stay within their range") {
  std::vector<float> x;
  for (float v = -20.0f; v < 20.0f; v += 0.00031f) x.push_back(v);
  for (ActivationKind kind : {ActivationKind::kTanh, ActivationKind::kSigmoid}) {
    const float low = kind == ActivationKind::kTanh ? -1.0f : 0.0f;
    const std::vector<float> y = activate({kind}, x);
    for (size_t i = 0; i < x.size(); ++i) {
      INFO("activation ", static_cast<int>(kind), " of ", x[i]);
      CHECK(y[i] >= low);
      CHECK(y[i] <= 1.0f);
    }
  }
}

TEST_CASE("activations at the ends of the range") {
  const float infinity = std::numeric_limits<float>::infinity();
  const float largest = std::numeric_limits<float>::max();
  for (const Activation& act : every_activation()) {
    const std::vector<float> x = {std::nanf(""), largest, -largest, infinity, -infinity,
                                  0.0f,          -0.0f,   1e-42f,   -1e-42f};
    const std::vector<float> y = activate(act, x);
    INFO("activation ", static_cast<int>(act.kind));
    CHECK(std::isnan(y[0]));
    for (size_t i = 1; i < x.size(); ++i) {
      const double expected = reference_activation(act, static_cast<double>(x[i]));
      const auto rounded = static_cast<float>(expected);
      const bool same = std::isnan(expected)  ? std::isnan(y[i])
                        : std::isinf(rounded) ? y[i] == rounded
                                              : std::abs(static_cast<double>(y[i]) - expected) <=
                                                    1e-6 * std::abs(expected) + 1e-41;
      CHECK_MESSAGE(same, "of ", x[i], " is ", y[i]);
    }
  }
}

}  // namespace
}  // namespace graphopt::test
