// The product of one wave: a 16x16x16 tile, float32 += T x T, on the matrix units where the target has them
// for T (traits.h), else through shuffles: then it is only for tests.
//
// A tile has 16 rows and 16 columns. A lane holds kRows rows of it, kSums values in all, of which kTogether are
// neighbours in a row (and begin at a multiple of as many columns), and kSlots of the 16 products' left and right
// operands. What the units call A and B is swapped where that makes the sums of a lane those of one row: the sums
// of a first product are then, rounded to T, the left operand of a second (left_of), in the same lane on CDNA,
// RDNA 4 and NVIDIA, from the lane 16 away on RDNA 3, whose operands are held twice.
#pragma once

#include "device/platform.h"

namespace graphopt::hip {

// Products through shuffles; the layout is that of RDNA 4 for waves of 32, that of CDNA for waves of 64.
template <class T>
struct TileByShuffles {
  static constexpr int kSlots = 256 / kWave, kSums = 256 / kWave, kRows = 1, kTogether = 4;
  static constexpr bool kLoadsRows = false;
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
  DEVICE static Left left_of(const Sum& sum) {
    Left x;
    UNROLL for (int i = 0; i < kSlots; ++i) x.v[i] = from_float<T>(sum.v[i]);
    return x;
  }

  // As the matrix units of gfx90a do, the strictest of all, with waves of 64: float16 subnormals are 0 to
  // them (AMD's ISA guide of CDNA 2, "Denormal Handling"; PyTorch's and MIOpen's notes on MI200 say the
  // same).
  DEVICE static float operand(T x) {
    const float value = to_float(x);
    const bool subnormal = value < 6.1035156e-5f && value > -6.1035156e-5f;
    return kWave == 64 && sizeof(T) == 2 && subnormal ? 0.0f : value;
  }

  DEVICE static void multiply(Sum& sum, const Left& left, const Right& right) {
#if GRAPHOPT_ON_CPU
    struct Operands {  // converted once by their lane, not by each that reads them
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
};

template <class T>
struct Tile : TileByShuffles<T> {};

#if GRAPHOPT_MFMA
// Operands: line lane % 16, k = 4 (lane / 16) + slot. Sums: row lane % 16, column 4 (lane / 16) + i.
template <class T>
struct TileByMfma {
  static constexpr int kSlots = 4, kSums = 4, kRows = 1, kTogether = 4;
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

  template <class At>
  DEVICE static Left load_left(const At& at) {
    return {*reinterpret_cast<const Vector*>(at(lane_id() % 16, lane_id() / 16 * 4))};
  }
  template <class At>
  DEVICE static Right load_right(const At& at) {
    return load_left(at);
  }
  DEVICE static Left left_of(const Sum& sum) {
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
};
template <>
struct Tile<half_t> : TileByMfma<half_t> {};
template <>
struct Tile<float> : TileByMfma<float> {};

#elif GRAPHOPT_WMMA_GFX11 || GRAPHOPT_WMMA_GFX12
// What RDNA 3 and 4 share: lines and rows are lane % 16, and the halves of the wave hold parts of a row.
// Operand is what loads one line; a right operand is loaded as a left one.
template <class Operand>
struct TileByWmma {
  static constexpr int kSums = 8, kRows = 1;
  static constexpr bool kLoadsRows = false;
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
};

#if GRAPHOPT_WMMA_GFX11
// All 16 k of a line, in both halves of the wave.
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

// Sums: column 2 i + lane / 16.
template <>
struct Tile<half_t> : TileByWmma<WmmaOperand> {
  static constexpr int kSlots = 16, kTogether = 1;

  DEVICE static int column(int i) { return 2 * i + lane_id() / 16; }
  DEVICE static Left left_of(const Sum& sum) {
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
// k = 8 (lane / 16) + slot.
struct WmmaOperand {
  typedef half_t Half8 __attribute__((ext_vector_type(8)));
  Half8 v;

  template <class At>
  DEVICE static WmmaOperand load(const At& at) {
    return {*reinterpret_cast<const Half8*>(at(lane_id() % 16, lane_id() / 16 * 8))};
  }
};

// Sums: column 8 (lane / 16) + i.
template <>
struct Tile<half_t> : TileByWmma<WmmaOperand> {
  static constexpr int kSlots = 8, kTogether = 4;

  DEVICE static int column(int i) { return lane_id() / 16 * 8 + i; }
  DEVICE static Left left_of(const Sum& sum) {
    Left x;
    UNROLL for (int i = 0; i < kSlots; ++i) x.v[i] = static_cast<half_t>(sum.v[i]);
    return x;
  }
  DEVICE static void multiply(Sum& sum, const Left& left, const Right& right) {
    sum.v = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(right.v, left.v, sum.v);
  }
};
#endif

#elif GRAPHOPT_MMA_SM80
// Two products of 16x8x16. Sums: rows lane / 4 and lane / 4 + 8, two neighbouring columns of each in both
// halves of the tile. Operands as the sums, with k in place of the column.
template <>
struct Tile<half_t> {
  static constexpr int kSlots = 8, kSums = 8, kRows = 2, kTogether = 2;
  static constexpr bool kLoadsRows = true;
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
  // Whether x holds in any lane.
  DEVICE static bool any(bool x) { return __any_sync(0xffffffffu, x) != 0; }

  template <class At>
  DEVICE static Left load_left(const At& at) {
    return load(at(lane_id() % 16, lane_id() / 16 * 8));
  }
  template <class At>
  DEVICE static Right load_right(const At& at) {
    return load(at(lane_id() / 16 * 8 + lane_id() % 8, lane_id() / 8 % 2 * 8));
  }
  // From data with one row for each k: at(k, column).
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
  DEVICE static Left left_of(const Sum& sum) {
    Left x;
    UNROLL for (int i = 0; i < 4; ++i) {
      x.v[i] = bit_cast<uint32_t>(__floats2half2_rn(sum.v[2 * i], sum.v[2 * i + 1]));
    }
    return x;
  }
  DEVICE static void multiply(Sum& sum, const Left& left, const Right& right) {
    UNROLL for (int n = 0; n < 2; ++n) {
      float* c = sum.v + 4 * n;
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(left.v[0]), "r"(left.v[1]), "r"(left.v[2]), "r"(left.v[3]), "r"(right.v[2 * n]),
            "r"(right.v[2 * n + 1]));
    }
  }

 private:
  DEVICE static Left load(const half_t* p) {
    Left x;
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(p));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.v[0]), "=r"(x.v[1]), "=r"(x.v[2]), "=r"(x.v[3])
                 : "r"(address));
    return x;
  }
};
#endif

}  // namespace graphopt::hip
