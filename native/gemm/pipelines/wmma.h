// The 16x16x16 tile of instruction.h with the WMMA instructions of RDNA 3 and 4. Below, i is the lane of a
// work-item and s the index of a sum or slot.
#pragma once

#include "device/platform.h"
#include "gemm/pipelines/instruction.h"

// gfx125x (which also defines __GFX12__) and gfx117x have the instructions of RDNA 4 with other layouts of the
// operands.
#if __has_builtin(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12) && !defined(__gfx1200__) && \
    !defined(__gfx1201__)
#error "graphopt has no kernels for this target: its matrix instructions do not have the layouts of RDNA 4"
#endif

namespace graphopt::hip {

// The parts that RDNA 3 and 4 share. A line is a row of the left operand or a column of the right one. A work-item
// holds elements of line i % 16 of each operand and sums of row i % 16. Each half of the wave has a part of the row.
// Operand::load loads from one line, for left and right operands alike.
template <class Operand>
struct WmmaInstruction {
  static constexpr int kSums = 8, kRows = 1;
  static constexpr bool kLoadsRows = false, kTwoTiles = false;
  typedef float Float8 __attribute__((ext_vector_type(8)));
  using Left = Operand;
  using Right = Operand;
  struct Sum {
    Float8 v;
  };

  DEVICE static int row(int) { return lane_id() % 16; }
  DEVICE static constexpr int row_of(int) { return 0; }
  DEVICE static uint32_t other_half(uint32_t x) {
    return __builtin_amdgcn_permlanex16(0, x, 0x76543210, 0xfedcba98, false, false);
  }
  DEVICE static float other_half(float x) { return bit_cast<float>(other_half(bit_cast<uint32_t>(x))); }
  DEVICE static float row_max(float x) { return max_float(x, other_half(x)); }
  DEVICE static float row_sum(float x) { return x + other_half(x); }

  template <class At>
  DEVICE static Left load_left(const At& at) {
    return Operand::load(at);
  }
  template <class At>
  DEVICE static Right load_right(const At& at) {
    return Operand::load(at);
  }

  static constexpr int kLines = kRows, kPairs = sizeof(Operand) / 4, kParts = 8 / kPairs;
  DEVICE static int line(int) { return lane_id() % 16; }
  DEVICE static int part() { return lane_id() / 16 % kParts; }
  template <class Pair>
  DEVICE static Left left_of(const Pair& pair) {
    return operand_of_pairs<Left>(pair);
  }
  template <class Pair>
  DEVICE static Right right_of(const Pair& pair) {
    return left_of(pair);
  }
};

#if !__has_builtin(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12)  // RDNA 3
// All 16 elements of a line, in both halves of the wave.
struct WmmaOperand {
  typedef half_t Half16 __attribute__((ext_vector_type(16)));
  Half16 v;

  template <class At>
  DEVICE static WmmaOperand load(const At& at) {
    struct Halves {
      Bits128 v[2];
    } halves;
    UNROLL for (int i = 0; i < 2; ++i) {
      halves.v[i] = *reinterpret_cast<const Bits128*>(at(lane_id() % 16, 8 * i));
    }
    return bit_cast<WmmaOperand>(halves);
  }
};

// Sum s belongs to column 2 s + i / 16.
template <>
struct Instruction<half_t> : WmmaInstruction<WmmaOperand> {
  static constexpr int kSlots = 16, kContiguous = 1;

  DEVICE static int column(int i) { return 2 * i + lane_id() / 16; }
  DEVICE static Left to_left(const Sum& sum) {
    typedef half_t Half2 __attribute__((ext_vector_type(2)));
    struct Words {
      uint32_t v[8];
    } words;
    // The even columns are in the lower half of the wave, the odd ones in the upper.
    const bool upper = lane_id() >= 16;
    const uint32_t first = upper ? 0x01000504 : 0x05040100, second = upper ? 0x03020706 : 0x07060302;
    UNROLL for (int i = 0; i < 4; ++i) {
      const Half2 pair = {static_cast<half_t>(sum.v[2 * i]), static_cast<half_t>(sum.v[2 * i + 1])};
      const auto mine = bit_cast<uint32_t>(pair), other = other_half(mine);
      words.v[2 * i] = __builtin_amdgcn_perm(other, mine, first);
      words.v[2 * i + 1] = __builtin_amdgcn_perm(other, mine, second);
    }
    return bit_cast<Left>(words);
  }
  DEVICE static void multiply(Sum& sum, const Left& left, const Right& right) {
    sum.v = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(right.v, left.v, sum.v);
  }
};
#else
// Slot s holds k = 8 (i / 16) + s.
struct WmmaOperand {
  typedef half_t Half8 __attribute__((ext_vector_type(8)));
  Half8 v;

  template <class At>
  DEVICE static WmmaOperand load(const At& at) {
    return {*reinterpret_cast<const Half8*>(at(lane_id() % 16, lane_id() / 16 * 8))};
  }
};

// Sum s belongs to column 8 (i / 16) + s.
template <>
struct Instruction<half_t> : WmmaInstruction<WmmaOperand> {
  static constexpr int kSlots = 8, kContiguous = 4;

  DEVICE static int column(int i) { return lane_id() / 16 * 8 + i; }
  DEVICE static Left to_left(const Sum& sum) {
    Left x;
    UNROLL for (int i = 0; i < kSlots; ++i) x.v[i] = static_cast<half_t>(sum.v[i]);
    return x;
  }
  DEVICE static void multiply(Sum& sum, const Left& left, const Right& right) {
    sum.v = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(right.v, left.v, sum.v);
  }
};
#endif

// Two instructions with half of the registers of each operand. The order of k does not matter if it is the same in both
// operands.
template <>
struct Instruction<Int8Pair> : Instruction<half_t> {
  typedef int32_t Int8 __attribute__((ext_vector_type(8)));
  struct Sum {
    Int8 v;
  };
  DEVICE static void multiply(Sum& sum, const Left& left, const Right& right) {
    constexpr int kWords = sizeof(Left) / 8;
    typedef int32_t Words __attribute__((ext_vector_type(kWords)));
    struct Halves {
      Words v[2];
    };
    const auto a = bit_cast<Halves>(right), b = bit_cast<Halves>(left);
    UNROLL for (int i = 0; i < 2; ++i) {
#if !__has_builtin(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12)  // RDNA 3
      sum.v = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, a.v[i], true, b.v[i], sum.v, false);
#else
      sum.v = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, a.v[i], true, b.v[i], sum.v, false);
#endif
    }
  }
};

}  // namespace graphopt::hip
