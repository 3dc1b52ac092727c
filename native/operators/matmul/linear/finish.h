// The epilogue of Linear on CPUs: bias, residual and activation. For kernel files only (see cpu/isa.h).
#pragma once

#include "cpu/microkernels/activation.h"
#include "cpu/microkernels/packing.h"
#include "operators/matmul/linear/problem.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// Computes `rows` rows of y, from column n on, from their sums o [rows][vectors * kWidth]. Overwrites o. y has
// `columns` columns from n on. b points to column n; r and y point to column n of the first row.
template <class T>
void finish(const LinearProblem& p, float* o, int64_t rows, int64_t vectors, int64_t columns, const T* b,
            const T* r, T* y) {
  const bool relu = p.act.kind == ActivationKind::kRelu;
  const bool simple = relu || p.act.kind == ActivationKind::kNone;
  const Vec zero = {};
  for (int64_t j = 0; j < vectors; ++j) {
    const int64_t here = columns - j * kWidth;
    const Vec bias = load_range(b + j * kWidth, 0, here);
    for (int64_t i = 0; i < rows; ++i) {
      float* at = o + (i * vectors + j) * kWidth;
      Vec v = load_aligned(at) + bias;
      if (p.has_residual) v += load_range(r + i * p.N + j * kWidth, 0, here);
      if (relu) v = larger(zero, v);
      if (simple) {
        store_part(y + i * p.N + j * kWidth, v, here, false);
      } else {
        store_aligned(at, v);
      }
    }
  }
  if (simple) return;
  activate_block(p.act, o, o, static_cast<size_t>(rows * vectors * kWidth));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < vectors; ++j) {
      store_part(y + i * p.N + j * kWidth, load_aligned(o + (i * vectors + j) * kWidth), columns - j * kWidth,
                 false);
    }
  }
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
