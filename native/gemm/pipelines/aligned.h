// GEMMs on the matrix units (matrix.h) with operands in packs. Targets that copy from memory to LDS
// without registers load several steps in advance; other targets load one step in advance, to registers.
#pragma once

#include "device/platform.h"
#include "gemm/loaders/packs.h"
#include "gemm/pipelines/matrix.h"
#include "gemm/tiles.h"

namespace graphopt::hip {

// kRightByK: in the right operand, the elements of all columns are contiguous for each index k; otherwise all
// elements of a column are contiguous. Element: half_t or Int8Pair.
template <GemmTile kTile, bool kRightByK, class Element = half_t>
struct AlignedGemm {
  using Instruction = hip::Instruction<Element>;
  static constexpr bool kRightRows = kRightByK && Instruction::kLoadsRows;  // LDS also has a row for each k
  static constexpr bool kAsyncCopies = kCopiesToLds || (kOnCpu && kWave == 32 && !kRightByK);
  static constexpr MatrixShape kFloatShape = row_of(kAlignedTiles, kTile).shape(kWave, kCopiesToLds);
  static constexpr MatrixShape kShape =
      kIsInt8<Element> && kAsyncCopies ? kFloatShape.wide_waves() : kFloatShape;
  // The CPU runs run_steps_ahead to test it, with three buffers if they fit into LDS.
  static constexpr bool kThreeBuffers =
      kAsyncCopies && !kCopiesToLds && 3 * kShape.lds_bytes(kRightRows) <= kLdsBytes * kShape.stages;
  static constexpr int kBuffers = kThreeBuffers ? 3 : kShape.stages;
  using Gemm = Hgemm<kShape.m, kShape.n, kShape.depth, kShape.wave_m, kShape.wave_n, kBuffers, kRightRows,
                     kShape.split_k, Element>;
  using Lds = typename Gemm::Lds;
  static constexpr int kM = Gemm::kM, kN = Gemm::kN, kDepth = Gemm::kDepth;
  static constexpr int kThreads = Gemm::kThreads, kParts = Gemm::kSplitDepth / 16;
  static constexpr LaunchBounds kBounds = {
      kThreads, {row_of(kAlignedTiles, kTile).groups_per_unit, kLdsBytes / static_cast<int>(sizeof(Lds))}};
  static_assert(kThreads == kShape.threads(kWave) &&
                    (!kCopiesToLds || sizeof(Lds) == kShape.lds_bytes(kRightRows)),
                "the size that plans assume");
};

// Adds the products of both operands over `depth` indices k.
template <class P, class Left, class Right>
DEVICE void multiply_aligned(typename P::Gemm& gemm, typename P::Lds& lds, int depth, Left& left,
                             Right& right) {
  const auto begin = [&](int buffer, int part) {
    left.begin(lds.a[buffer], part);
    right.begin(lds.b[buffer], part);
  };
  if constexpr (P::kAsyncCopies) {
    run_steps_ahead(gemm, lds, depth, begin);
  } else {
    gemm.run(
        lds, depth, [&](int, int buffer) { begin(buffer, kAllParts); },
        [&](int buffer) {
          left.finish(lds.a[buffer]);
          right.finish(lds.b[buffer]);
        });
  }
}

// The position of this work-group's tile among `down` rows of `across` tiles. Consecutive work-groups compute a column
// of kTilesAtOnce tiles, then the next such column. They thereby share operands in the L2 cache.
constexpr int kTilesAtOnce = 8;
struct TilePosition {
  int down, across;
};
DEVICE TilePosition tile_position(const Divisor& across, int down) {
  const auto id = static_cast<uint32_t>(block_x());
  const uint32_t group = divide(id, across) / kTilesAtOnce;
  const uint32_t first = group * kTilesAtOnce, at = id - first * across.d;
  const uint32_t rows = static_cast<uint32_t>(min_int(kTilesAtOnce, down - static_cast<int>(first)));
  const uint32_t column = rows == kTilesAtOnce ? at / kTilesAtOnce : at / rows;
  return {static_cast<int>(first + at - column * rows), static_cast<int>(column)};
}

}  // namespace graphopt::hip
