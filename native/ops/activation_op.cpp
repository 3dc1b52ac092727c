#include "ops/activation_op.h"

namespace graphopt {

const std::vector<ActivationKind>& all_activations() {
  using A = ActivationKind;
  static const std::vector<A> all = {A::kNone,    A::kRelu, A::kLeakyRelu,   A::kClip,
                                     A::kSigmoid, A::kSilu, A::kHardSigmoid, A::kHardSwish,
                                     A::kTanh,    A::kGelu, A::kGeluTanh,    A::kMish};
  return all;
}

const char* activation_suffix(ActivationKind kind) {
  switch (kind) {
    case ActivationKind::kNone:
      return "";
    case ActivationKind::kRelu:
      return "Relu";
    case ActivationKind::kLeakyRelu:
      return "LeakyRelu";
    case ActivationKind::kClip:
      return "Clip";
    case ActivationKind::kSigmoid:
      return "Sigmoid";
    case ActivationKind::kSilu:
      return "Silu";
    case ActivationKind::kHardSigmoid:
      return "HardSigmoid";
    case ActivationKind::kHardSwish:
      return "HardSwish";
    case ActivationKind::kTanh:
      return "Tanh";
    case ActivationKind::kGelu:
      return "Gelu";
    case ActivationKind::kGeluTanh:
      return "GeluTanh";
    case ActivationKind::kMish:
      return "Mish";
  }
  return "";
}

Activation read_activation(ActivationKind kind, const Attributes& attributes) {
  Activation act;
  act.kind = kind;
  switch (kind) {
    case ActivationKind::kLeakyRelu:
      act.a = attributes.get_float("alpha");
      break;
    case ActivationKind::kClip:
      act.a = attributes.get_float("min");
      act.b = attributes.get_float("max");
      break;
    case ActivationKind::kHardSigmoid:
      act.a = attributes.get_float("alpha");
      act.b = attributes.get_float("beta");
      break;
    default:
      break;
  }
  return act;
}

}  // namespace graphopt
