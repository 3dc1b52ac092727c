// The 16x16x16 tile of instruction.h as two mma.sync instructions of NVIDIA, each 16x8x16. Thread i of a warp
// has the sums of rows i / 4 and i / 4 + 8, at columns c, c + 1, c + 8 and c + 9 with c = 2 (i % 4). Both
// operands have this layout too, with k as the column; a row of the right operand is a column of the tile.
#pragma once

#include "device/platform.h"
#include "gemm/pipelines/instruction.h"

namespace graphopt::hip {

template <>
struct Instruction<half_t> {
  static constexpr int kSlots = 8, kSums = 8, kRows = 2, kContiguous = 2;
  static constexpr bool kLoadsRows = true, kTwoTiles = false;
  struct Left {
    uint32_t v[4];
  };
  using Right = Left;
  struct Sum {
    float v[8];
  };

  DEVICE static int row(int which) { return lane_id() / 4 + 8 * which; }
  DEVICE static int column(int i) { return i / 4 * 8 + lane_id() % 4 * 2 + i % 2; }
  DEVICE static constexpr int row_of(int i) { return i / 2 % 2; }
  DEVICE static float row_max(float x) {
    x = max_float(x, shuffle_xor(x, 1));
    return max_float(x, shuffle_xor(x, 2));
  }
  DEVICE static float row_sum(float x) {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
  }

  template <class At>
  DEVICE static Left load_left(const At& at) {
    return load(at(lane_id() % 16, lane_id() / 16 * 8));
  }
  template <class At>
  DEVICE static Right load_right(const At& at) {
    return load(at(lane_id() / 16 * 8 + lane_id() % 8, lane_id() / 8 % 2 * 8));
  }
  // Loads the right operand if LDS has one row for each k. at(k, n) returns an address.
  template <class At>
  DEVICE static Right load_right_rows(const At& at) {
    Right x;
    const auto address =
        static_cast<uint32_t>(__cvta_generic_to_shared(at(lane_id() % 16, lane_id() / 16 * 8)));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.v[0]), "=r"(x.v[1]), "=r"(x.v[2]), "=r"(x.v[3])
                 : "r"(address));
    return x;
  }
  static constexpr int kLines = kRows, kPairs = kSlots / 2 / kLines, kParts = 8 / kPairs;
  DEVICE static int line(int i) { return lane_id() / 4 + 8 * i; }
  DEVICE static int part() { return lane_id() % 4; }
  template <class Pair>
  DEVICE static Left left_of(const Pair& pair) {
    return {{pair(0, 0), pair(1, 0), pair(0, 1), pair(1, 1)}};
  }
  template <class Pair>
  DEVICE static Right right_of(const Pair& pair) {
    return {{pair(0, 0), pair(0, 1), pair(1, 0), pair(1, 1)}};
  }
  DEVICE static Left to_left(const Sum& sum) {
    Left x;
    UNROLL for (int i = 0; i < 4; ++i) {
      x.v[i] = bit_cast<uint32_t>(__floats2half2_rn(sum.v[2 * i], sum.v[2 * i + 1]));
    }
    return x;
  }
  DEVICE static void multiply(Sum& sum, const Left& left, const Right& right) {
    multiply_eight(sum, left, right, 0);
    multiply_eight(sum, left, right, 1);
  }
  // Multiplies by the first eight columns only.
  DEVICE static void multiply_half(Sum& sum, const Left& left, const Right& right) {
    multiply_eight(sum, left, right, 0);
  }

 private:
  DEVICE static void multiply_eight(Sum& sum, const Left& left, const Right& right, int n) {
    float* c = sum.v + 4 * n;
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(left.v[0]), "r"(left.v[1]), "r"(left.v[2]), "r"(left.v[3]), "r"(right.v[2 * n]),
          "r"(right.v[2 * n + 1]));
  }
  DEVICE static Left load(const half_t* p) {
    Left x;
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(p));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.v[0]), "=r"(x.v[1]), "=r"(x.v[2]), "=r"(x.v[3])
                 : "r"(address));
    return x;
  }
};

template <>
struct Instruction<Int8Pair> : Instruction<half_t> {
  static constexpr bool kLoadsRows = false;
  struct Sum {
    int32_t v[8];
  };
  DEVICE static void multiply(Sum& sum, const Left& left, const Right& right) {
    UNROLL for (int n = 0; n < 2; ++n) {
      int32_t* c = sum.v + 4 * n;
      asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
          : "r"(left.v[0]), "r"(left.v[1]), "r"(left.v[2]), "r"(left.v[3]), "r"(right.v[2 * n]),
            "r"(right.v[2 * n + 1]));
    }
  }
};

}  // namespace graphopt::hip
