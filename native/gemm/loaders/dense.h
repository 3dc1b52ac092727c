// Dense operands of float16 products on the matrix units, in whole packs at multiples of 16 bytes: each pack is one access.
// Where memory is copied to LDS without registers, several steps are loaded while one is multiplied; elsewhere one is, in
// registers.
#pragma once

#include "device/platform.h"
#include "gemm/loaders/strided.h"
#include "gemm/pipelines/matrix.h"
#include "gemm/tiles.h"

namespace graphopt::hip {

// kRightByK: for each k the right operand's columns lie one behind another, else for each column its k.
template <GemmTile kTile, bool kRightByK>
struct Panels {
  using Tile = hip::Tile<half_t>;
  static constexpr MatrixShape kShape = row_of(kAlignedTiles, kTile).shape(kWave, kCopiesToLds);
  static constexpr bool kRightRows = kRightByK && Tile::kLoadsRows;  // as they are, also in LDS
  static constexpr bool kAhead = kCopiesToLds || (kOnCpu && kWave == 32 && !kRightByK);
  // On the CPU three where they fit, for the sake of tests.
  static constexpr bool kThree =
      kAhead && !kCopiesToLds && 3 * kShape.lds_bytes(kRightRows) <= kLdsBytes * kShape.stages;
  static constexpr int kBuffers = kThree ? 3 : kShape.stages;
  using Product = Hgemm<kShape.m, kShape.n, kShape.depth, kShape.wave_m, kShape.wave_n, kBuffers, kRightRows,
                        kShape.split_k>;
  using Lds = typename Product::Lds;
  static constexpr int kM = Product::kM, kN = Product::kN, kDepth = Product::kDepth;
  static constexpr int kThreads = Product::kThreads;
  static_assert(kThreads == kShape.threads(kWave) &&
                    (!kCopiesToLds || sizeof(Lds) == kShape.lds_bytes(kRightRows)),
                "what plans ask for");
};

// A step's copies are started in parts, one for each 16 k that are multiplied meanwhile.
constexpr int kAllParts = -1;
// `groups` of copies: fewer than parts where they are worth more together.
DEVICE bool in_part(int pack, int packs, int part, int parts, int groups) {
  return part == kAllParts || pack * groups / packs * (parts / groups) == part;
}
DEVICE bool is_last_part(int part, int parts) { return part == kAllParts || part == parts - 1; }

// copy_to_lds, kept in the compute unit's cache: other work-items copy the same soon.
template <class To, class T>
DEVICE void copy_to_lds_cached(To* to, const T* from, bool inside) {
#if GRAPHOPT_ON_NVIDIA
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(address), "l"(from), "r"(inside ? 16 : 0)
               : "memory");
#else
  copy_to_lds(to, from, inside);
#endif
}

// The packs of a work-item on their way to LDS; kCached: through the compute unit's cache.
template <bool kAhead, int kPacks, bool kCached = false>
struct PacksToLds {
  Bits128 staged[kAhead ? 1 : kPacks];

  DEVICE void begin(int i, half_t* to, const half_t* from, bool inside) {
    if constexpr (kAhead && kCached) {
      copy_to_lds_cached(to, from, inside);
    } else if constexpr (kAhead) {
      copy_to_lds(to, from, inside);
    } else {
      Bits128 bits = {};
      if (inside) bits = *reinterpret_cast<const Bits128*>(from);
      staged[i] = bits;
    }
  }
  DEVICE void finish(int i, half_t* to) const {
    if constexpr (!kAhead) *reinterpret_cast<Bits128*>(to) = staged[i];
  }
};

// Lines of which each has its k one behind another.
template <bool kAhead, int kLines, int kDepth, int kThreads, int kGroups = kDepth / 16>
struct PanelAlongK {
  static constexpr int kAcross = kDepth / 8, kRows = kThreads / kAcross, kPacks = kLines / kRows;
  static_assert(kPacks * kRows == kLines, "whole packs for every work-item");

  const half_t* from;
  ptrdiff_t step;  // from pack to pack
  int row, column, left;
  int inside = 0;  // a bit for each pack
  PacksToLds<kAhead, kPacks> packs;

  // `p` is the first of the work-group's lines, of which there are `lines`, `stride` apart; lines and k beyond are
  // zeros. (Reading the last line in their place made it the one that all work-items wait for.)
  DEVICE PanelAlongK(const half_t* p, int stride, int lines, int K)
      : step(static_cast<ptrdiff_t>(kRows) * stride),
        row(thread_x() / kAcross),
        column(thread_x() % kAcross * 8),
        left(K - column) {
    from = p + static_cast<ptrdiff_t>(row) * stride + column;
    UNROLL for (int i = 0; i < kPacks; ++i) inside |= static_cast<int>(row + i * kRows < lines) << i;
    inside = opaque(inside);  // one register, not as many conditions
  }

