// Dense operands in packs at multiples of 16 bytes: one access for each pack.
#pragma once

#include "device/platform.h"
#include "gemm/loaders/packs.h"
#include "gemm/loaders/transposed.h"

namespace graphopt::hip {

// Lines along K: the elements of a line are contiguous.
template <bool kAhead, int kLines, int kDepth, int kThreads, int kGroups = kDepth / 16>
struct DenseRows {
  static constexpr int kAcross = kDepth / 8, kRows = kThreads / kAcross, kPacks = kLines / kRows;
  static_assert(kPacks * kRows == kLines, "whole packs for every work-item");

  const half_t* from;
  ptrdiff_t step;  // from pack to pack
  int row, column, remaining_k;
  int inside = 0;  // a bit for each pack
  PacksToLds<kAhead, kPacks> packs;

  // `p` is the first of the `lines` lines of the work-group, with distance `stride` in elements. Lines and k
  // beyond the end are zeros. (Loading the last line instead made all work-items wait for that line.)
  DEVICE DenseRows(const half_t* p, int stride, int lines, int K)
      : step(static_cast<ptrdiff_t>(kRows) * stride),
        row(thread_x() / kAcross),
        column(thread_x() % kAcross * 8),
        remaining_k(K - column) {
    from = p + static_cast<ptrdiff_t>(row) * stride + column;
    UNROLL for (int i = 0; i < kPacks; ++i) inside |= static_cast<int>(row + i * kRows < lines) << i;
    inside = opaque(inside);  // one register instead of one condition for each pack
  }

  // Steps and their parts must be begun in order.
  template <class Row>
  DEVICE void begin(Row* to, int part) {
    const int mask = remaining_k > 0 ? inside : 0;
    UNROLL for (int i = 0; i < kPacks; ++i) {
      if (!in_part(i, kPacks, part, kDepth / 16, kGroups)) continue;
      packs.begin(i, &to[i * kRows + row][column], from + i * step, (mask >> i & 1) != 0);
    }
    if (!is_last_part(part, kDepth / 16)) return;
    from += kDepth;
    remaining_k -= kDepth;
  }
  template <class Row>
  DEVICE void finish(Row* to) const {
    UNROLL for (int i = 0; i < kPacks; ++i) packs.finish(i, &to[i * kRows + row][column]);
  }
};

template <class P>
using LeftRows = DenseRows<P::kAhead, P::kM, P::kDepth, P::kThreads>;
template <class P, bool kRightByK>
using RightRows =
    typename Select<!kRightByK, DenseRows<P::kAhead, P::kN, P::kDepth, P::kThreads>,
                    typename Select<P::kRightRows, TransposedRows<P::kN, P::kDepth, P::kThreads>,
                                    TransposedThroughRegisters<P::kN, P::kDepth, P::kThreads>>::Type>::Type;

}  // namespace graphopt::hip
