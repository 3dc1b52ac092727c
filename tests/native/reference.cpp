#include "testing.h"

namespace graphopt::test {

double reference_activation(const Activation& act, double x) {
  const double a = static_cast<double>(act.a);
  const double b = static_cast<double>(act.b);
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  switch (act.kind) {
    case ActivationKind::kNone:
      return x;
    case ActivationKind::kRelu:
      return std::max(x, 0.0);
    case ActivationKind::kLeakyRelu:
      return x < 0 ? a * x : x;
    case ActivationKind::kClip:
      return std::min(std::max(x, a), b);
    case ActivationKind::kSigmoid:
      return sigmoid(x);
    case ActivationKind::kSilu:
      return x * sigmoid(x);
    case ActivationKind::kHardSigmoid:
      return std::max(0.0, std::min(1.0, a * x + b));
    case ActivationKind::kHardSwish:
      return x * std::max(0.0, std::min(1.0, x / 6 + 0.5));
    case ActivationKind::kTanh:
      return std::tanh(x);
    case ActivationKind::kGelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case ActivationKind::kGeluTanh:
      return x * sigmoid(2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x));
    case ActivationKind::kMish:
      return x * std::tanh(std::log1p(std::exp(-std::abs(x))) + std::max(x, 0.0));
  }
  return x;
}

std::vector<Activation> every_activation() {
  using A = ActivationKind;
  return {
      {A::kNone, 0, 0},        {A::kRelu, 0, 0},    {A::kLeakyRelu, 0.1f, 0}, {A::kLeakyRelu, -2.0f, 0},
      {A::kClip, -0.5f, 0.9f}, {A::kSigmoid, 0, 0}, {A::kSilu, 0, 0},         {A::kHardSigmoid, 0.3f, 0.4f},
      {A::kHardSwish, 0, 0},   {A::kTanh, 0, 0},    {A::kGelu, 0, 0},         {A::kGeluTanh, 0, 0},
      {A::kMish, 0, 0}};
}

}  // namespace graphopt::test