  // The steps come in their order, and their parts.
  template <class Row>
  DEVICE void begin(Row* to, int part) {
    const int mask = left > 0 ? inside : 0;
    UNROLL for (int i = 0; i < kPacks; ++i) {
      if (!in_part(i, kPacks, part, kDepth / 16, kGroups)) continue;
      packs.begin(i, &to[i * kRows + row][column], from + i * step, (mask >> i & 1) != 0);
    }
    if (!is_last_part(part, kDepth / 16)) return;
    from += kDepth;
    left -= kDepth;
  }
  template <class Row>
  DEVICE void finish(Row* to) const {
    UNROLL for (int i = 0; i < kPacks; ++i) packs.finish(i, &to[i * kRows + row][column]);
  }
};

// Lines of which all have the same k one behind another, to rows of k in LDS.
template <int kLines, int kDepth, int kThreads>
struct PanelAlongLines {
  // A work-item has packs of kGroups columns, kApart from one to the next.
  static constexpr int kGroups = kLines % 3 == 0   ? 3
                                 : kLines % 5 == 0 ? 5
                                                   : 1,
                       kApart = kLines / kGroups, kAcross = kApart / 8;
  static constexpr int kRows = kThreads / kAcross, kPacks = kDepth / kRows * kGroups;
  static_assert(kPacks * kThreads * 8 == kLines * kDepth, "whole packs for every work-item");

  const half_t* from;
  ptrdiff_t stride;
  int row, column, left;
  int inside = 0;  // a bit for each column
  PacksToLds<true, kPacks> packs;

  DEVICE PanelAlongLines(const half_t* p, int apart, int lines, int K)
      : stride(apart), row(thread_x() / kAcross), column(thread_x() % kAcross * 8), left(K - row) {
    from = p + static_cast<ptrdiff_t>(row) * stride + column;
    UNROLL for (int g = 0; g < kGroups; ++g) inside |= static_cast<int>(column + g * kApart < lines) << g;
    inside = opaque(inside);
  }
  template <class Row>
  DEVICE void begin(Row* to, int part) {
    UNROLL for (int i = 0; i < kPacks; ++i) {
      if (!in_part(i, kPacks, part, kDepth / 16, kDepth / 16)) continue;
      const int down = i / kGroups * kRows, across = i % kGroups;
      packs.begin(i, &to[down + row][column + across * kApart], from + down * stride + across * kApart,
                  down < left && (inside >> across & 1) != 0);
    }
    if (!is_last_part(part, kDepth / 16)) return;
    from += kDepth * stride;
    left -= kDepth;
  }
  template <class Row>
  DEVICE void finish(Row*) const {}
};

// The same where LDS has rows of lines: through registers.
template <int kLines, int kDepth, int kThreads>
struct PanelTurned {
  OperandPart<half_t, kLines, kDepth, kThreads, true> operand;
  int k = 0;

  DEVICE PanelTurned(const half_t* p, int apart, int lines, int K) : operand(p, {1, apart, 1}, lines, K) {}
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

template <class P>
using LeftPanel = PanelAlongK<P::kAhead, P::kM, P::kDepth, P::kThreads>;
template <class P, bool kRightByK>
using RightPanel =
    typename Select<!kRightByK, PanelAlongK<P::kAhead, P::kN, P::kDepth, P::kThreads>,
                    typename Select<P::kRightRows, PanelAlongLines<P::kN, P::kDepth, P::kThreads>,
                                    PanelTurned<P::kN, P::kDepth, P::kThreads>>::Type>::Type;

// The product of `depth` k of both operands.
template <class P, class Left, class Right>
DEVICE void multiply_panels(typename P::Product& product, typename P::Lds& lds, int depth, Left& left,
                            Right& right) {
  const auto begin = [&](int buffer, int part) {
    left.begin(lds.a[buffer], part);
    right.begin(lds.b[buffer], part);
  };
  if constexpr (P::kAhead) {
    product_steps_ahead(product, lds, depth, begin);
  } else {
    product.run(
        lds, depth, [&](int, int buffer) { begin(buffer, kAllParts); },
        [&](int buffer) {
          left.finish(lds.a[buffer]);
          right.finish(lds.b[buffer]);
        });
  }
}

// Which tile of a product of `down` x `across` tiles this work-group has: kTilesAtOnce rows of tiles are done
// together, so that they find their operands in the L2.
constexpr int kTilesAtOnce = 8;
struct TilePlace {
  int down, across;
};
DEVICE TilePlace tile_place(const Divisor& across, int down) {
  const auto id = static_cast<uint32_t>(block_x());
  const uint32_t group = divide(id, across) / kTilesAtOnce;
  const uint32_t first = group * kTilesAtOnce, at = id - first * across.d;
  const uint32_t rows = static_cast<uint32_t>(min_int(kTilesAtOnce, down - static_cast<int>(first)));
  const uint32_t column = rows == kTilesAtOnce ? at / kTilesAtOnce : at / rows;
  return {static_cast<int>(first + at - column * rows), static_cast<int>(column)};
}

}  // namespace graphopt::hip
