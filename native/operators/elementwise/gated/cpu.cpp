#include <algorithm>

#include "blocks/half.h"
#include "cpu/microkernels/activation.h"
#include "cpu/microkernels/block.h"
#include "cpu/parallel_for.h"
#include "operators/elementwise/gated/op.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

// Computes y = act(a) b for n <= kBlock elements.
using Block = void (*)(const float* a, const float* b, const Activation& act, float* y, int64_t n);

template <ActivationKind kKind>
void block(const float* a, const float* b, const Activation& act, float* y, int64_t n) {
  alignas(64) float activated[kBlock];
  activate_each<kKind>(act, activated, n, [=](auto read) { return read(a); });
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = activated[i] * b[i];
}

}  // namespace

template <class T>
void gated(const GatedProblem& p, const T* a, const T* b, T* y, Parallel& parallel) {
  if (p.rows * p.D == 0) return;
  // Without halves all elements form one row.
  const int64_t D = p.halves ? p.D : p.rows * p.D, rows = p.halves ? p.rows : 1;
  const int64_t step = p.halves ? 2 * D : D;
  const T* gate = p.halves ? a + p.gate * D : a;
  const T* other = p.halves ? a + (1 - p.gate) * D : b;
  const Block compute = with_kind(p.act.kind, [](auto kind) -> Block { return block<kind>; });
  const int64_t blocks = (D + kBlock - 1) / kBlock;
  constexpr int64_t kAtOnce = 16;  // blocks that a thread processes at a time
  parallel_for(parallel, (rows * blocks + kAtOnce - 1) / kAtOnce, [&](int64_t item, size_t) {
    alignas(64) float a_buffer[kBlock], b_buffer[kBlock], y_buffer[kBlock];
    for (int64_t k = item * kAtOnce; k < std::min(rows * blocks, (item + 1) * kAtOnce); ++k) {
      const int64_t row = k / blocks, first = k % blocks * kBlock;
      const int64_t n = std::min(kBlock, D - first);
      const auto count = static_cast<size_t>(n);
      float* to = target(y + row * D + first, y_buffer);
      compute(as_float(gate + row * step + first, a_buffer, count),
              as_float(other + row * step + first, b_buffer, count), p.act, to, n);
      store(y + row * D + first, to, count);
    }
  });
}

GRAPHOPT_INSTANTIATE(gated)

}  // namespace graphopt::cpu::GRAPHOPT_ISA
