// Loaders of dense operands that are contiguous across the lines (gemm/args.h): a pack has the elements of 8 adjacent
// lines at one index k.
#pragma once

#include "device/platform.h"
#include "gemm/loaders/packs.h"

namespace graphopt::hip {

// Copies such an operand to LDS that has a row for each index k, too.
template <int kLines, int kDepth, int kThreads>
struct TransposedRows {
  // The columns of a row form kGroups groups of kDistance columns. A work-item copies packs of all groups.
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

  DEVICE TransposedRows(const half_t* p, int row_stride, int lines, int K)
      : stride(row_stride),
        row(thread_x() / kAcross),
        column(thread_x() % kAcross * 8),
        remaining_k(K - row) {
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

// Copies the same operand through registers, like DenseRowsThroughRegisters, to LDS that has a row for each
// line. A work-item loads packs of two consecutive indices k, and stores the two elements of each line in one
// access.
template <int kLines, int kDepth, int kThreads>
struct TransposedThroughRegisters {
  static constexpr int kAcross = kDepth / 2, kLineStep = kThreads / kAcross * 8, kPairs = kLines / kLineStep;
  static_assert(kPairs * kThreads * 16 == kLines * kDepth, "whole packs for every work-item");

  const half_t* first;  // points to the first index k of the next step
  ptrdiff_t stride, down;
  int row, line, left;  // left: number of remaining indices k
  int across[kPairs];
  Bits128 staged[kPairs][2];

  DEVICE TransposedThroughRegisters(const half_t* p, int row_stride, int lines, int K)
      : first(p), stride(row_stride), row(thread_x() % kAcross * 2), line(thread_x() / kAcross * 8), left(K) {
    down = row * stride;
    UNROLL for (int i = 0; i < kPairs; ++i) across[i] = min_int(line + i * kLineStep, lines - 8);
  }

  template <class Row>
  DEVICE void begin(Row*, int) {
    ptrdiff_t even = down, odd = down + stride;
    if (left < kDepth) {
      keep_order();  // keeps this a branch, which complete steps skip
      if (row >= left) even = 0;
      if (row + 1 >= left) odd = 0;
    }
    UNROLL for (int i = 0; i < kPairs; ++i) {
      staged[i][0] = *reinterpret_cast<const Bits128*>(first + even + across[i]);
      staged[i][1] = *reinterpret_cast<const Bits128*>(first + odd + across[i]);
    }
    first += kDepth * stride;
    left -= kDepth;
  }
  template <class Row>
  DEVICE void finish(Row* to) {
    if (left < 0) {
      keep_order();
      UNROLL for (int i = 0; i < kPairs; ++i) {
        UNROLL for (int at = 0; at < 2; ++at) {
          if (row + at >= left + kDepth) staged[i][at] = {};
        }
      }
    }
    struct alignas(4) Two {
      half_t v[2];
    };
    UNROLL for (int i = 0; i < kPairs; ++i) {
      const auto even = bit_cast<Pack<half_t>>(staged[i][0]), odd = bit_cast<Pack<half_t>>(staged[i][1]);
      UNROLL for (int j = 0; j < 8; ++j) {
        *reinterpret_cast<Two*>(&to[line + i * kLineStep + j][row]) = {{even.v[j], odd.v[j]}};
      }
    }
  }
};

}  // namespace graphopt::hip
