// A GEMM of one work-group on the matrix units (instruction.h): C[kM x kN] += A B^T, in float16 with float32 sums, or
// in int8 with int32 sums. LDS has a row of A for each row of C, and a row of B for each column of C. Loaders and LDS
// treat two int8 elements with consecutive indices k as one element of type half_t.
#pragma once

#include "device/platform.h"
#include "gemm/args.h"
#include "gemm/pipelines/instruction.h"
#include "gemm/pipelines/steps.h"
#include "gemm/tiles.h"

namespace graphopt::hip {

// kWaveM x kWaveN: the part of C that a wave computes. kRightByK: LDS has a row of B for each index k instead of each
// column of C; the instruction must support this layout (kLoadsRows). kSplitK: number of groups of waves. Each group
// computes the whole tile for its part of the depth of a step; values above 1 require run_steps_ahead. Element: half_t
// or Int8Pair.
template <int kM_, int kN_, int kDepth_, int kWaveM, int kWaveN, int kBuffers_ = 2, bool kRightByK = false,
          int kSplitK_ = 1, class Element = half_t>
struct Hgemm {
  // Instruction<Element>, written as a dependent type because not every target's Instruction has all
  // functions.
  using Instruction = typename Select<kRightByK, hip::Instruction<Element>, hip::Instruction<Element>>::Type;
  static constexpr bool kInt8 = kIsInt8<Element>;
  using Value = typename Select<kInt8, int32_t, float>::Type;  // type of the sums
  // With asynchronous copies, the rows of an int8 operand B in LDS have the order of AdjacentColumns. The sums of a
  // work-item are then whole packs of a row of C.
  using Adjacent = AdjacentColumns<Instruction, kIntegerPack>;
  static constexpr bool kAdjacent =
      kInt8 && (kCopiesToLds || (kOnCpu && kWave == 32)) && kWaveN % Adjacent::kN == 0;
  using Order = typename Select<kAdjacent, Adjacent, SameColumns>::Type;
  static constexpr bool kByLine = true;
  static constexpr int kM = kM_, kN = kN_, kDepth = kDepth_, kBuffers = kBuffers_;
  static constexpr int kSplitK = kSplitK_, kSplitWaves = (kM / kWaveM) * (kN / kWaveN),
                       kSplitDepth = kDepth / kSplitK;
  static constexpr int kThreads = kSplitK * kSplitWaves * kWave;
  static constexpr int kTilesM = kWaveM / 16, kTilesN = kWaveN / 16;
  static constexpr int kAcross = kDepth / 8;  // packs of a row
  static constexpr int kRow = kDepth + 8;     // padded: rows begin in different banks
  static constexpr int kRowsAtOnce = kThreads / kAcross;
  static constexpr int kPacksA = kM / kRowsAtOnce, kPacksB = kN / kRowsAtOnce;
  static_assert(kPacksA * kRowsAtOnce == kM && kPacksB * kRowsAtOnce == kN,
                "whole packs for every work-item");

  struct Lds {
    alignas(16) half_t a[kBuffers][kM][kRow];
    alignas(16) half_t b[kBuffers][kRightByK ? kDepth : kN][kRightByK ? kN + 8 : kRow];
  };

  typename Instruction::Sum sum[kTilesM][kTilesN] = {};
  // With int8, these bits of each register of A are inverted; see kUnsignedBits in gemm/args.h.
  uint32_t inverted_bits = 0;

  DEVICE static int split() { return kSplitK == 1 ? 0 : wave_id() / kSplitWaves; }
  DEVICE static int wave_of_split() { return kSplitK == 1 ? wave_id() : wave_id() % kSplitWaves; }
  DEVICE static int wave_m() { return wave_of_split() % (kM / kWaveM) * kWaveM; }
  DEVICE static int wave_n() { return wave_of_split() / (kM / kWaveM) * kWaveN; }

  DEVICE void multiply(const Lds& lds, int buffer) {
    // CDNA (waves of 64) has enough registers for the operands of a whole step.
    if constexpr (kWave == 64) {
      Operands operands[kDepth / 16];
      UNROLL for (int k = 0; k < kDepth; k += 16) load(lds, buffer, k, operands[k / 16]);
      constexpr int kStep = Instruction::kTwoTiles && kDepth % 32 == 0 ? 32 : 16;
      UNROLL for (int k = 0; k < kDepth; k += kStep) {
        keep_order();
        if constexpr (kStep == 32) {
          multiply_two(operands[k / 16], operands[k / 16 + 1]);
        } else {
          multiply(operands[k / 16]);
        }
      }
      return;
    }
    UNROLL for (int k = 0; k < kDepth; k += 16) {
      keep_order();
      typename Instruction::Right right[kTilesN];
      load_right(lds, buffer, k, right);
      UNROLL for (int m = 0; m < kTilesM; ++m) {
        const auto left = load_left(lds, buffer, k, m);
        UNROLL for (int n = 0; n < kTilesN; ++n) Instruction::multiply(sum[m][n], left, right[n]);
      }
    }
    UNROLL for (int m = 0; m < kTilesM; ++m) {
      UNROLL for (int n = 0; n < kTilesN; ++n) compute_here(sum[m][n].v);
    }
  }

