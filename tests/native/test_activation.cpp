#include "check.h"
#include "operators/scale_shift/op.h"

namespace graphopt::test {
namespace {

// The activation of each value, by way of a ScaleShift with scale 1 and shift 0.
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
                   workspace.allocate(cpu::scale_shift_workspace<float>(p)));
  return y;
}

GRAPHOPT_TEST(activations_are_accurate_relative_to_each_value) {
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
      // Where a sum of the formula itself cancels, or float runs out of range, an error of one rounding is
      // absolute.
      const double error = std::abs(static_cast<double>(y[i]) - expected) / (std::abs(expected) + 1e-30);
      const bool cancels = act.kind == ActivationKind::kHardSigmoid || act.kind == ActivationKind::kHardSwish;
      const double bound = cancels ? std::abs(static_cast<double>(y[i]) - expected) : error;
      if (bound > worst) {
        worst = bound;
        at = x[i];
      }
    }
    // The tails of Gelu are e^(-x^2 / 2), whose relative condition is x^2.
    const bool tail = act.kind == ActivationKind::kGelu || act.kind == ActivationKind::kGeluTanh;
    CHECK_MSG(worst < (tail ? 1e-4 : 1e-6), "activation " + std::to_string(static_cast<int>(act.kind)) +
                                                ": error " + std::to_string(worst * 1e6) + "e-6 at " +
                                                std::to_string(at));
  }
}

// What comes next may take acos, atanh or a logarithm of it.
GRAPHOPT_TEST(activations_that_saturate_stay_within_their_range) {
  std::vector<float> x;
  for (float v = -20.0f; v < 20.0f; v += 0.00031f) x.push_back(v);
  for (ActivationKind kind : {ActivationKind::kTanh, ActivationKind::kSigmoid}) {
    const float low = kind == ActivationKind::kTanh ? -1.0f : 0.0f;
    const std::vector<float> y = activate({kind}, x);
    for (size_t i = 0; i < x.size(); ++i) {
      CHECK_MSG(y[i] >= low && y[i] <= 1.0f, "activation " + std::to_string(static_cast<int>(kind)) + " of " +
                                                 std::to_string(x[i]) + " is " + std::to_string(y[i]));
    }
  }
}

GRAPHOPT_TEST(activations_at_the_ends_of_the_range) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float largest = std::numeric_limits<float>::max();
  for (const Activation& act : every_activation()) {
    const std::vector<float> x = {std::nanf(""), largest, -largest, infinity, -infinity,
                                  0.0f,          -0.0f,   1e-42f,   -1e-42f};
    const std::vector<float> y = activate(act, x);
    const std::string name = "activation " + std::to_string(static_cast<int>(act.kind));
    CHECK_MSG(std::isnan(y[0]), name + " of NaN");
    for (size_t i = 1; i < x.size(); ++i) {
      const double expected = reference_activation(act, static_cast<double>(x[i]));
      const auto rounded = static_cast<float>(expected);
      const bool same = std::isnan(expected)  ? std::isnan(y[i])
                        : std::isinf(rounded) ? y[i] == rounded
                                              : std::abs(static_cast<double>(y[i]) - expected) <=
                                                    1e-6 * std::abs(expected) + 1e-41;
      CHECK_MSG(same, name + " of " + std::to_string(x[i]) + " is " + std::to_string(y[i]));
    }
  }
}

}  // namespace
}  // namespace graphopt::test
