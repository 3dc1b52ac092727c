// Activations of blocks, shared by most kernels.
#include "cpu/microkernels/activation.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

void activate_block(const Activation& act, const float* x, float* y, size_t n) {
  with_kind(act.kind, [&](auto kind) {
    if constexpr (kind == ActivationKind::kNone) {
      if (y != x) std::memcpy(y, x, n * sizeof(float));
    } else {
      activate_each<kind>(act, y, static_cast<int64_t>(n), [x](auto read) { return read(x); });
    }
  });
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