  // The operands of a wave for 16 indices k of its part of a step.
  struct Operands {
    typename Instruction::Left left[kTilesM];
    typename Instruction::Right right[kTilesN];
  };
  DEVICE void load(const Lds& lds, int buffer, int in_split, Operands& to) const {
    const int k = split() * kSplitDepth + in_split;
    load_right(lds, buffer, k, to.right);
    UNROLL for (int m = 0; m < kTilesM; ++m) to.left[m] = load_left(lds, buffer, k, m);
  }
  DEVICE void multiply(const Operands& operands) {
    UNROLL for (int m = 0; m < kTilesM; ++m) {
      UNROLL for (int n = 0; n < kTilesN; ++n) {
        Instruction::multiply(sum[m][n], operands.left[m], operands.right[n]);
      }
    }
  }

  DEVICE void multiply_two(const Operands& first, const Operands& second) {
    UNROLL for (int m = 0; m < kTilesM; ++m) {
      UNROLL for (int n = 0; n < kTilesN; ++n) {
        Instruction::multiply_two(sum[m][n], first.left[m], second.left[m], first.right[n], second.right[n]);
      }
    }
  }

  // Returns whether this group of waves reduces and stores row i of the 16 x 16 tiles. Each group has every
  // kSplitK-th row.
  DEVICE static bool owns_row(int i) { return kSplitK == 1 || i % kSplitK == split(); }

  // Adds up the sums of all groups of waves. Each group receives the results for the rows where owns_row is true. `lds`
  // has kExchanged elements.
  static constexpr int kExchanged =
      kTilesM * (kSplitK - 1) * kTilesN * Instruction::kSums * kSplitWaves * kWave;
  DEVICE void reduce_splits(Value* lds) {
    if constexpr (kSplitK > 1) {
      static_assert(Instruction::kSums % 4 == 0, "whole packs");
      const auto exchanged = [&](int i, int by, int j, int s) {
        const int pack = ((i * (kSplitK - 1) + by) * kTilesN + j) * (Instruction::kSums / 4) + s / 4;
        return lds + ((pack * kSplitWaves + wave_of_split()) * kWave + lane_id()) * 4;
      };
      lds_barrier();  // all waves have read their last operands
      UNROLL for (int i = 0; i < kTilesM; ++i) {
        if (owns_row(i)) continue;
        const int by = split() - static_cast<int>(split() > i % kSplitK);
        UNROLL for (int j = 0; j < kTilesN; ++j) {
          UNROLL for (int s = 0; s < Instruction::kSums; s += 4) {
            Pack<Value> four;
            UNROLL for (int e = 0; e < 4; ++e) four.v[e] = sum[i][j].v[s + e];
            store_pack(exchanged(i, by, j, s), four);
          }
        }
      }
      lds_barrier();
      UNROLL for (int i = 0; i < kTilesM; ++i) {
        if (!owns_row(i)) continue;
        UNROLL for (int j = 0; j < kTilesN; ++j) {
          UNROLL for (int s = 0; s < Instruction::kSums; s += 4) {
            UNROLL for (int by = 0; by < kSplitK - 1; ++by) {
              const Pack<Value> four = load_pack(exchanged(i, by, j, s));
              UNROLL for (int e = 0; e < 4; ++e) sum[i][j].v[s + e] += four.v[e];
            }
          }
        }
      }
    }
  }

  // For begin and finish see run_steps.
  template <class Begin, class Finish>
  DEVICE void run(Lds& lds, int depth, const Begin& begin, const Finish& finish) {
    run_steps<kDepth, kBuffers>(depth, begin, finish, [&](int buffer) { multiply(lds, buffer); });
  }

  // Calls visit(m, n, values) for each 16 x 16 tile of the wave. `values` are the tile's sums in this
  // work-item; value i is at row m(i) and column n(i) of C.
  template <class Visit>
  DEVICE void for_each(const Visit& visit) const {
    UNROLL for (int j = 0; j < kTilesN; ++j) {
      UNROLL for (int i = 0; i < kTilesM; ++i) {
        keep_order();
        float values[Instruction::kSums];
        UNROLL for (int s = 0; s < Instruction::kSums; ++s) values[s] = sum[i][j].v[s];
        visit([&](int s) { return wave_m() + i * 16 + Instruction::row(Instruction::row_of(s)); },
              [&](int s) { return wave_n() + j * 16 + Instruction::column(s); }, values);
      }
    }
  }

