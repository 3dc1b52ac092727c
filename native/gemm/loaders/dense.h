// Loaders of dense operands with packs at multiples of 16 bytes. Each pack is loaded by one access.
#pragma once

#include "device/platform.h"
#include "gemm/loaders/packs.h"
#include "gemm/loaders/transposed.h"

namespace graphopt::hip {

// Copies an operand with lines (gemm/args.h) that are contiguous along K directly to LDS. kGroups, kParts: see in_part.
// Row r in LDS is line Order::column(r).
template <int kLines, int kDepth, int kThreads, int kGroups, int kParts, class Order>
struct DenseRowsAsync {
  static constexpr int kAcross = kDepth / 8, kRows = kThreads / kAcross, kPacks = kLines / kRows;
  static_assert(kPacks * kRows == kLines, "whole packs for every work-item");

  const half_t* from;
  ptrdiff_t step;  // from the first pack of this work-item to the second
  int row, column, remaining_k;
  int inside = 0;  // a bit for each pack
  PacksToLds<true, kPacks> packs;

  // `p` points to the first of the `lines` lines of the work-group, which are `stride` elements apart. Elements beyond
  // the last line or beyond K are zeros in LDS. (Loads of the last line instead would all wait for the same addresses.)
  DEVICE DenseRowsAsync(const half_t* p, int stride, int lines, int K)
      : step(static_cast<ptrdiff_t>(Order::column(kRows)) * stride),
        row(thread_x() / kAcross),
        column(thread_x() % kAcross * 8),
        remaining_k(K - column) {
    static_assert(Order::column(kRows) + Order::column(kRows - 1) == Order::column(2 * kRows - 1) &&
                      Order::column(2 * kRows) % Order::column(kRows) == 0,
                  "the same order in all packs, and multiples of step");
    const int line = Order::column(row);
    from = p + static_cast<ptrdiff_t>(line) * stride + column;
    UNROLL for (int i = 0; i < kPacks; ++i) {
      inside |= static_cast<int>(line + Order::column(i * kRows) < lines) << i;
    }
    inside = opaque(inside);  // makes the compiler keep one register instead of one condition for each pack
  }

  // Callers must begin the steps, and the parts of each step, in order.
  template <class Row>
  DEVICE void begin(Row* to, int part) {
    const int mask = remaining_k > 0 ? inside : 0;
    UNROLL for (int i = 0; i < kPacks; ++i) {
      if (!in_part(i, kPacks, part, kParts, kGroups)) continue;
      packs.begin(i, &to[i * kRows + row][column],
                  from + Order::column(i * kRows) / Order::column(kRows) * step, (mask >> i & 1) != 0);
    }
    if (!is_last_part(part, kParts)) return;
    from += kDepth;
    remaining_k -= kDepth;
  }
  template <class Row>
  DEVICE void finish(Row*) const {}
};

// Copies the same operand through registers. The loads are unconditional, because conditions would keep the compiler
// from moving them. Work-items beyond the last line load the last line again; the sums of these copies are not stored.
// Elements beyond K are replaced by zeros before they are stored in LDS.
template <int kLines, int kDepth, int kThreads>
struct DenseRowsThroughRegisters {
  static constexpr int kAcross = kDepth / 8, kRows = kThreads / kAcross, kPacks = kLines / kRows;
  static_assert(kPacks * kRows == kLines, "whole packs for every work-item");

  const half_t* from[kPacks];
  int row, column;
  int k = 0, end;  // first index k of the next step; K
  PacksToLds<false, kPacks> packs;

  DEVICE DenseRowsThroughRegisters(const half_t* p, int stride, int lines, int K)
      : row(thread_x() / kAcross), column(thread_x() % kAcross * 8), end(K) {
    UNROLL for (int i = 0; i < kPacks; ++i) {
      from[i] = p + static_cast<ptrdiff_t>(min_int(row + i * kRows, lines - 1)) * stride;
    }
  }

  template <class Row>
  DEVICE void begin(Row* to, int) {
    const int at = min_int(k + column, end - 8);
    UNROLL for (int i = 0; i < kPacks; ++i) packs.begin(i, &to[i * kRows + row][column], from[i] + at, true);
    k += kDepth;
  }
  template <class Row>
  DEVICE void finish(Row* to) {
    if (k > end) {
      keep_order();  // keeps this a branch, which complete steps skip
      if (k - kDepth + column >= end) {
        UNROLL for (int i = 0; i < kPacks; ++i) packs.staged[i] = {};
      }
    }
    UNROLL for (int i = 0; i < kPacks; ++i) packs.finish(i, &to[i * kRows + row][column]);
  }
};

template <bool kAsyncCopies, int kLines, int kDepth, int kThreads, int kGroups, int kParts = kDepth / 16,
          class Order = SameColumns>
using DenseRows =
    typename Select<kAsyncCopies, DenseRowsAsync<kLines, kDepth, kThreads, kGroups, kParts, Order>,
                    DenseRowsThroughRegisters<kLines, kDepth, kThreads>>::Type;

template <class P>
using LeftRows = DenseRows<P::kAsyncCopies, P::kM, P::kDepth, P::kThreads, P::kParts, P::kParts>;
template <class P, bool kRightByK>
using RightRows = typename Select<
    !kRightByK,
    DenseRows<P::kAsyncCopies, P::kN, P::kDepth, P::kThreads, P::kParts, P::kParts, typename P::Gemm::Order>,
    typename Select<P::kRightRows, TransposedRows<P::kN, P::kDepth, P::kThreads>,
                    TransposedThroughRegisters<P::kN, P::kDepth, P::kThreads>>::Type>::Type;

}  // namespace graphopt::hip
