// The online softmax of a tile of rows. For kernel files only (see cpu/isa.h).
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "cpu/microkernels/exp.h"
#include "operators/attention/attention/tiling_cpu.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// Computes results[i] = reduce(vector_of(i)) for i in [0, rows). `results` is padded to full vectors with `none`, the
// neutral element.
template <class Op, class F>
inline void reduce_rows(int64_t rows, float* results, float none, Op op, F vector_of) {
  for (int64_t first = 0; first < rows; first += kGroup) {
    Vec r[kGroup];
    for (int64_t i = 0; i < kGroup; ++i) r[i] = first + i < rows ? vector_of(first + i) : splat(none);
    const Vec reduced = reduce_group(r, op);
    std::memcpy(results + first, &reduced, kGroup * sizeof(float));
    if (first + kGroup >= rows) std::fill(results + first + kGroup, results + round_up(rows, kWidth), none);
  }
}

// Replaces the scores of a row by their exponentials, as bfloat16 words at the beginning of the row. Returns kWidth
// partial sums of the unrounded exponentials.
inline Vec exp_bf16(float* s, float shift, int64_t padded) {
  Vec total{};
  for (int64_t j = 0; j < padded; j += 2 * kWidth) {
    const Vec a = exp_nonpositive(load(s + j) - shift);
    const Vec b = j + kWidth < padded ? exp_nonpositive(load(s + j + kWidth) - shift) : Vec{};
    total += a + b;
    *reinterpret_cast<UnalignedWords*>(s + j / 2) = pack_adjacent(a, b);
  }
  return total;
}

// Replaces the scores of `rows` rows and n keys by their exponentials; if `bfloat16`, by words at the start of each row
// (exp_bf16). `most_of` returns a vector whose largest element is the largest score of a row. Updates the highest score
// and the sum of each row so far, and writes the factors that rescale earlier results.
template <class F>
void exponentiate(const AttentionTiling& plan, const AttentionScratch& w, int64_t rows, int64_t n,
                  bool bfloat16, float* highest, float* sum, F most_of) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const int64_t padded = round_up(n, kWidth);
  float shifts[kMaxTileRows], totals[kMaxTileRows];
  reduce_rows(rows, shifts, -infinity, larger, most_of);
  for (int64_t i = 0; i < rows; i += kWidth) {
    const Vec before = load(highest + i), next = larger(load(shifts + i), before);
    // If all scores so far are -inf, subtract 0: -inf - -inf would be NaN although finite scores may
    // follow.
    const Vec shift = next == -infinity ? Vec{} : next;
    store(highest + i, next);
    store(shifts + i, shift);
    store(w.factor + i, exp_nonpositive(before - shift));
  }
  reduce_rows(
      rows, totals, 0.0f, [](Vec x, Vec y) { return x + y; },
      [&](int64_t i) {
        float* s = w.scores + i * plan.score_stride;
        if (bfloat16) return exp_bf16(s, shifts[i], padded);
        Vec total{};
        for (int64_t j = 0; j < padded; j += kWidth) {
          const Vec e = exp_nonpositive(load(s + j) - shifts[i]);
          store(s + j, e);
          total += e;
        }
        return total;
      });
  for (int64_t i = 0; i < rows; i += kWidth) {
    store(sum + i, load(sum + i) * load(w.factor + i) + load(totals + i));
  }
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
