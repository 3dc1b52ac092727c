// The 16x16x16 tile of instruction.h with the MFMA instructions of CDNA. A line is a row of the left operand or a
// column of the right one. Slot s of work-item i of a wave holds the element of line i % 16 at k = 4 (i / 16) + s. The
// sums of work-item i belong to row i % 16 and columns 4 (i / 16) to 4 (i / 16) + 3.
#pragma once

#include "device/platform.h"
#include "gemm/pipelines/instruction.h"

namespace graphopt::hip {

template <class T>
struct MfmaInstruction {
  static constexpr int kSlots = 4, kSums = 4, kRows = 1, kContiguous = 4;
  static constexpr bool kLoadsRows = false;
  typedef float Float4 __attribute__((ext_vector_type(4)));
  typedef half_t Half4 __attribute__((ext_vector_type(4)));
  using Vector = typename Select<sizeof(T) == 2, Half4, Float4>::Type;
  struct Left {
    Vector v;
  };
  using Right = Left;
  struct Sum {
    Float4 v;
  };

  DEVICE static int row(int) { return lane_id() % 16; }
  DEVICE static int column(int i) { return lane_id() / 16 * 4 + i; }
  DEVICE static constexpr int row_of(int) { return 0; }
  DEVICE static float row_max(float x) {
    x = max_float(x, shuffle_xor(x, 16));
    return max_float(x, shuffle_xor(x, 32));
  }
  DEVICE static float row_sum(float x) {
    x += shuffle_xor(x, 16);
    return x + shuffle_xor(x, 32);
  }
  DEVICE static bool any(bool x) { return __builtin_amdgcn_ballot_w64(x) != 0; }

  template <class At>
  DEVICE static Left load_left(const At& at) {
    return {*reinterpret_cast<const Vector*>(at(lane_id() % 16, lane_id() / 16 * 4))};
  }
  template <class At>
  DEVICE static Right load_right(const At& at) {
    return load_left(at);
  }
  static constexpr int kLines = kRows, kPairs = kSlots / 2 / kLines, kParts = 8 / kPairs;
  DEVICE static int line(int) { return lane_id() % 16; }
  DEVICE static int part() { return lane_id() / 16; }
  template <class Pair>
  DEVICE static Left left_of(const Pair& pair) {
    return operand_of_pairs<Left>(pair);
  }
  template <class Pair>
  DEVICE static Right right_of(const Pair& pair) {
    return left_of(pair);
  }
  DEVICE static Left to_left(const Sum& sum) {
    Left x;
    UNROLL for (int i = 0; i < kSlots; ++i) x.v[i] = from_float<T>(sum.v[i]);
    return x;
  }
  DEVICE static void multiply(Sum& sum, const Left& left, const Right& right) {
    if constexpr (sizeof(T) == 2) {
      sum.v = __builtin_amdgcn_mfma_f32_16x16x16f16(right.v, left.v, sum.v, 0, 0, 0);
    } else {
      UNROLL for (int i = 0; i < kSlots; ++i) {
        sum.v = __builtin_amdgcn_mfma_f32_16x16x4f32(right.v[i], left.v[i], sum.v, 0, 0, 0);
      }
    }
  }

#if __has_builtin(__builtin_amdgcn_mfma_f32_16x16x32_f16)  // CDNA 4: 32 indices k in the time of 16
  static constexpr bool kTwoTiles = sizeof(T) == 2;
  // In slot s of an operand of this instruction, work-item i has k = 8 (i / 16) + s. The order of k does not matter if
  // it is the same in both operands. The slots of two tiles are therefore the slots of one operand.
  DEVICE static void multiply_two(Sum& sum, const Left& left0, const Left& left1, const Right& right0,
                                  const Right& right1) {
    const auto left = __builtin_shufflevector(left0.v, left1.v, 0, 1, 2, 3, 4, 5, 6, 7);
    const auto right = __builtin_shufflevector(right0.v, right1.v, 0, 1, 2, 3, 4, 5, 6, 7);
    sum.v = __builtin_amdgcn_mfma_f32_16x16x32_f16(right, left, sum.v, 0, 0, 0);
  }
#else
  static constexpr bool kTwoTiles = false;
#endif
};
template <>
struct Instruction<half_t> : MfmaInstruction<half_t> {};
template <>
struct Instruction<float> : MfmaInstruction<float> {};

template <>
struct Instruction<Int8Pair> : MfmaInstruction<half_t> {
  static constexpr bool kTwoTiles = false;
  typedef int32_t Int4 __attribute__((ext_vector_type(4)));
  struct Sum {
    Int4 v;
  };
  DEVICE static void multiply(Sum& sum, const Left& left, const Right& right) {
#if defined(__gfx908__) || defined(__gfx90a__)
    // The order of k does not matter if it is the same in both operands.
    struct Words {
      int32_t v[2];
    };
    const auto a = bit_cast<Words>(right.v), b = bit_cast<Words>(left.v);
    UNROLL for (int i = 0; i < 2; ++i) {
      sum.v = __builtin_amdgcn_mfma_i32_16x16x16i8(a.v[i], b.v[i], sum.v, 0, 0, 0);
    }
#else
    sum.v = __builtin_amdgcn_mfma_i32_16x16x32_i8(bit_cast<int64_t>(right.v), bit_cast<int64_t>(left.v),
                                                  sum.v, 0, 0, 0);
#endif
  }
};

}  // namespace graphopt::hip
