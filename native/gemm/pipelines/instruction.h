// Matrix multiplication of one wave: a 16x16x16 tile, float32 += T x T. The multiplication runs on the matrix
// units if the target has them for T (traits.h). Otherwise it is emulated with shuffles, for tests only.
//
// A tile has 16 rows and 16 columns. Each work-item accumulates kSums values in kRows rows of the tile.
// Groups of kContiguous values are consecutive in a row and begin at a multiple of kContiguous columns. A
// work-item holds kSlots elements of the left operand and kSlots elements of the right one. On architectures where a
// work-item accumulates a single column, the instruction receives its operands swapped, so that it accumulates a single
// row. The sums, rounded to T, can be the left operand of a second multiplication (to_left). On CDNA, RDNA 4 and
// NVIDIA, each work-item already holds the sums that it needs. On RDNA 3, both halves of a wave need all 16
// elements of a row, and a work-item gets half of them from the work-item 16 lanes away.
//
// An operand can also be built from registers. A line is a row of the left operand or a column of the right one. A
// work-item holds elements of kLines lines: line(0), line(1), .. The elements of a line are divided into kParts parts,
// and the work-item holds part part() of each of its lines: kPairs pairs of elements. The indices k of the pairs are
// arbitrary, but the same in both operands. left_of(pair) and right_of(pair) call pair(i, j) for pair j of line i.
//
// kTwoTiles: multiply_two() multiplies the operands of two tiles, for 32 indices k, in one instruction.
//
// Instruction<Int8Pair> multiplies signed int8 elements and adds in int32. The operands have the layout of half_t, with
// two elements in the place of one: a tile covers 32 indices k.
#pragma once

#include "gemm/pipelines/shuffles.h"

namespace graphopt::hip {

template <class T>
struct Instruction : ShuffledInstruction<T> {};

// An order of the columns of a right operand. With it, each work-item accumulates kPack adjacent columns of a row, over
// kTiles tiles.
template <class Instruction, int kPack>
struct AdjacentColumns {
  static constexpr int kInRow = Instruction::kSums / Instruction::kRows;  // sums of a row in a work-item
  static constexpr int kLanes = 16 / kInRow;                              // work-items that share a row
  static constexpr int kTiles = kPack / kInRow;
  static constexpr int kN = 16 * kTiles;
  // Each run of this many sums has adjacent columns of a tile.
  static constexpr int kRun = Instruction::kContiguous < 4 ? Instruction::kContiguous : kInRow;

  // Returns the column of Y for column `at` of the tiles.
  DEVICE static constexpr int column(int at) {
    const int tile = at / 16 % kTiles, c = at % 16;
    const int lane = c / kRun % kLanes, sum = c / (kRun * kLanes) * kRun + c % kRun;
    return at / kN * kN + lane * kPack + tile * kInRow + sum;
  }
  // Returns the first column of this work-item.
  DEVICE static int first() { return Instruction::column(0) / kRun % kLanes * kPack; }
};
struct SameColumns {
  DEVICE static constexpr int column(int at) { return at; }
};

// Inverts `bits` in each register of an operand; see kUnsignedBits in gemm/args.h.
template <class Operand>
DEVICE Operand invert_bits(const Operand& operand, uint32_t bits) {
  struct Words {
    uint32_t v[sizeof(Operand) / 4];
  };
  auto words = bit_cast<Words>(operand);
  UNROLL for (uint32_t& word : words.v) word ^= bits;
  return bit_cast<Operand>(words);
}

}  // namespace graphopt::hip

#if GRAPHOPT_MFMA
#include "gemm/pipelines/mfma.h"
#elif defined(__AMDGCN__) && GRAPHOPT_MATRIX_F16
#include "gemm/pipelines/wmma.h"
#elif defined(__CUDA_ARCH__)
#include "gemm/pipelines/mma_sync.h"
#endif
