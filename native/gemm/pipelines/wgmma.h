// The matrix instruction of NVIDIA's warpgroups, which are four waves: float32 [64 x kColumns] += float16 [64 x 16] x
// [16 x kColumns], with both operands in LDS. With int8, the sums are int32, and each pair of elements with consecutive
// indices k takes the place of a float16 element. Multiplications are asynchronous. Source: the PTX ISA, "Asynchronous
// Warpgroup Level Matrix Instructions". On the CPU, the instruction is emulated for tests.
//
// Wave w of a warpgroup has the sums of rows 16 w to 16 w + 15. With i in [0, 4), sum 4 t + i of a work-item is in row
// lane / 4 + 8 (i / 2) of these 16 rows, and in column 8 t + 2 (lane % 4) + i % 2.
//
// LDS has a row of 64 elements for each row of the left operand and each column of the right one. A row has 8 packs.
// Pack p of row r is stored in the place of pack swizzled(p, r), so that neighbouring rows use different banks. The
// first row begins at a multiple of 1,024 bytes.
#pragma once

#include "device/platform.h"

// Targets with the instruction, and the CPU with waves of 32.
#if defined(__CUDACC__) || GRAPHOPT_WAVE == 32
#define GRAPHOPT_WARPGROUPS 1
#endif

#if GRAPHOPT_WARPGROUPS

namespace graphopt::hip {

#if defined(__CUDACC__)
// The sums as operands of assembly, and their names in it. Macros because assembly names each register.
#define WARPGROUP_SUMS_8(type, i)                                                             \
  type(v[i]), type(v[i + 1]), type(v[i + 2]), type(v[i + 3]), type(v[i + 4]), type(v[i + 5]), \
      type(v[i + 6]), type(v[i + 7])
#define WARPGROUP_SUMS_32(type, i)                                                          \
  WARPGROUP_SUMS_8(type, i), WARPGROUP_SUMS_8(type, i + 8), WARPGROUP_SUMS_8(type, i + 16), \
      WARPGROUP_SUMS_8(type, i + 24)
#define WARPGROUP_NAMES_32                                            \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, " \
  "%15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WARPGROUP_NAMES_64                                                                  \
  WARPGROUP_NAMES_32                                                                        \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
  "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WARPGROUP_NAMES_128                                                                                  \
  WARPGROUP_NAMES_64                                                                                         \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, "   \
  "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, " \
  "%104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, "   \
  "%121, %122, %123, %124, %125, %126, %127"
#endif

// The members that do not depend on the type of the elements.
struct Warpgroup {
  static constexpr int kRows = 64, kLdsRow = 64;  // kLdsRow: elements of a row in LDS
  using Rows = half_t[kLdsRow];

  DEVICE static int swizzled(int pack, int row) { return pack ^ row % 8; }
  // The row and the column of sum i of this work-item, in the part of its wave.
  DEVICE static int row_of(int i) { return lane_id() / 4 + i % 4 / 2 * 8; }
  DEVICE static int column_of(int i) { return i / 4 * 8 + lane_id() % 4 * 2 + i % 2; }

#if defined(__CUDACC__)
  // Makes data that this work-item has stored or copied to LDS visible to multiplications after the next barrier.
  DEVICE static void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
  // Begins a group of multiplications. Their operands must be complete.
  DEVICE static void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
  DEVICE static void end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
  // Waits for all groups except the last kGroups.
  template <int kGroups>
  DEVICE static void wait_except() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kGroups) : "memory");
  }

 protected:
  DEVICE static uint64_t descriptor(const Rows* rows, int k) {
    // Bit 62 selects the swizzle. Bits 32 to 45 are the distance of groups of 8 rows, 1,024 bytes, in units of 16
    // bytes.
    constexpr uint64_t kLayout = uint64_t{1} << 62 | uint64_t{1024 / 16} << 32 | uint64_t{1} << 16;
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(rows)) + static_cast<uint32_t>(2 * k);
    return kLayout | (address >> 4 & 0x3fff);
  }
#else
  DEVICE static void publish() {}
  DEVICE static void begin() {}
  DEVICE static void end() {}
  template <int kGroups>
  DEVICE static void wait_except() {}

 protected:
  DEVICE static half_t element(const Rows* rows, int row, int k) {
    return rows[row][swizzled(k / 8, row) * 8 + k % 8];
  }
