// Emulates the tiles of instruction.h with shuffles, for tests without matrix units. Waves of 32 have the layout of
// RDNA 4, waves of 64 that of CDNA.
#pragma once

#include "device/platform.h"

namespace graphopt::hip {

// Builds an operand from registers, for instructions with one line for each work-item (instruction.h): pair(0, j)
// returns pair j of this line.
template <class Operand, class Pair>
DEVICE Operand operand_of_pairs(const Pair& pair) {
  constexpr int kPairs = sizeof(Operand) / 4;
  struct Pairs {
    uint32_t v[kPairs];
  } pairs;
  UNROLL for (int j = 0; j < kPairs; ++j) pairs.v[j] = pair(0, j);
  return bit_cast<Operand>(pairs);
}

template <class T>
struct ShuffledInstruction {
  static constexpr int kSlots = 256 / kWave, kSums = 256 / kWave, kRows = 1, kContiguous = 4;
  static constexpr bool kLoadsRows = false, kTwoTiles = kWave == 64 && sizeof(T) == 2;
  struct Left {
    T v[kSlots];
  };
  using Right = Left;
  struct Sum {
    float v[kSums];
  };

  DEVICE static int row(int) { return lane_id() % 16; }
  DEVICE static int column(int i) { return lane_id() / 16 * kSums + i; }
  DEVICE static constexpr int row_of(int) { return 0; }
  DEVICE static float row_max(float x) {
    UNROLL for (int mask = 16; mask < kWave; mask *= 2) x = max_float(x, shuffle_xor(x, mask));
    return x;
  }
  DEVICE static float row_sum(float x) {
    UNROLL for (int mask = 16; mask < kWave; mask *= 2) x += shuffle_xor(x, mask);
    return x;
  }
  DEVICE static bool any(bool x) {
    auto found = static_cast<uint32_t>(x);
    UNROLL for (int mask = 1; mask < kWave; mask *= 2) found |= shuffle_xor(found, mask);
    return found != 0;
  }

  template <class At>
  DEVICE static Left load_left(const At& at) {
    Left x;
    UNROLL for (int i = 0; i < kSlots; ++i) x.v[i] = *at(lane_id() % 16, lane_id() / 16 * kSlots + i);
    return x;
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

  // With waves of 64, float16 subnormals become 0, as on the matrix units of gfx90a, the strictest ones
  // (AMD's ISA guide of CDNA 2, "Denormal Handling"; PyTorch's and MIOpen's notes on MI200 agree).
  DEVICE static float operand(T x) {
    const float value = to_float(x);
    const bool subnormal = value < 6.1035156e-5f && value > -6.1035156e-5f;
    return kWave == 64 && sizeof(T) == 2 && subnormal ? 0.0f : value;
  }

  DEVICE static void multiply(Sum& sum, const Left& left, const Right& right) {
#if !defined(__AMDGCN__) && !defined(__CUDACC__)
    struct Operands {  // converted once by the work-item that holds them, not by each that reads them
      float left[kSlots], right[kSlots];
    } mine;
    for (int i = 0; i < kSlots; ++i) {
      mine.left[i] = operand(left.v[i]);
      mine.right[i] = operand(right.v[i]);
    }
    const cpu::Exchanged<Operands> lanes(mine);
    for (int k = 0; k < 16; ++k) {
      const float a = lanes.of(k / kSlots * 16 + row(0)).left[k % kSlots];
      for (int i = 0; i < kSums; ++i) {
        sum.v[i] += a * lanes.of(k / kSlots * 16 + column(i)).right[k % kSlots];
      }
    }
#else
    UNROLL for (int k = 0; k < 16; ++k) {
      const float a = shuffle(to_float(left.v[k % kSlots]), k / kSlots * 16 + row(0));
      UNROLL for (int i = 0; i < kSums; ++i) {
        sum.v[i] += a * shuffle(to_float(right.v[k % kSlots]), k / kSlots * 16 + column(i));
      }
    }
#endif
  }
  DEVICE static void multiply_two(Sum& sum, const Left& left0, const Left& left1, const Right& right0,
                                  const Right& right1) {
    multiply(sum, left0, right0);
    multiply(sum, left1, right1);
  }
};

// Two int8 elements with consecutive indices k.
struct Int8Pair {
  int8_t v[2];
};
template <class T>
constexpr bool kIsInt8 = false;
template <>
constexpr bool kIsInt8<Int8Pair> = true;

#if defined(GRAPHOPT_WAVE)
template <>
struct ShuffledInstruction<Int8Pair> : ShuffledInstruction<half_t> {
  static constexpr bool kTwoTiles = false;
  struct Left {
    Int8Pair v[kSlots];
  };
  using Right = Left;
  struct Sum {
    int32_t v[kSums];
  };

  template <class At>
  DEVICE static Left load_left(const At& at) {
    return bit_cast<Left>(ShuffledInstruction<half_t>::load_left(at));
  }
  template <class At>
  DEVICE static Right load_right(const At& at) {
    return load_left(at);
  }
  DEVICE static void multiply(Sum& sum, const Left& left, const Right& right) {
    struct Operands {
      Left left;
      Right right;
    };
    const cpu::Exchanged<Operands> lanes({left, right});
    for (int k = 0; k < 16; ++k) {
      const Int8Pair a = lanes.of(k / kSlots * 16 + row(0)).left.v[k % kSlots];
      for (int i = 0; i < kSums; ++i) {
        const Int8Pair b = lanes.of(k / kSlots * 16 + column(i)).right.v[k % kSlots];
        sum.v[i] += a.v[0] * b.v[0] + a.v[1] * b.v[1];
      }
    }
  }
};
#endif

}  // namespace graphopt::hip
