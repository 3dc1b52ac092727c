// The activations that com.graphopt operators can fuse as their last step. Operators, CPU kernels and device kernels
// share this table. cpu/microkernels/activation.h and blocks/gpu/activation.h compute them; graphopt/ops/activation.py
// has their function bodies.
#pragma once

#include "device/integers.h"

namespace graphopt {

// KIND(name, attribute that sets Activation::a, attribute that sets Activation::b). null: the kind does not use the
// field. The numeric value of a kind never changes. The table is a macro because a template cannot make an enumerator
// or a case label.
#define GRAPHOPT_ACTIVATIONS(KIND)   \
  KIND(None, nullptr, nullptr)       \
  KIND(Relu, nullptr, nullptr)       \
  KIND(LeakyRelu, "alpha", nullptr)  \
  KIND(Clip, "min", "max")           \
  KIND(Sigmoid, nullptr, nullptr)    \
  KIND(Silu, nullptr, nullptr)       \
  KIND(HardSigmoid, "alpha", "beta") \
  KIND(HardSwish, nullptr, nullptr)  \
  KIND(Tanh, nullptr, nullptr)       \
  KIND(Gelu, nullptr, nullptr)       \
  KIND(GeluTanh, nullptr, nullptr)   \
  KIND(Mish, nullptr, nullptr)

enum class ActivationKind : int32_t {
#define GRAPHOPT_KIND(name, a, b) k##name,
  GRAPHOPT_ACTIVATIONS(GRAPHOPT_KIND)
#undef GRAPHOPT_KIND
};

struct ActivationRow {
  const char* name;
  const char *a, *b;  // names of the attributes, or null
};
constexpr ActivationRow kActivations[] = {
#define GRAPHOPT_KIND(name, a, b) {#name, a, b},
    GRAPHOPT_ACTIVATIONS(GRAPHOPT_KIND)
#undef GRAPHOPT_KIND
};
constexpr int32_t kActivationCount = sizeof kActivations / sizeof kActivations[0];

// A POD, because device kernels receive it by value.
struct Activation {
  ActivationKind kind = ActivationKind::kNone;
  float a = 0.0f;  // LeakyRelu alpha, Clip min, HardSigmoid alpha
  float b = 0.0f;  // Clip max, HardSigmoid beta
};

}  // namespace graphopt