#endif
};

template <int kColumns>
struct WarpgroupInstruction : Warpgroup {
  static_assert(kColumns == 128 || kColumns == 256, "the instructions below");
  float v[kColumns / 2] = {};

  // Starts a multiplication over the indices k to k + 15.
  DEVICE void multiply(const Rows* left, const Rows* right, int k) {
#if defined(__CUDACC__)
    const uint64_t a = descriptor(left, k), b = descriptor(right, k);
    if constexpr (kColumns == 256) {
      asm volatile(
          "{.reg .pred p; setp.eq.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
          "{" WARPGROUP_NAMES_128 "}, %128, %129, p, 1, 1, 0, 0;}"
          : WARPGROUP_SUMS_32("+f", 0), WARPGROUP_SUMS_32("+f", 32), WARPGROUP_SUMS_32("+f", 64),
            WARPGROUP_SUMS_32("+f", 96)
          : "l"(a), "l"(b));
    } else {
      asm volatile(
          "{.reg .pred p; setp.eq.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
          "{" WARPGROUP_NAMES_64 "}, %64, %65, p, 1, 1, 0, 0;}"
          : WARPGROUP_SUMS_32("+f", 0), WARPGROUP_SUMS_32("+f", 32)
          : "l"(a), "l"(b));
    }
#else
    for (int s = 0; s < kColumns / 2; ++s) {
      const int row = wave_id() % 4 * 16 + row_of(s);
      for (int i = k; i < k + 16; ++i)
        v[s] += to_float(element(left, row, i)) * to_float(element(right, column_of(s), i));
    }
#endif
  }
};

// Left: int8_t or uint8_t; the elements of the right operand are signed.
template <int kColumns, class Left>
struct IntegerWarpgroupInstruction : Warpgroup {
  static_assert(kColumns == 64 || kColumns == 128, "the instructions below");
  int32_t v[kColumns / 2] = {};

  // Starts a multiplication over the pairs of elements k to k + 15.
  DEVICE void multiply(const Rows* left, const Rows* right, int k) {
#if defined(__CUDACC__)
    constexpr bool kSigned = static_cast<Left>(-1) < 0;
#define WARPGROUP_MULTIPLY(columns, type, names, a, b, ...)                                    \
  asm volatile("{.reg .pred p; setp.eq.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n" columns \
               "k32.s32." type ".s8 {" names "}, " a ", " b ", p;}"                            \
               : __VA_ARGS__                                                                   \
               : "l"(descriptor(left, k)), "l"(descriptor(right, k)))
    if constexpr (kColumns == 64 && kSigned) {
      WARPGROUP_MULTIPLY("64", "s8", WARPGROUP_NAMES_32, "%32", "%33", WARPGROUP_SUMS_32("+r", 0));
    } else if constexpr (kColumns == 64) {
      WARPGROUP_MULTIPLY("64", "u8", WARPGROUP_NAMES_32, "%32", "%33", WARPGROUP_SUMS_32("+r", 0));
    } else if constexpr (kSigned) {
      WARPGROUP_MULTIPLY("128", "s8", WARPGROUP_NAMES_64, "%64", "%65", WARPGROUP_SUMS_32("+r", 0),
                         WARPGROUP_SUMS_32("+r", 32));
    } else {
      WARPGROUP_MULTIPLY("128", "u8", WARPGROUP_NAMES_64, "%64", "%65", WARPGROUP_SUMS_32("+r", 0),
                         WARPGROUP_SUMS_32("+r", 32));
    }
#undef WARPGROUP_MULTIPLY
#else
    struct Pair {
      uint8_t v[2];
    };
    for (int s = 0; s < kColumns / 2; ++s) {
      const int row = wave_id() % 4 * 16 + row_of(s);
      for (int i = k; i < k + 16; ++i) {
        const auto a = bit_cast<Pair>(element(left, row, i)),
                   b = bit_cast<Pair>(element(right, column_of(s), i));
        for (int j = 0; j < 2; ++j) v[s] += static_cast<Left>(a.v[j]) * static_cast<int8_t>(b.v[j]);
      }
    }
#endif
  }
};

}  // namespace graphopt::hip

#endif
