// A float32 GEMM of one work-group: C[kM x kN] += A^T B, A and B in LDS with one row for each k. On CDNA it
// runs on the matrix units (v_mfma_f32_16x16x4_f32), elsewhere on the vector unit with kRows x kColumns
// values in the registers of a work-item.
#pragma once

#include "device/platform.h"
#include "gemm/pipelines/steps.h"
#include "gemm/tiles.h"

namespace graphopt::hip {

#if GRAPHOPT_MFMA
typedef float Float4 __attribute__((ext_vector_type(4)));
#endif

template <GemmTile kTile>
struct Sgemm {
  static constexpr VectorShape kShape = row_of(kVectorTiles, kTile).shape;
  static constexpr bool kByLine = false;
  static constexpr int kM = kShape.m, kN = kShape.n, kRows = kShape.rows, kColumns = kShape.columns;
  static constexpr int kWaveM = kShape.wave_m, kWaveN = kShape.wave_n;
#if GRAPHOPT_MFMA
  static constexpr int kDepth =
      kN == 128 ? 8 : 16;  // with 8, LDS of 64 KiB suffices for three work-groups of the large tiles
#else
  static constexpr int kDepth = 16;
#endif
  static_assert(kVectorDepth % kDepth == 0, "whole steps");
  static constexpr int kThreads = kShape.threads();
  static_assert((kM / kWaveM) * (kN / kWaveN) * 64 == kThreads, "one part for each wave of 64");
  static constexpr int kPacksA = kDepth * kM / 4 / kThreads;
  static constexpr int kPacksB = kDepth * kN / 4 / kThreads;
  static_assert(kPacksA > 0 && kPacksB > 0 && kThreads % (kN / 4) == 0, "whole packs for every work-item");

  struct Lds {
#if GRAPHOPT_MFMA
    static constexpr int kPad = 16;  // two consecutive rows begin in different banks
#else
    static constexpr int kPad = 0;
#endif
    alignas(16) float a[2][kDepth][kM + kPad];
    alignas(16) float b[2][kDepth][kN + kPad];
  };

#if GRAPHOPT_MFMA
  Float4 sum[kWaveM / 16][kWaveN / 16] = {};

  DEVICE static int wave_m() { return wave_id() % (kM / kWaveM) * kWaveM; }
  DEVICE static int wave_n() { return wave_id() / (kM / kWaveM) * kWaveN; }

  DEVICE void multiply(const Lds& lds, int buffer) {
    const int row = lane_id() / 16, column = lane_id() % 16;
    UNROLL for (int k = 0; k < kDepth; k += 4) {
      float a[kWaveM / 16], b[kWaveN / 16];
      UNROLL for (int i = 0; i < kWaveM / 16; ++i) a[i] = lds.a[buffer][k + row][wave_m() + i * 16 + column];
      UNROLL for (int j = 0; j < kWaveN / 16; ++j) b[j] = lds.b[buffer][k + row][wave_n() + j * 16 + column];
      // With swapped operands, each work-item accumulates four consecutive columns of one row.
      UNROLL for (int i = 0; i < kWaveM / 16; ++i) {
        UNROLL for (int j = 0; j < kWaveN / 16; ++j) {
          sum[i][j] = __builtin_amdgcn_mfma_f32_16x16x4f32(b[j], a[i], sum[i][j], 0, 0, 0);
        }
      }
    }
  }

  // Calls visit(m, n, values) for each group of four values of this work-item, at row m and columns n to n +
  // 3.
  template <class Visit>
  DEVICE void for_each(const Visit& visit) const {
    UNROLL for (int i = 0; i < kWaveM / 16; ++i) {
      UNROLL for (int j = 0; j < kWaveN / 16; ++j) {
        float values[4] = {sum[i][j][0], sum[i][j][1], sum[i][j][2], sum[i][j][3]};
        visit(wave_m() + i * 16 + lane_id() % 16, wave_n() + j * 16 + lane_id() / 16 * 4, values);
      }
    }
  }
#else
  float sum[kRows][kColumns] = {};

  DEVICE static int first_m() { return thread_x() / (kN / kColumns) * 4; }
  DEVICE static int first_n() { return thread_x() % (kN / kColumns) * 4; }

  // The rows of a work-item are kRows / 4 groups of four consecutive rows; the groups are kM / (kRows / 4)
  // rows apart. Its columns are grouped in the same way.
  DEVICE void multiply(const Lds& lds, int buffer) {
    constexpr int kGroupsM = kRows / 4, kGroupsN = kColumns / 4;
    UNROLL_A_LITTLE for (int k = 0; k < kDepth; ++k) {
      Pack<float> a[kGroupsM], b[kGroupsN];
      UNROLL for (int i = 0; i < kGroupsM; ++i) a[i] =
          load_pack(&lds.a[buffer][k][first_m() + i * (kM / kGroupsM)]);
      UNROLL for (int j = 0; j < kGroupsN; ++j) b[j] =
          load_pack(&lds.b[buffer][k][first_n() + j * (kN / kGroupsN)]);
      UNROLL for (int i = 0; i < kRows; ++i) {
        UNROLL for (int j = 0; j < kColumns; ++j) {
          sum[i][j] = fused_multiply_add(a[i / 4].v[i % 4], b[j / 4].v[j % 4], sum[i][j]);
        }
      }
    }
  }