  // See exchange_sums.
  template <int kSize, class Visit>
  DEVICE void for_each_pack(Lds& lds, const Visit& visit) const {
    constexpr int kRows = kM / kWaveM * 16;
    static_assert(kRows * kRowOfSums<kN> * sizeof(float) <= sizeof lds,
                  "the sums must fit into the LDS of the operands");
    exchange_sums<kTilesM, kRows, kN, kSize, kThreads>(
        reinterpret_cast<float*>(&lds),
        [&](uint32_t which, float* to) {
          UNROLL for (int i = 0; i < kTilesM; ++i) {
            if ((which >> i & 1) == 0) continue;
            UNROLL for (int j = 0; j < kTilesN; ++j) {
              UNROLL for (int s = 0; s < Instruction::kSums; ++s) {
                const int row = wave_m() / kWaveM * 16 + Instruction::row(Instruction::row_of(s));
                to[row * kRowOfSums<kN> + wave_n() + j * 16 + Instruction::column(s)] = sum[i][j].v[s];
              }
            }
          }
        },
        [](int chunk, int row) { return row / 16 * kWaveM + chunk * 16 + row % 16; }, visit);
  }

  // Returns the first column of the packs of this work-item, which is the same in all rows.
  template <int kPack>
  DEVICE static int pack_column() {
    return wave_n() + lane_id() % (kWaveN / kPack) * kPack;
  }

  // Like for_each_pack, but each wave moves its own sums through LDS, 16 rows at a time. Before its first rows, it
  // waits until all waves have read their operands, unless it overwrites only operands of its own (kInOwnRows). A pack
  // of a work-item has kPack sums of a row m from column pack_column() on. The epilogue has four functions. prefetch(m)
  // loads the operand of add() for row m some packs in advance. add(values, loaded) applies it to a pack.
  // activate(values) activates several packs at once. store(m, values) stores a pack.
  template <int kPack, class AnyLds, class AnyEpilogue>
  DEVICE void apply_epilogue(AnyLds& lds, const AnyEpilogue& epilogue) const {
    constexpr int kPacksAcross = kWaveN / kPack, kMaxRows = kWave / kPacksAcross;
    constexpr int kRows = kMaxRows >= 16 ? 16 : kMaxRows >= 8 ? 8 : kMaxRows >= 4 ? 4 : kMaxRows >= 2 ? 2 : 1;
    constexpr int kPacks = 16 / kRows;
    // Packs that are handled together: several on targets with kCopiesToLds, where work-items wait longest
    // for memory. On other targets the larger code costs more than it saves.
    constexpr int kGroup = !kCopiesToLds ? 1 : kPacks < 4 ? kPacks : 4;
    constexpr int kStride = kWaveN + (kWaveN > 32 ? 8 : 4);  // padded: rows begin in different banks
    static_assert(kWaveN % kPack == 0 && kPacksAcross * kRows <= kWave, "rows of whole packs");
    constexpr int kWavesWithRows = (kSplitK < kTilesM ? kSplitK : kTilesM) * kSplitWaves;  // see owns_row
    static_assert(kWavesWithRows * 16 * kStride * sizeof(float) <= sizeof lds,
                  "the sums must fit into the LDS of the operands");
    // LDS begins with A. Whether a wave overwrites only rows of A that no other wave reads.
    constexpr bool kInOwnRows = kBuffers == 1 && kSplitK == 1 && kN == kWaveN && kWaveM == 16 &&
                                kStride * sizeof(float) == kRow * sizeof(half_t);
    Value* const own_sums = reinterpret_cast<Value*>(&lds) + wave_id() * (16 * kStride);
    const int row = lane_id() / kPacksAcross, column = lane_id() % kPacksAcross * kPack;
    // If a row has 6 or 12 packs, some work-items have none.
    const bool has_packs = kPacksAcross * kRows == kWave || row < kRows;
    const auto row_of = [&](int at) { return wave_m() + at * kRows + row; };

    Bits128 loaded[kGroup] = {};
    const auto load = [&](int first) {
      UNROLL for (int i = 0; i < kGroup; ++i) loaded[i] = epilogue.prefetch(row_of(first + i));
    };
    const int first_tile = split();
    if (has_packs && first_tile < kTilesM) load(first_tile * kPacks);
    if constexpr (!kInOwnRows) lds_barrier();  // all waves have read their last operands
    // A bit mask, because compilers turn `chunk == i` into an index into the array of sums, which moves the
    // sums from registers to memory.
    uint32_t which = 1u << first_tile;
    NO_UNROLL for (int chunk = first_tile; chunk < kTilesM; chunk += kSplitK) {
      wave_barrier();
      UNROLL for (int i = 0; i < kTilesM; ++i) {
        if ((which >> i & 1) != 0) store_sums(sum[i], own_sums, kStride);
      }
      which <<= kSplitK;
      wave_barrier();
      if (!has_packs) continue;
      NO_UNROLL for (int first = 0; first < kPacks; first += kGroup) {
        const int at = chunk * kPacks + first;
        Value values[kGroup * kPack];
        UNROLL for (int i = 0; i < kGroup; ++i) {
          UNROLL for (int j = 0; j < kPack; j += 4) {
            const Value* const from = own_sums + ((first + i) * kRows + row) * kStride + exchange(column + j);
            const Pack<Value> four = load_pack(from);
            UNROLL for (int e = 0; e < 4; ++e) values[i * kPack + j + e] = four.v[e];
          }
        }
        UNROLL for (int i = 0; i < kGroup; ++i) epilogue.add(values + i * kPack, loaded[i]);
        // Loads in advance for the next packs: of this row of tiles, or of the next row of tiles that this group of
        // waves owns.
        const int after = kSplitK == 1 || first + kGroup < kPacks ? at + kGroup : (chunk + kSplitK) * kPacks;
        if (after < kTilesM * kPacks) load(after);
        epilogue.activate(values);
        UNROLL for (int i = 0; i < kGroup; ++i) epilogue.store(row_of(at + i), values + i * kPack);
      }
    }
  }

