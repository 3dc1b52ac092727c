#include <algorithm>

#include "blocks/half.h"
#include "cpu/microkernels/activation.h"
#include "cpu/microkernels/block.h"
#include "cpu/parallel_for.h"
#include "operators/elementwise/activation/op.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

template <class T>
void activation(const ActivationProblem& p, const T* x, T* y, Parallel& parallel) {
  constexpr int64_t kAtOnce = 16 * kBlock;  // elements that a thread processes at a time
  const int64_t total = p.shape.elements();
  parallel_for(parallel, (total + kAtOnce - 1) / kAtOnce, [&](int64_t item, size_t) {
    alignas(64) float x_buffer[kBlock], y_buffer[kBlock];
    const int64_t end = std::min(total, (item + 1) * kAtOnce);
    for (int64_t i = item * kAtOnce; i < end; i += kBlock) {
      const auto count = static_cast<size_t>(std::min(kBlock, end - i));
      float* to = target(y + i, y_buffer);
      activate_block(p.act, as_float(x + i, x_buffer, count), to, count);
      store(y + i, to, count);
    }
  });
}

GRAPHOPT_INSTANTIATE(activation)

}  // namespace graphopt::cpu::GRAPHOPT_ISA
