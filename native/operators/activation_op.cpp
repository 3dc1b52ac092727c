#include "operators/activation_op.h"

namespace graphopt {
const std::vector<ActivationKind>& all_activations() {
  static const std::vector<ActivationKind> all = [] {
    std::vector<ActivationKind> kinds;
    for (int32_t i = 0; i < kActivationCount; ++i) kinds.push_back(static_cast<ActivationKind>(i));
    return kinds;
  }();
  return all;
}

const char* activation_suffix(ActivationKind kind) {
  return kind == ActivationKind::kNone ? "" : kActivations[static_cast<size_t>(kind)].name;
}

Activation read_activation(ActivationKind kind, const Attributes& attributes) {
  const ActivationRow& entry = kActivations[static_cast<size_t>(kind)];
  Activation act;
  act.kind = kind;
  if (entry.a != nullptr) act.a = attributes.get_float(entry.a);
  if (entry.b != nullptr) act.b = attributes.get_float(entry.b);
  return act;
}

}  // namespace graphopt