 protected:
  // `lds` may be any type with a member b.
  template <class AnyLds>
  DEVICE static void load_right(const AnyLds& lds, int buffer, int k,
                                typename Instruction::Right (&to)[kTilesN]) {
    UNROLL for (int n = 0; n < kTilesN; ++n) {
      if constexpr (kRightByK) {
        to[n] = Instruction::load_right_rows(
            [&](int at, int line) { return &lds.b[buffer][k + at][wave_n() + n * 16 + line]; });
      } else {
        to[n] = Instruction::load_right(
            [&](int line, int at) { return &lds.b[buffer][wave_n() + n * 16 + line][k + at]; });
      }
    }
  }

 private:
  // Swaps columns 0 to 3 of a pack with columns 4 to 7 in every second group of 32 columns. Work-items that read
  // neighbouring packs then use different banks.
  DEVICE static constexpr int exchange(int column) { return column ^ (column >> 5 & 1) * 4; }

  // Stores the sums of 16 rows.
  DEVICE static void store_sums(const typename Instruction::Sum (&sums)[kTilesN], Value* to, int stride) {
    constexpr int kContiguous = Instruction::kContiguous;
    struct alignas(kContiguous * sizeof(Value)) Values {
      Value v[kContiguous];
    };
    UNROLL for (int j = 0; j < kTilesN; ++j) {
      UNROLL for (int s = 0; s < Instruction::kSums; s += kContiguous) {
        Values values;
        UNROLL for (int e = 0; e < kContiguous; ++e) values.v[e] = sums[j].v[s + e];
        Value* const row = to + Instruction::row(Instruction::row_of(s)) * stride;
        *reinterpret_cast<Values*>(row + exchange(Order::column(j * 16 + Instruction::column(s)))) = values;
      }
    }
  }

  DEVICE typename Instruction::Left load_left(const Lds& lds, int buffer, int k, int m) const {
    const auto left = Instruction::load_left(
        [&](int line, int at) { return &lds.a[buffer][wave_m() + m * 16 + line][k + at]; });
    if constexpr (kInt8) {
      return invert_bits(left, inverted_bits);
    } else {
      return left;
    }
  }
};

// The pipeline of a row of kStridedTiles. kCopies: use the shape for targets that copy from memory to LDS
// without registers.
template <GemmTile kTile, bool kCopies = false>
struct StridedHgemm {
  static constexpr MatrixShape kShape = row_of(kStridedTiles, kTile).shape(kWave, kCopies);
  using Type = Hgemm<kShape.m, kShape.n, kShape.depth, kShape.wave_m, kShape.wave_n, kShape.stages>;
  static_assert(Type::kThreads == kShape.threads(kWave) &&
                    sizeof(typename Type::Lds) == kShape.lds_bytes(false),
                "the size that plans assume");
};
template <GemmTile kTile, bool kCopies = false>
using HgemmOf = typename StridedHgemm<kTile, kCopies>::Type;

}  // namespace graphopt::hip
