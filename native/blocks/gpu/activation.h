// Activations in float32, which kernels apply to their results. Definitions: docs/ops.md.
#pragma once

#include "device/platform.h"
#include "operators/activation.h"

namespace graphopt::hip {

DEVICE float sigmoid(float x) { return rcp_fast(1.0f + exp_fast(-x)); }

// Computes (1 - e) / (1 + e) with e = exp(-2 |x|). Near 0 this quotient loses relative accuracy, so a Taylor
// polynomial replaces it for |x| < 0.25.
DEVICE float tanh_fast(float x) {
  const float magnitude = x < 0 ? -x : x;
  const float e = exp_fast(-2.0f * magnitude);
  const float quotient = (1.0f - e) * rcp_fast(1.0f + e);
  const float x2 = x * x;
  const float series =
      x + x * x2 * (-0.33333333f + x2 * (0.13333333f + x2 * (-0.053968254f + x2 * 0.021869488f)));
  const float large = x < 0 ? -quotient : quotient;
  return magnitude < 0.25f ? series : large;  // NaN is propagated
}

// Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: absolute error below 1.5e-7.
DEVICE float erf_fast(float x) {
  const float magnitude = x < 0 ? -x : x;
  const float t = rcp_fast(1.0f + 0.3275911f * magnitude);
  const float p =
      t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  const float y = 1.0f - p * exp_fast(-magnitude * magnitude);
  return x < 0 ? -y : y;
}

DEVICE float clamp01(float x) {
  x = x > 1.0f ? 1.0f : x;
  return x < 0.0f ? 0.0f : x;
}

// Returns NaN for NaN, because the comparison with 0 is false.
DEVICE float relu(float x) { return x < 0.0f ? 0.0f : x; }

DEVICE float activate_one(ActivationKind kind, float a, float b, float x) {
  switch (kind) {
    case ActivationKind::kRelu:
      return relu(x);
    case ActivationKind::kLeakyRelu:
      return x < 0.0f ? a * x : x;
    case ActivationKind::kClip:
      x = x < a ? a : x;
      return x > b ? b : x;
    case ActivationKind::kSigmoid:
      return sigmoid(x);
    case ActivationKind::kSilu:
      return x * sigmoid(x);
    case ActivationKind::kHardSigmoid:
      return clamp01(a * x + b);
    case ActivationKind::kHardSwish:
      return x * clamp01(x * 0.16666667f + 0.5f);
    case ActivationKind::kTanh:
      return tanh_fast(x);
    case ActivationKind::kGelu:
      return 0.5f * x * (1.0f + erf_fast(x * 0.70710678f));
    case ActivationKind::kGeluTanh:
      return 0.5f * x * (1.0f + tanh_fast(0.79788456f * (x + 0.044715f * x * x * x)));
    case ActivationKind::kMish: {  // tanh(ln(1 + e)) = (e^2 + 2e) / (e^2 + 2e + 2), without cancellation
      const float e = exp_fast(x);
      const float n = e * (e + 2.0f);
      return x > 20.0f ? x : x * n * rcp_fast(n + 2.0f);
    }
    default:
      return x;
  }
}

// Switches on `act.kind` once for all values of a work-item. The branch does not diverge, because the kind is
// the same in all work-items.
template <int kCount>
DEVICE void activate(const Activation& act, float (&x)[kCount]) {
#define GRAPHOPT_KIND(name, a_name, b_name)                               \
  case ActivationKind::k##name:                                           \
    if constexpr (ActivationKind::k##name != ActivationKind::kNone) {     \
      UNROLL for (int i = 0; i < kCount; ++i) {                           \
        x[i] = activate_one(ActivationKind::k##name, act.a, act.b, x[i]); \
      }                                                                   \
    }                                                                     \
    break;
  switch (act.kind) { GRAPHOPT_ACTIVATIONS(GRAPHOPT_KIND) }
#undef GRAPHOPT_KIND
}

}  // namespace graphopt::hip