  template <class Visit>
  DEVICE void for_each(const Visit& visit) const {
    constexpr int kGroupsM = kRows / 4, kGroupsN = kColumns / 4;
    UNROLL for (int i = 0; i < kRows; ++i) {
      UNROLL for (int j = 0; j < kGroupsN; ++j) {
        float values[4] = {sum[i][4 * j], sum[i][4 * j + 1], sum[i][4 * j + 2], sum[i][4 * j + 3]};
        visit(first_m() + i / 4 * (kM / kGroupsM) + i % 4, first_n() + j * (kN / kGroupsN), values);
      }
    }
  }
#endif

  // See exchange_sums.
  template <int kSize, class Visit>
  DEVICE void for_each_pack(Lds& lds, const Visit& visit) const {
#if GRAPHOPT_MFMA
    constexpr int kChunks = kWaveM / 16, kChunkRows = kM / kWaveM * 16;
    const auto row_of = [](int chunk, int row) { return row / 16 * kWaveM + chunk * 16 + row % 16; };
    const int row = wave_m() / kWaveM * 16 + lane_id() % 16;
#else
    constexpr int kChunks = kRows, kChunkRows = kM / kRows;
    const auto row_of = [](int chunk, int row) {
      return row * 4 + chunk / 4 * (kM / (kRows / 4)) + chunk % 4;
    };
    const int row = first_m() / 4;
#endif
    static_assert(kChunkRows * kRowOfSums<kN> * sizeof(float) <= sizeof lds,
                  "the sums must fit into the LDS of the operands");
    exchange_sums<kChunks, kChunkRows, kN, kSize, kThreads>(
        reinterpret_cast<float*>(&lds),
        [&](uint32_t which, float* to) {
          UNROLL for (int i = 0; i < kChunks; ++i) {
            if ((which >> i & 1) == 0) continue;
#if GRAPHOPT_MFMA
            UNROLL for (int j = 0; j < kWaveN / 16; ++j) {
              const Pack<float> four = {{sum[i][j][0], sum[i][j][1], sum[i][j][2], sum[i][j][3]}};
              store_pack(to + row * kRowOfSums<kN> + wave_n() + j * 16 + lane_id() / 16 * 4, four);
            }
#else
            UNROLL for (int j = 0; j < kColumns; j += 4) {
              const Pack<float> four = {{sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]}};
              store_pack(to + row * kRowOfSums<kN> + first_n() + j / 4 * (kN / (kColumns / 4)), four);
            }
#endif
          }
        },
        row_of, visit);
  }

  // For begin and finish see run_steps.
  template <class Begin, class Finish>
  DEVICE void run(Lds& lds, int depth, const Begin& begin, const Finish& finish) {
    run_steps<kDepth, 2>(depth, begin, finish, [&](int buffer) { multiply(lds, buffer); });
  }

  // Runs the GEMM with operands from load_a(k, m) and load_b(k, n), which return the pack of row k at column
  // m or n. `depth` must be a multiple of kDepth.
  template <class LoadA, class LoadB>
  DEVICE void run_packs(Lds& lds, int depth, const LoadA& load_a, const LoadB& load_b) {
    constexpr int kAcrossA = kM / 4, kAcrossB = kN / 4;
    Pack<float> a[kPacksA], b[kPacksB];
    const auto begin = [&](int k, int) {
      UNROLL for (int i = 0; i < kPacksA; ++i) {
        const int at = i * kThreads + thread_x();
        a[i] = load_a(k + at / kAcrossA, at % kAcrossA * 4);
      }
      UNROLL for (int i = 0; i < kPacksB; ++i) {
        const int at = i * kThreads + thread_x();
        b[i] = load_b(k + at / kAcrossB, at % kAcrossB * 4);
      }
    };
    const auto finish = [&](int buffer) {
      UNROLL for (int i = 0; i < kPacksA; ++i) {
        const int at = i * kThreads + thread_x();
        store_pack(&lds.a[buffer][at / kAcrossA][at % kAcrossA * 4], a[i]);
      }
      UNROLL for (int i = 0; i < kPacksB; ++i) {
        const int at = i * kThreads + thread_x();
        store_pack(&lds.b[buffer][at / kAcrossB][at % kAcrossB * 4], b[i]);
      }
    };
    run(lds, depth, begin, finish);
  }
};

}  // namespace graphopt::hip
