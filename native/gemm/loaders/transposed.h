// Dense operands in packs along the lines instead of along k.
#pragma once

#include "device/platform.h"
#include "gemm/loaders/packs.h"
#include "gemm/loaders/strided.h"

namespace graphopt::hip {

// The elements of all lines are contiguous for each k. LDS has rows of k.
template <int kLines, int kDepth, int kThreads>
struct TransposedRows {
  // A work-item has packs of kGroups groups of columns, with distance kDistance.
  static constexpr int kGroups = kLines % 3 == 0   ? 3
                                 : kLines % 5 == 0 ? 5
                                                   : 1,
                       kDistance = kLines / kGroups, kAcross = kDistance / 8;
  static constexpr int kRows = kThreads / kAcross, kPacks = kDepth / kRows * kGroups;
  static_assert(kPacks * kThreads * 8 == kLines * kDepth, "whole packs for every work-item");

  const half_t* from;
  ptrdiff_t stride;
  int row, column, remaining_k;
  int inside = 0;  // a bit for each group of columns
  PacksToLds<true, kPacks> packs;

  DEVICE TransposedRows(const half_t* p, int apart, int lines, int K)
      : stride(apart), row(thread_x() / kAcross), column(thread_x() % kAcross * 8), remaining_k(K - row) {
    from = p + static_cast<ptrdiff_t>(row) * stride + column;
    UNROLL for (int g = 0; g < kGroups; ++g) inside |= static_cast<int>(column + g * kDistance < lines) << g;
    inside = opaque(inside);
  }
  template <class Row>
  DEVICE void begin(Row* to, int part) {
    UNROLL for (int i = 0; i < kPacks; ++i) {
      if (!in_part(i, kPacks, part, kDepth / 16, kDepth / 16)) continue;
      const int down = i / kGroups * kRows, across = i % kGroups;
      packs.begin(i, &to[down + row][column + across * kDistance], from + down * stride + across * kDistance,
                  down < remaining_k && (inside >> across & 1) != 0);
    }
    if (!is_last_part(part, kDepth / 16)) return;
    from += kDepth * stride;
    remaining_k -= kDepth;
  }
  template <class Row>
  DEVICE void finish(Row*) const {}
};

// The same memory layout if LDS has rows of lines: through registers.
template <int kLines, int kDepth, int kThreads>
struct TransposedThroughRegisters {
  OperandPart<half_t, kLines, kDepth, kThreads, true> operand;
  int k = 0;

  DEVICE TransposedThroughRegisters(const half_t* p, int apart, int lines, int K)
      : operand(p, {1, apart, 1}, lines, K) {}
  template <class Row>
  DEVICE void begin(Row*, int) {
    operand.load(k);
    k += kDepth;
  }
  template <class Row>
  DEVICE void finish(Row* to) const {
    operand.store(to);
  }
};

}  // namespace graphopt::hip
