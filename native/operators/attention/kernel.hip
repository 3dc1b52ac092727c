// FusedAttention[Bias][Mask][Causal][Gqa][Guard][Softcap]: O = softmax(scale Q K^T + ...) V, one kernel,
// float32 sums; docs/ops.md has the equations.
//
// FlashAttention's online softmax (T. Dao, "FlashAttention-2", 2023): a work-group takes a block of query
// rows of one key/value head (rows of all query heads that share it) and walks over the keys in blocks:
//   scores = Q K^T -> bias, mask, ... -> p = exp(scores - highest so far)
//   -> O = O exp(old - new highest) + p V
// A wave owns its rows, so nothing but K and V passes through LDS between waves: on the matrix units p does
// not leave the registers (tile.h), on the vector unit it passes through LDS of the wave. The next block of K
// or V is on its way from memory, into registers or (kCopiesToLds) LDS, while the current one is multiplied;
// where nothing but causality stands between the products on NVIDIA's matrix units, both of it are (kAhead). There, two
// teams of waves can share the keys of the same rows, so that one multiplies while the other takes exponents.
//
// 4 S T D FLOPs a head (half for causal) against (2 S + 2 T) D elements: bound by arithmetic beyond a few
// hundred keys. Reached on an H200 (docs/measurements/gpu_h200.md): float16 376 of the 745 TFLOP/s of a large
// product, float32 42 of 51. When there are fewer work-groups than the device needs, the keys are split among
// work-groups and fused_attention_combine_* merges their results.
//
// A key with probability 0 still adds 0 V to O, which is NaN where V is not finite. Keys that causality hides
// are not read, and rows whose softmax is NaN become 0 V under the guard: for both, fused_attention_values_*
// looks for values that are not finite first. Launch: operators/attention/plan.cpp.
#include "blocks/gpu/activation.h"
#include "blocks/gpu/tile.h"
#include "device/platform.h"
#include "operators/attention/args.h"
#include "operators/attention/shape.h"

namespace graphopt::hip {

DEVICE float not_a_number() { return bit_cast<float>(uint32_t{0x7fc00000}); }

template <class T>
DEVICE bool is_finite(T x) {
  return to_float(x) * 0.0f == 0.0f;
}

// N neighbours that move in one instruction.
template <class T, int kCount>
struct alignas(kCount * sizeof(T)) Few {
  T v[kCount];
};

// Rows of K or V from one key on: `count` of them, `width` elements each; the rest reads as zero.
template <class T>
struct Block {
  const T* data;
  int32_t row, column, count, width;

  // The pack at `offset` = key row + d. Outside it reads from inside, so that no branch is needed.
  DEVICE Pack<T> pack(int key, int d, uint32_t offset) const {
    const bool inside = key < count && d < width;
    const auto bits = bit_cast<Bits128>(load_pack(data + (inside ? offset : 0)));
    const Bits128 zero = {};
    return bit_cast<Pack<T>>(inside ? bits : zero);
  }
  DEVICE void copy(T* to, int key, int d, uint32_t offset) const {
    const bool inside = key < count && d < width;
    copy_to_lds(to, data + (inside ? offset : 0), inside);
  }
  DEVICE T element(int key, int d) const {
    return key < count && d < width ? data[int64_t{key} * row + int64_t{d} * column] : from_float<T>(0.0f);
  }
};

// Bias or mask of one image.
template <class T>
struct AttentionExtra {
  const T* data;
  int64_t h;
  int32_t row, column;

  DEVICE static AttentionExtra of(const T* data, const AttentionStrides& strides, int64_t b) {
    return {data + b * strides.b, strides.h, strides.row, strides.column};
  }
  // The element at a head, a query and a key.
  DEVICE const T* at(int64_t head, int query, int key) const {
    return data + head * h + int64_t{query} * row + int64_t{key} * column;
  }
};
// What stands between the products and what comes after the loop, in LDS: in scalar registers, where the
// compiler puts what is the same for all work-items, there is no room for it all along the loop.
template <class T>
struct AttentionExtras {
  AttentionExtra<T> bias;
  AttentionExtra<uint8_t> mask;
  float scale, softcap, inverse_softcap, mask_value;
  T* o;
  float *partial, *statistics;
  const int32_t* found;
  AttentionStrides strides;  // of o
};

// --- On the matrix units

// kUsed: elements of a head that are not all zero, a multiple of 16.
// kAhead: the next block is on its way while the current one is multiplied.
template <class T, int kHead_, int kUsed, int kWaves, int kWaveRows, int kKeys_, bool kQueriesInLds,
          bool kAhead_, int kTeams_>
struct MatrixAttention {
  using Tile = hip::Tile<T>;
  static constexpr int kHead = kHead_, kKeys = kKeys_, kTeams = kTeams_;
  static constexpr int kTeamThreads = kWaves * kWave, kThreads = kTeams * kTeamThreads;
  static constexpr int kBlockRows = kWaves * kWaveRows;
  static constexpr int kM = kWaveRows / 16, kN = kKeys / 16, kD = kUsed / 16;
  static constexpr int kSlots = kM * Tile::kRows;  // rows of a lane
  static constexpr int kSize = Pack<T>::kSize;
  static constexpr int kAcross = kHead / kSize;
  static constexpr int kPacks = kKeys * kAcross / kTeamThreads;
  static_assert(kPacks * kTeamThreads == kKeys * kAcross && kTeamThreads % kAcross == 0,
                "whole packs and rows");
  // Keys of a work-item that are neighbours, where V is transposed on its way to LDS.
  static constexpr int kTogether = kPacks % 4 == 0 ? 4 : kPacks % 2 == 0 ? 2 : 1;

  // Rows in different banks.
  static constexpr int kPad = kSize, kRow = kHead + kPad;
  static constexpr int kQueryCount = kBlockRows * (kHead + kPad);
  static constexpr int kKeyCount = kKeys * (kHead + kPad);
  static constexpr int kValueCount = Tile::kLoadsRows ? kKeyCount : kHead * (kKeys + kPad);
  // Whether Q, K and V go to LDS directly, or through registers.
  static constexpr bool kAhead = kAhead_;
  static constexpr bool kDirectQueries = kAhead;
  static constexpr bool kDirectKeys = kCopiesToLds && Tile::kLoadsRows, kDirectValues = kDirectKeys;
  static_assert(kTeams == 1 || kAhead, "each team has blocks of its own under way");
  static constexpr int kCount = kAhead          ? kQueryCount + 2 * kTeams * (kKeyCount + kValueCount)
                                : kQueriesInLds ? kQueryCount + kKeyCount + kValueCount
                                : kQueryCount > kKeyCount + kValueCount ? kQueryCount
                                                                        : kKeyCount + kValueCount;
  struct Lds {
    alignas(16) T v[kCount];
    float sum[kBlockRows];
    int32_t last[kHead];  // of each column of V, the last key whose value is not finite
    AttentionExtras<T> extras;
  };
  // Where the output is put together.
  static constexpr int kOutputStride = kHead + kPad;
  DEVICE static T* output_at(Lds& lds) { return lds.v; }

  struct Staged {
    Pack<T> pack[kDirectKeys ? 1 : kPacks];
  };
  struct Scores {
    typename Tile::Sum tile[kM][kN];
  };

  typename Tile::Left queries[kQueriesInLds ? 1 : kM][kQueriesInLds ? 1 : kD];
  typename Tile::Sum output[kM][kD] = {};

  DEVICE static T* query_at(Lds& lds, int row, int d) { return lds.v + row * (kHead + kPad) + d; }
  // Of the two blocks of each team of kAhead that number `place`; elsewhere there is one.
  DEVICE static T* key_at(Lds& lds, int key, int d, int place = 0) {
    return lds.v + (kQueriesInLds || kAhead ? kQueryCount : 0) + place * (kKeyCount + kValueCount) +
           key * (kHead + kPad) + d;
  }
  // V is in LDS as it is in memory where tiles can be loaded so; else transposed, packs of keys exchanged so
  // that work-items that write different rows meet different banks. Split into tile and place in the tile:
  // what depends on the tiles alone is then a constant beside an address.
  DEVICE static T* value_at(Lds& lds, int key_tile, int key, int d_tile, int d, int place = 0) {
    T* values = key_at(lds, 0, 0, place) + kKeyCount;
    if constexpr (Tile::kLoadsRows) {
      return values + (key_tile * 16 + key) * (kHead + kPad) + d_tile * 16 + d;
    } else {
      constexpr int kPerTile = 16 / kSize, kTiles = kN < 8 / kPerTile ? kN : 8 / kPerTile;
      return values + (d_tile * 16 + d) * (kKeys + kPad) + (key_tile ^ (d_tile % kTiles)) * 16 +
             (key ^ (d / kSize * kSize));
    }
  }
  DEVICE static T* value_at(Lds& lds, int key, int d) {
    return value_at(lds, key / 16, key % 16, d / 16, d % 16);
  }

  // 0 of a work-group that is one.
  DEVICE static int team() { return kTeams == 1 ? 0 : wave_id() / kWaves; }
  DEVICE static int first_row_of_wave() { return (kTeams == 1 ? wave_id() : wave_id() % kWaves) * kWaveRows; }
  // Row of the work-group that a slot stands for.
  DEVICE static int row(int slot) {
    return first_row_of_wave() + slot / Tile::kRows * 16 + Tile::row(slot % Tile::kRows);
  }
  DEVICE static float row_max(float x) { return Tile::row_max(x); }
  DEVICE static float row_sum(float x) { return Tile::row_sum(x); }
  DEVICE static bool any(bool x) { return Tile::any(x); }

  // value = f(slot, key, value)
  template <class F>
  DEVICE static void each(Scores& scores, const F& f) {
    UNROLL for (int m = 0; m < kM; ++m) {
      UNROLL for (int n = 0; n < kN; ++n) {
        UNROLL for (int i = 0; i < Tile::kSums; ++i) {
          scores.tile[m][n].v[i] =
              f(m * Tile::kRows + Tile::row_of(i), n * 16 + Tile::column(i), scores.tile[m][n].v[i]);
        }
      }
    }
  }
  // The same for one slot.
  template <class F>
  DEVICE static void each_of(Scores& scores, int slot, const F& f) {
    UNROLL for (int n = 0; n < kN; ++n) {
      UNROLL for (int i = 0; i < Tile::kSums; ++i) {
        if (Tile::row_of(i) != slot % Tile::kRows) continue;
        auto& tile = scores.tile[slot / Tile::kRows][n].v;
        tile[i] = f(n * 16 + Tile::column(i), tile[i]);
      }
      keep_order();
    }
  }
  // value = f(slot, column, value)
  template <class F>
  DEVICE void each_output(const F& f) {
    UNROLL for (int m = 0; m < kM; ++m) {
      UNROLL for (int d = 0; d < kD; ++d) {
        UNROLL for (int i = 0; i < Tile::kSums; ++i) {
          output[m][d].v[i] =
              f(m * Tile::kRows + Tile::row_of(i), d * 16 + Tile::column(i), output[m][d].v[i]);
        }
      }
    }
  }

  // Of two teams each ends with half of the rows: a work-item hands the sums of the others, their highest scores and
  // their sums of probabilities to the one of the other team that has the same rows, through the LDS behind Q. Four are
  // one access, and neighbouring lanes meet different banks.
  static constexpr int kKeptM = kM / kTeams, kKept = kKeptM * Tile::kRows;
  static constexpr int kHandedSums = kKeptM * kD * Tile::kSums, kHanded = kHandedSums + 2 * kKept;
  DEVICE static bool keeps_tile(int m) { return kTeams == 1 || m / kKeptM == team(); }
  DEVICE static bool keeps(int slot) { return keeps_tile(slot / Tile::kRows); }
  DEVICE static float* handed_at(Lds& lds, int giver, int i) {
    static_assert(kM % kTeams == 0 && kHanded % 4 == 0 && Tile::kSums % 4 == 0 &&
                      kTeams * kHanded * kTeamThreads * sizeof(float) <= (kCount - kQueryCount) * sizeof(T),
                  "no more than the keys and values");
    float* const first = reinterpret_cast<float*>(key_at(lds, 0, 0)) + giver * (kHanded * kTeamThreads);
    return first + i / 4 * (kTeamThreads * 4) + thread_x() % kTeamThreads * 4 + i % 4;
  }
  // f(m, d, i, which) for four sums of each tile that this lane keeps, or that it does not: the which-th ones handed.
  template <class F>
  DEVICE static void each_four(bool kept, const F& f) {
    UNROLL for (int m = 0; m < kM; ++m) {
      if (keeps_tile(m) != kept) continue;
      UNROLL for (int d = 0; d < kD; ++d) {
        UNROLL for (int i = 0; i < Tile::kSums; i += 4) f(m, d, i, (m % kKeptM * kD + d) * Tile::kSums + i);
      }
    }
  }
  DEVICE void hand_output(Lds& lds) const {
    each_four(false, [&](int m, int d, int i, int which) {
      Pack<float> four;
      UNROLL for (int e = 0; e < 4; ++e) four.v[e] = output[m][d].v[i + e];
      store_pack(handed_at(lds, team(), which), four);
    });
  }
  // output = output mine[slot] + what was handed theirs[slot]
  template <class Slots>
  DEVICE void take_output(Lds& lds, const Slots& mine, const Slots& theirs) {
    each_four(true, [&](int m, int d, int i, int which) {
      const Pack<float> four = load_pack(handed_at(lds, 1 - team(), which));
      UNROLL for (int e = 0; e < 4; ++e) {
        const int slot = m * Tile::kRows + Tile::row_of(i + e);
        float& sum = output[m][d].v[i + e];
        sum = fused_multiply_add(four.v[e], theirs[slot], sum * mine[slot]);
      }
    });
  }

  // f(column, value) for one slot.
  template <class F>
  DEVICE void each_output_of(int slot, const F& f) const {
    UNROLL for (int d = 0; d < kD; ++d) {
      UNROLL for (int i = 0; i < Tile::kSums; ++i) {
        if (Tile::row_of(i) != slot % Tile::kRows) continue;
        f(d * 16 + Tile::column(i), output[slot / Tile::kRows][d].v[i]);
      }
    }
  }
  // f(column, values) for neighbours of one slot.
  template <class F>
  DEVICE void each_few_of(int slot, const F& f) const {
    constexpr int kCount = Tile::kTogether;
    UNROLL for (int d = 0; d < kD; ++d) {
      UNROLL for (int i = 0; i < Tile::kSums; i += kCount) {
        if (Tile::row_of(i) != slot % Tile::kRows) continue;
        Few<float, kCount> few;
        UNROLL for (int e = 0; e < kCount; ++e) few.v[e] = output[slot / Tile::kRows][d].v[i + e];
        f(d * 16 + Tile::column(i), few);
      }
    }
  }

  // Row and first element of the pack of Q that is the at-th to be stored.
  DEVICE static int query_row(int at) { return at / kAcross; }
  DEVICE static int query_d(int at) { return at % kAcross * kSize; }
  DEVICE static void store_query(Lds& lds, int r, int d, const Pack<T>& pack) {
    store_pack(query_at(lds, r, d), pack);
  }
  // Between two barriers: all queries are in LDS, and K and V may take their place.
  DEVICE void take_queries(Lds& lds) {
    if constexpr (!kQueriesInLds) {
      UNROLL for (int m = 0; m < kM; ++m) {
        UNROLL for (int d = 0; d < kD; ++d) queries[m][d] = load_query(lds, m, d);
      }
    }
  }
  DEVICE static typename Tile::Left load_query(Lds& lds, int m, int d) {
    return Tile::load_left(
        [&](int r, int k) { return query_at(lds, first_row_of_wave() + m * 16 + r, d * 16 + k); });
  }

  // kTogether rows of each work-item, then on by kThreads / kAcross of such.
  template <int kTogether>
  DEVICE static void load(Staged& s, const Block<T>& block, int thread) {
    const int key = thread / kAcross * kTogether, d = thread % kAcross * kSize;
    auto offset = static_cast<uint32_t>(key * block.row + d);
    UNROLL for (int i = 0; i < kPacks; i += kTogether) {
      const int first = i * (kThreads / kAcross);
      UNROLL for (int j = 0; j < kTogether; ++j) {
        s.pack[i + j] = block.pack(key + first + j, d, offset + static_cast<uint32_t>(j * block.row));
      }
      offset += static_cast<uint32_t>(kThreads / kAcross * kTogether * block.row);
    }
  }
  DEVICE static void load_keys(Staged& s, const Block<T>& block, int thread) { load<1>(s, block, thread); }
  DEVICE static void store_keys(Lds& lds, const Staged& s, int thread) {
    UNROLL for (int i = 0; i < kPacks; ++i) {
      store_pack(key_at(lds, i * (kThreads / kAcross) + thread / kAcross, thread % kAcross * kSize),
                 s.pack[i]);
    }
  }
  DEVICE static void load_values(Staged& s, const Block<T>& block, int thread) {
    load<Tile::kLoadsRows ? 1 : kTogether>(s, block, thread);
  }
  DEVICE static void store_values(Lds& lds, const Staged& s, int thread) {
    const int key = thread / kAcross, d = thread % kAcross * kSize;
    if constexpr (Tile::kLoadsRows) {
      UNROLL for (int i = 0; i < kPacks; ++i) {
        store_pack(value_at(lds, i * (kThreads / kAcross) + key, d), s.pack[i]);
      }
    } else {
      UNROLL for (int i = 0; i < kPacks; i += kTogether) {
        UNROLL for (int e = 0; e < kSize; ++e) {
          Few<T, kTogether> few;
          UNROLL for (int j = 0; j < kTogether; ++j) few.v[j] = s.pack[i + j].v[e];
          T* to = value_at(lds, i * (kThreads / kAcross) + key * kTogether, d) + e * (kKeys + kPad);
          *reinterpret_cast<Few<T, kTogether>*>(to) = few;
        }
      }
    }
  }
  DEVICE static void copy_keys(Lds& lds, const Block<T>& block, int thread) {
    const int key = thread / kAcross, d = thread % kAcross * kSize;
    auto offset = static_cast<uint32_t>(key * block.row + d);
    UNROLL for (int i = 0; i < kPacks; ++i) {
      const int first = i * (kThreads / kAcross);
      block.copy(key_at(lds, first + key, d), first + key, d, offset);
      offset += static_cast<uint32_t>(kThreads / kAcross * block.row);
    }
  }
  DEVICE static void copy_values(Lds& lds, const Block<T>& block, int thread) {
    const int key = thread / kAcross, d = thread % kAcross * kSize;
    auto offset = static_cast<uint32_t>(key * block.row + d);
    UNROLL for (int i = 0; i < kPacks; ++i) {
      const int first = i * (kThreads / kAcross);
      block.copy(value_at(lds, first + key, d), first + key, d, offset);
      offset += static_cast<uint32_t>(kThreads / kAcross * block.row);
    }
  }
  DEVICE static void copy_query(Lds& lds, int r, int d, const T* from, bool inside) {
    copy_to_lds(query_at(lds, r, d), from, inside);
  }
  DEVICE static void store_key(Lds& lds, int key, int d, T x) { *key_at(lds, key, d) = x; }
  DEVICE static void store_value(Lds& lds, int key, int d, T x) { *value_at(lds, key, d) = x; }

  DEVICE void multiply_keys(Lds& lds, Scores& scores, int) {
    multiply_keys(lds, scores, 0, [](int) {});
  }
  // between(d): after each of the kD parts of a head, what the work-items do while the units multiply.
  template <class Between>
  DEVICE void multiply_keys(Lds& lds, Scores& scores, int place, const Between& between) {
    UNROLL for (int m = 0; m < kM; ++m) { UNROLL for (int n = 0; n < kN; ++n) scores.tile[m][n] = {}; }
    // The operands of a step are on their way while the step before multiplies.
    typename Tile::Right right[2][kKeyTiles];
    typename Tile::Left left[kLeftAhead ? 2 : 1][kM];
    load_key_tiles(lds, place, 0, right[0]);
    if constexpr (kLeftAhead) load_left(lds, 0, left[0]);
    UNROLL for (int step = 0; step < kD * kStepsN; ++step) {
      const int d = step / kStepsN, first = step % kStepsN * kKeyTiles;
      keep_order();
      if (step + 1 < kD * kStepsN) load_key_tiles(lds, place, step + 1, right[(step + 1) % 2]);
      if constexpr (kLeftAhead) {
        if (first + kKeyTiles == kN && d + 1 < kD) load_left(lds, d + 1, left[(d + 1) % 2]);
      }
      if (first == 0) between(d);
      UNROLL for (int m = 0; m < kM; ++m) {
        if constexpr (!kLeftAhead) left[0][m] = left_at(lds, m, d);
        UNROLL for (int n = 0; n < kKeyTiles; ++n) {
          Tile::multiply(scores.tile[m][first + n], left[kLeftAhead ? d % 2 : 0][m], right[step % 2][n]);
        }
      }
    }
  }

  DEVICE typename Tile::Left left_at(Lds& lds, int m, int d) const {
    if constexpr (kQueriesInLds) {
      return load_query(lds, m, d);
    } else {
      return queries[m][d];
    }
  }
  DEVICE void load_left(Lds& lds, int d, typename Tile::Left (&left)[kM]) const {
    UNROLL for (int m = 0; m < kM; ++m) left[m] = left_at(lds, m, d);
  }

  // Tiles of K that a step takes, of the same part of a head. Where Q is in LDS beside many keys, fewer of them leave
  // registers for that of the next part.
  static constexpr bool kLeftAhead = kAhead && kQueriesInLds && kHead == 128;
  static constexpr int kKeyTiles = kLeftAhead && kN % 2 == 0 ? 2 : kN, kStepsN = kN / kKeyTiles;
  DEVICE static void load_key_tiles(Lds& lds, int place, int step, typename Tile::Right (&right)[kKeyTiles]) {
    const int d = step / kStepsN, first = step % kStepsN * kKeyTiles;
    UNROLL for (int n = 0; n < kKeyTiles; ++n) {
      right[n] = Tile::load_right(
          [&](int key, int k) { return key_at(lds, (first + n) * 16 + key, d * 16 + k, place); });
    }
  }

  // Tiles of V of the same keys that a step takes. The operands of RDNA 3 are held twice: with the output of
  // a head of 256 there are registers for two.
  static constexpr int kStepTiles = (Tile::kSlots == 16 && kHead == 256) || kLeftAhead ? 2
                                    : kD % 4 == 0                                      ? 4
                                                                                       : 3;
  static constexpr int kStepsD = kD / kStepTiles;
  DEVICE static void load_value_tiles(Lds& lds, int place, int step,
                                      typename Tile::Right (&right)[kStepTiles]) {
    const int n = step / kStepsD;
    UNROLL for (int i = 0; i < kStepTiles; ++i) {
      const int d = step % kStepsD * kStepTiles + i;
      if constexpr (Tile::kLoadsRows) {
        right[i] = Tile::load_right_rows(
            [&](int key, int column) { return value_at(lds, n, key, d, column, place); });
      } else {
        right[i] = Tile::load_right([&](int column, int key) { return value_at(lds, n, key, d, column); });
      }
    }
  }

  DEVICE void multiply_values(Lds& lds, const Scores& scores, int place = 0) {
    constexpr int kSteps = kN * kStepsD;
    typename Tile::Right right[2][kStepTiles];
    typename Tile::Left left[kM] = {};
    load_value_tiles(lds, place, 0, right[0]);
    UNROLL for (int step = 0; step < kSteps; ++step) {
      keep_order();
      if (step + 1 < kSteps) load_value_tiles(lds, place, step + 1, right[(step + 1) % 2]);
      if (step % kStepsD == 0) {
        UNROLL for (int m = 0; m < kM; ++m) left[m] = Tile::left_of(scores.tile[m][step / kStepsD]);
      }
      UNROLL for (int m = 0; m < kM; ++m) {
        UNROLL for (int i = 0; i < kStepTiles; ++i) {
          Tile::multiply(output[m][step % kStepsD * kStepTiles + i], left[m], right[step % 2][i]);
        }
      }
    }
  }
};

// --- On the vector unit

// A wave is kDown x 8 work-items: the one at (down, across) has kSlots neighbouring rows, the keys and output
// columns in groups of four (two, one) that are 8 groups apart.
template <class T, int kHead_, int kWaves, int kWaveRows, int kKeys_, int kParts>
struct VectorAttention {
  static constexpr int kHead = kHead_, kKeys = kKeys_;
  static constexpr int kThreads = kWaves * kWave, kBlockRows = kWaves * kWaveRows;
  static constexpr int kTeams = 1;
  DEVICE static int team() { return 0; }
  DEVICE static bool keeps(int) { return true; }
  static constexpr int kDown = kWave / 8, kSlots = kWaveRows / kDown;
  static constexpr int kScores = kKeys / 8, kOutputs = kHead / 8;
  static constexpr int kGroup = kScores < 4 ? kScores : 4;  // neighbouring keys of a work-item
  static constexpr int kSize = Pack<T>::kSize;
  static constexpr int kAcross = kHead / kSize;
  static constexpr int kPacks = kKeys * kAcross / kThreads;
  static_assert(kPacks * kThreads == kKeys * kAcross && kThreads % kAcross == 0, "whole packs and rows");
  static_assert((kSlots == 4 || kSlots == 8) && kAcross % 4 == 0, "128-bit accesses");
  static constexpr bool kAhead = false;
  static constexpr bool kDirectQueries = kCopiesToLds && sizeof(T) == 4;
  static constexpr bool kDirectKeys = kDirectQueries, kDirectValues = kDirectQueries;

  // Q and K are transposed: one row for each element of the head. In K groups of 8 keys are exchanged so that
  // work-items that write different rows meet different banks; the like for p, one row for each key.
  struct Lds {
    alignas(16) float query[kHead][kBlockRows];
    alignas(16) float key[kHead][kKeys];
    alignas(16) float value[kKeys][kHead];
    alignas(16) float p[kWaves][kKeys / kParts][kWaveRows];
    float sum[kBlockRows];
    int32_t last[kHead];  // of each column of V, the last key whose value is not finite
    AttentionExtras<T> extras;
  };
  // Where the output is put together: Q and K, which are not needed any more, are no smaller.
  static constexpr int kOutputStride = kHead;
  DEVICE static T* output_at(Lds& lds) { return reinterpret_cast<T*>(&lds); }
  DEVICE static int exchange(int key, int d) { return key ^ ((d / kSize % 4 * 8) & (kKeys - 1)); }
  DEVICE static int exchange_row(int r, int d) { return r ^ ((d / kSize % 4 * 8) & (kBlockRows - 1)); }

  struct Staged {
    Pack<T> pack[kDirectKeys ? 1 : kPacks];
  };
  struct Scores {
    float v[kSlots][kScores];
  };
  float output[kSlots][kOutputs] = {};

  // Neighbours differ in across, every second lane in down: an NVIDIA GPU reads 16 bytes for 16 lanes in one
  // cycle, instead of 8, when either neighbours or every second lane want the same.
  DEVICE static int down() { return (lane_id() >> 1 & 1) | lane_id() / 16 * 2; }
  DEVICE static int across() { return (lane_id() & 5) | (lane_id() >> 2 & 2); }
  DEVICE static int row(int slot) { return wave_id() * kWaveRows + down() * kSlots + slot; }
  DEVICE static int key_of(int i, int lane) { return i / kGroup * (8 * kGroup) + lane * kGroup + i % kGroup; }
  DEVICE static float row_max(float x) {
    x = max_float(x, shuffle_xor(x, 1));
    x = max_float(x, shuffle_xor(x, 4));
    return max_float(x, shuffle_xor(x, 8));
  }
  DEVICE static float row_sum(float x) {
    x += shuffle_xor(x, 1);
    x += shuffle_xor(x, 4);
    return x + shuffle_xor(x, 8);
  }

  template <class F>
  DEVICE static void each(Scores& scores, const F& f) {
    UNROLL for (int slot = 0; slot < kSlots; ++slot) {
      UNROLL for (int i = 0; i < kScores; ++i) {
        scores.v[slot][i] = f(slot, key_of(i, across()), scores.v[slot][i]);
      }
    }
  }
  template <class F>
  DEVICE static void each_of(Scores& scores, int slot, const F& f) {
    UNROLL for (int i = 0; i < kScores; ++i) {
      scores.v[slot][i] = f(key_of(i, across()), scores.v[slot][i]);
    }
    keep_order();
  }
  template <class F>
  DEVICE void each_output(const F& f) {
    UNROLL for (int slot = 0; slot < kSlots; ++slot) {
      UNROLL for (int i = 0; i < kOutputs; ++i) {
        output[slot][i] = f(slot, i / 4 * 32 + across() * 4 + i % 4, output[slot][i]);
      }
    }
  }

  template <class F>
  DEVICE void each_output_of(int slot, const F& f) const {
    UNROLL for (int i = 0; i < kOutputs; ++i) f(i / 4 * 32 + across() * 4 + i % 4, output[slot][i]);
  }
  // f(column, values) for neighbours of one slot.
  template <class F>
  DEVICE void each_few_of(int slot, const F& f) const {
    UNROLL for (int i = 0; i < kOutputs; i += 4) {
      Few<float, 4> few;
      UNROLL for (int e = 0; e < 4; ++e) few.v[e] = output[slot][i + e];
      f(i / 4 * 32 + across() * 4, few);
    }
  }

  // Neighbouring work-items take 8 rows and 4 packs of each; then the next rows, then the next packs. The
  // same for keys.
  DEVICE static int query_row(int at) { return at / 32 % (kBlockRows / 8) * 8 + at % 8; }
  DEVICE static int query_d(int at) { return (at / 32 / (kBlockRows / 8) * 4 + at / 8 % 4) * kSize; }
  DEVICE static void store_query(Lds& lds, int r, int d, const Pack<T>& pack) {
    UNROLL for (int e = 0; e < kSize; ++e) lds.query[d + e][exchange_row(r, d)] = to_float(pack.v[e]);
  }
  DEVICE static void copy_query(Lds& lds, int r, int d, const T* from, bool inside) {
    UNROLL for (int e = 0; e < kSize; ++e) {
      copy_word_to_lds(&lds.query[d + e][exchange_row(r, d)], from + e, inside);
    }
  }
  DEVICE static void take_queries(Lds&) {}

  DEVICE static constexpr int staged_key(int at) { return at / 32 % (kKeys / 8) * 8 + at % 8; }
  DEVICE static constexpr int staged_pack(int at) { return at / 32 / (kKeys / 8) * 4 + at / 8 % 4; }
  DEVICE static void load_keys(Staged& s, const Block<T>& block, int thread) {
    const int key = staged_key(thread), d = staged_pack(thread) * kSize;
    const auto offset = static_cast<uint32_t>(key * block.row + d);
    UNROLL for (int i = 0; i < kPacks; ++i) {
      const int keys = staged_key(i * kThreads), ds = staged_pack(i * kThreads) * kSize;
      s.pack[i] = block.pack(key + keys, d + ds, offset + static_cast<uint32_t>(keys * block.row + ds));
    }
  }
  DEVICE static void store_keys(Lds& lds, const Staged& s, int thread) {
    const int key = staged_key(thread), d = staged_pack(thread) * kSize;
    const int exchanged = exchange(key, d);  // the same for all i: d advances by four packs
    UNROLL for (int i = 0; i < kPacks; ++i) {
      const int keys = staged_key(i * kThreads), ds = staged_pack(i * kThreads) * kSize;
      UNROLL for (int e = 0; e < kSize; ++e) {
        lds.key[d + ds + e][exchanged ^ keys] = to_float(s.pack[i].v[e]);
      }
    }
  }
  DEVICE static void load_values(Staged& s, const Block<T>& block, int thread) {
    const int key = thread / kAcross, d = thread % kAcross * kSize;
    auto offset = static_cast<uint32_t>(key * block.row + d);
    UNROLL for (int i = 0; i < kPacks; ++i) {
      s.pack[i] = block.pack(key + i * (kThreads / kAcross), d, offset);
      offset += static_cast<uint32_t>(kThreads / kAcross * block.row);
    }
  }
  DEVICE static void store_values(Lds& lds, const Staged& s, int thread) {
    float* p = &lds.value[thread / kAcross][thread % kAcross * kSize];
    UNROLL for (int i = 0; i < kPacks; ++i) {
      UNROLL for (int e = 0; e < kSize; e += 4) {
        Pack<float> four;
        UNROLL for (int j = 0; j < 4; ++j) four.v[j] = to_float(s.pack[i].v[e + j]);
        store_pack(p + i * kThreads * kSize + e, four);
      }
    }
  }
  DEVICE static void copy_keys(Lds& lds, const Block<T>& block, int thread) {
    const int key = staged_key(thread), d = staged_pack(thread) * kSize;
    const int exchanged = exchange(key, d);
    const auto offset = static_cast<uint32_t>(key * block.row + d);
    UNROLL for (int i = 0; i < kPacks; ++i) {
      const int keys = staged_key(i * kThreads), ds = staged_pack(i * kThreads) * kSize;
      const bool inside = key + keys < block.count && d + ds < block.width;
      const T* from = block.data + (inside ? offset + static_cast<uint32_t>(keys * block.row + ds) : 0);
      UNROLL for (int e = 0; e < kSize; ++e) {
        copy_word_to_lds(&lds.key[d + ds + e][exchanged ^ keys], from + e, inside);
      }
    }
  }
  DEVICE static void copy_values(Lds& lds, const Block<T>& block, int thread) {
    const int key = thread / kAcross, d = thread % kAcross * kSize;
    auto offset = static_cast<uint32_t>(key * block.row + d);
    UNROLL for (int i = 0; i < kPacks; ++i) {
      const int first = i * (kThreads / kAcross);
      block.copy(reinterpret_cast<T*>(&lds.value[first + key][d]), first + key, d, offset);
      offset += static_cast<uint32_t>(kThreads / kAcross * block.row);
    }
  }
  DEVICE static void store_key(Lds& lds, int key, int d, T x) { lds.key[d][exchange(key, d)] = to_float(x); }
  DEVICE static void store_value(Lds& lds, int key, int d, T x) { lds.value[key][d] = to_float(x); }

  DEVICE static void load_fours(const float* p, float* to, int count) {
    UNROLL for (int i = 0; i < count; i += 4) {
      const Pack<float> four = load_pack(p + i);
      UNROLL for (int j = 0; j < 4; ++j) to[i + j] = four.v[j];
    }
  }

  DEVICE static void multiply_keys(Lds& lds, Scores& scores, int depth) {
    UNROLL for (int slot = 0; slot < kSlots; ++slot) {
      UNROLL for (int i = 0; i < kScores; ++i) scores.v[slot][i] = 0;
    }
    // The operands of a step are on their way while the step before multiplies.
    float a[2][kSlots], b[2][kScores];
    const int r = row(0);
    constexpr int kStep = 8;
    const auto load = [&](int first, int d) {
      // The exchanges move groups of 8 within 32 rows or keys and are the same for four d.
      const float* const rows = &lds.query[first + d][exchange_row(r, first + d / 4 * 4)];
      UNROLL for (int i = 0; i < kSlots; i += 4) load_fours(rows + i, a[d % 2] + i, 4);
      const float* const line = &lds.key[first + d][exchange(key_of(0, across()), first + d / 4 * 4)];
      UNROLL for (int i = 0; i < kScores; i += kGroup) {
        const auto few = *reinterpret_cast<const Few<float, kGroup>*>(line + i * 8);
        UNROLL for (int j = 0; j < kGroup; ++j) b[d % 2][i + j] = few.v[j];
      }
    };
    load(0, 0);
    for (int first = 0; first < depth; first += kStep) {
      const int next = first + kStep < depth ? first + kStep : 0;
      UNROLL for (int d = 0; d < kStep; ++d) {
        keep_order();
        load(d < kStep - 1 ? first : next, (d + 1) % kStep);
        UNROLL for (int slot = 0; slot < kSlots; ++slot) {
          UNROLL for (int i = 0; i < kScores; ++i) {
            scores.v[slot][i] = fused_multiply_add(a[d % 2][slot], b[d % 2][i], scores.v[slot][i]);
          }
        }
      }
    }
  }

  // Row i 8 + lane of p is the key that work-items at `lane` across have as their score i. Fours of rows are
  // exchanged by the lane, so that lanes write to different banks.
  DEVICE static float* p_at(Lds& lds, int i, int lane, int slot) {
    constexpr int kFours = kSlots / 4;
    const int four = (down() * kFours + slot / 4) ^ (lane * kFours / 2 % (kDown * kFours));
    return &lds.p[wave_id()][i * 8 + lane][four * 4];
  }
  DEVICE void multiply_values(Lds& lds, const Scores& scores) {
    constexpr int kPart = kScores / kParts;
    NO_UNROLL for (int part = 0; part < kParts; ++part) {
      if (part > 0) wave_barrier();
      UNROLL for (int i = 0; i < kPart; ++i) {
        UNROLL for (int slot = 0; slot < kSlots; slot += 4) {
          Pack<float> four;
          UNROLL for (int j = 0; j < 4; ++j) {
            four.v[j] = scores.v[slot + j][i];
            UNROLL for (int k = 1; k < kParts; ++k) {
              if (part == k) four.v[j] = scores.v[slot + j][k * kPart + i];
            }
          }
          store_pack(p_at(lds, i, across(), slot), four);
        }
      }
      wave_barrier();
      multiply_part(lds, part * kPart);
    }
  }
  DEVICE void multiply_part(Lds& lds, int first) {
    for (int i = 0; i < kScores / kParts; ++i) {
      UNROLL_A_LITTLE for (int lane = 0; lane < 8; ++lane) {
        float a[kSlots];
        UNROLL for (int slot = 0; slot < kSlots; slot += 4) {
          load_fours(p_at(lds, i, lane, slot), a + slot, 4);
        }
        const float* line = lds.value[key_of(first + i, lane)];
        UNROLL for (int o = 0; o < kOutputs; o += 4) {
          const Pack<float> four = load_pack(line + o * 8 + across() * 4);
          UNROLL for (int slot = 0; slot < kSlots; ++slot) {
            UNROLL for (int j = 0; j < 4; ++j) {
              output[slot][o + j] = fused_multiply_add(a[slot], four.v[j], output[slot][o + j]);
            }
          }
        }
      }
    }
  }
};

// --- What is common

// Copies a block element by element: any strides.
template <class P, class T, class Store>
DEVICE void copy_elements(const Block<T>& block, bool key_major, const Store& store) {
  NO_UNROLL for (int at = thread_x(); at < P::kKeys * P::kHead; at += P::kThreads) {
    const int key = key_major ? at % P::kKeys : at / P::kHead;
    const int d = key_major ? at / P::kKeys : at % P::kHead;
    store(key, d, block.element(key, d));
  }
}

// The last key whose value in column d is not finite, or -1.
DEVICE int last_found(const int32_t* found, int parts, int Dv, int d) {
  int last = -1;
  for (int part = 0; part < parts; ++part) {
    last = max_int(last, found[static_cast<size_t>(part) * static_cast<size_t>(Dv) + static_cast<size_t>(d)]);
  }
  return last;
}

// The first key of which O gets 0 V without having read it: `seen` where causality hides the rest; 0, which
// is all there is to O, where the guard replaces a NaN softmax (its sum is NaN or 0).
DEVICE int first_unread(float sum, int seen, int keys, int32_t flags) {
  if (keys == 0) return 0;
  if ((flags & kAttentionGuard) != 0 && !(sum > 0.0f)) return 0;
  return (flags & kAttentionSkips) == 0 ? keys : seen < 1 ? 1 : seen;
}

// 2^(exponent (score - shift)). In float16 scores are far from overflow, and what the products round to is
// the same for the whole row: one instruction less. In float32 a mask's value may be the lowest finite
// number.
template <class T>
DEVICE float power(float score, float shift, float exponent) {
  if constexpr (sizeof(T) == 2) return exp2_fast(fused_multiply_add(score, exponent, -shift * exponent));
  return exp2_fast((score - shift) * exponent);
}

// What the products and the sum take, all 2^10 times as large in float16: the factor cancels, 1,024 is far
// from overflow, and what is 17 below the highest score is no subnormal yet. Those have few bits, and none at
// all in the matrix units of gfx90a.
template <class T>
DEVICE float probability(float score, float shift, float exponent) {
  if constexpr (sizeof(T) == 2) {
    constexpr float kRaised = 10.0f;
    return exp2_fast(fused_multiply_add(score, exponent, fused_multiply_add(-shift, exponent, kRaised)));
  }
  return power<T>(score, shift, exponent);
}

DEVICE int value_parts(int T) { return (T + kAttentionValueKeys - 1) / kAttentionValueKeys; }

// A row of a work-group: a query of one of the heads that share K and V.
struct AttentionRow {
  int head, query;
};

// What a work-group computes: rows of one image and one head of K and V, over some of the keys.
template <class P>
struct AttentionPlace {
  const AttentionLayout& layout;
  int64_t b, head;         // of K and V
  int64_t first_head;      // of Q
  uint32_t all_heads, id;  // (b, head) as one number; the work-group's, where they are in order
  int rows, first_row;     // of all rows that share K and V
  int ahead,
      first_hidden;  // key - query of the last one seen; the first one that causality hides of some row
  int begin, end;    // keys
  bool causal;

  DEVICE AttentionRow row_at(int r) const {
    const uint32_t h = divide(static_cast<uint32_t>(r), layout.queries);
    return {static_cast<int>(h), r - static_cast<int>(h * layout.queries.d)};
  }
  DEVICE AttentionRow row_or_last(int r) const { return row_at(min_int(first_row + r, rows - 1)); }

  DEVICE explicit AttentionPlace(const AttentionLayout& of)
      : layout(of), rows(static_cast<int>(of.sizes.rows)), causal((of.scores.flags & kAttentionCausal) != 0) {
    const AttentionSizes& sizes = layout.sizes;
    // Work-groups go to the dies in turn; those that share K and V should meet in one L2.
    id = static_cast<uint32_t>(block_x());
    if (id < layout.groups_of_die * layout.dies.d) {
      const uint32_t turn = divide(id, layout.dies);
      id = (id - turn * layout.dies.d) * layout.groups_of_die + turn;
    }
    const uint32_t rest = divide(id, layout.splits);
    const auto split = static_cast<int>(id - rest * layout.splits.d);
    all_heads = divide(rest, layout.row_blocks);
    auto row_block = static_cast<int>(rest - all_heads * layout.row_blocks.d);
    if (causal) row_block = static_cast<int>(layout.row_blocks.d) - 1 - row_block;  // long ones first
    id = (all_heads * layout.row_blocks.d + static_cast<uint32_t>(row_block)) * layout.splits.d +
         static_cast<uint32_t>(split);
    const uint32_t batch = divide(all_heads, layout.heads);
    b = static_cast<int64_t>(batch);
    head = static_cast<int64_t>(all_heads - batch * layout.heads.d);
    first_row = row_block * P::kBlockRows;
    first_head = head * static_cast<int64_t>(divide(sizes.rows, layout.queries));

    // The keys of this work-group, and the queries that bound what causality hides.
    const int last_row = min_int(first_row + P::kBlockRows, rows) - 1;
    const AttentionRow low = row_at(first_row), high = row_at(last_row);
    const bool one_head = low.head == high.head;
    ahead = sizes.T - sizes.S;
    first_hidden = (one_head ? low.query : 0) + ahead + 1;
    begin = split * sizes.split_keys;
    end = min_int(begin + sizes.split_keys, sizes.T);
    if ((layout.scores.flags & kAttentionSkips) != 0) {
      end = min_int(end, (one_head ? high.query : sizes.S - 1) + ahead + 1);
    }
  }
};

// K and V on their way to LDS, a block at a time: begun while something else is computed, finished before a
// barrier.
template <class T, class P>
struct AttentionKeys {
  const AttentionLayout& layout;
  typename P::Lds& lds;
  const T *keys, *values;
  bool vector_k, vector_v;
  typename P::Staged staged;

  DEVICE AttentionKeys(const AttentionArgs& args, const AttentionPlace<P>& place, typename P::Lds& to)
      : layout(args.layout),
        lds(to),
        vector_k((layout.scores.flags & kAttentionVectorK) != 0),
        vector_v((layout.scores.flags & kAttentionVectorV) != 0) {
    const T *k = args.k, *v = args.v;
    keys = k + place.b * layout.k.b + place.head * layout.k.h;
    values = v + place.b * layout.v.b + place.head * layout.v.h;
  }

  DEVICE Block<T> keys_from(int t) const {
    return {keys + int64_t{t} * layout.k.row, layout.k.row, layout.k.column, layout.sizes.T - t,
            layout.sizes.D};
  }
  DEVICE Block<T> values_from(int t) const {
    return {values + int64_t{t} * layout.v.row, layout.v.row, layout.v.column, layout.sizes.T - t,
            layout.sizes.Dv};
  }

  DEVICE void begin_keys(int t, int thread) {
    if (!vector_k) return;
    if constexpr (P::kDirectKeys) {
      P::copy_keys(lds, keys_from(t), thread);
    } else {
      P::load_keys(staged, keys_from(t), thread);
    }
  }
  DEVICE void finish_keys(int t, int thread) {
    if (!vector_k) {
      copy_elements<P>(keys_from(t), (layout.scores.flags & kAttentionKeyMajorK) != 0,
                       [&](int key, int d, T value) { P::store_key(lds, key, d, value); });
    } else if constexpr (P::kDirectKeys) {
      wait_for_copies();
    } else {
      P::store_keys(lds, staged, thread);
    }
  }
  DEVICE void begin_values(int t, int thread) {
    if (!vector_v) return;
    if constexpr (P::kDirectValues) {
      P::copy_values(lds, values_from(t), thread);
    } else {
      P::load_values(staged, values_from(t), thread);
    }
  }
  DEVICE void finish_values(int t, int thread) {
    if (!vector_v) {
      copy_elements<P>(values_from(t), false,
                       [&](int key, int d, T value) { P::store_value(lds, key, d, value); });
    } else if constexpr (P::kDirectValues) {
      wait_for_copies();
    } else {
      P::store_values(lds, staged, thread);
    }
  }
};

// Blocks of K and V on their way to LDS beside the work-items, both of one while those of the one before are
// multiplied (P::kAhead).
template <class T, class P>
struct AttentionBlocks {
  static constexpr int kRows = P::kTeamThreads / P::kAcross;  // from pack to pack of a work-item

  const AttentionLayout& layout;
  typename P::Lds& lds;
  const T *keys, *values;  // this work-item's first packs of the next block
  int row, d;
  int left;  // keys of the next block on, from this work-item's first one on

  DEVICE AttentionBlocks(const AttentionArgs& args, const AttentionPlace<P>& place, typename P::Lds& to)
      : layout(args.layout),
        lds(to),
        row(thread_x() % P::kTeamThreads / P::kAcross),
        d(thread_x() % P::kAcross * P::kSize),
        left(layout.sizes.T - first_key(place)) {
    const T *k = args.k, *v = args.v;
    const int64_t first = first_key(place);
    keys = k + place.b * layout.k.b + place.head * layout.k.h + first * layout.k.row + d;
    values = v + place.b * layout.v.b + place.head * layout.v.h + first * layout.v.row + d;
  }
  DEVICE int first_key(const AttentionPlace<P>& place) const {
    return place.begin + P::team() * P::kKeys + row;
  }

  // Starts the copies of one of `parts` parts of the next block; keys beyond the last one are zeros.
  DEVICE void begin(int place, int part, int parts) {
    T* const to = P::key_at(lds, row, d, place);
    UNROLL for (int i = 0; i < P::kPacks; ++i) {
      if (i * parts / P::kPacks != part) continue;
      const bool inside = i * kRows < left;
      copy_to_lds(to + i * kRows * P::kRow, keys + static_cast<ptrdiff_t>(i * kRows) * layout.k.row,
                  inside && d < layout.sizes.D);
      copy_to_lds(to + P::kKeyCount + i * kRows * P::kRow,
                  values + static_cast<ptrdiff_t>(i * kRows) * layout.v.row, inside && d < layout.sizes.Dv);
    }
    if (part < parts - 1) return;
    keys += int64_t{P::kTeams * P::kKeys} * layout.k.row;
    values += int64_t{P::kTeams * P::kKeys} * layout.v.row;
    left -= P::kTeams * P::kKeys;
  }
};

// Q of all rows, where products.take_queries finds it.
template <class T, class P>
DEVICE void load_queries(const T* q, const AttentionPlace<P>& place, typename P::Lds& lds) {
  const AttentionLayout& layout = place.layout;
  const int32_t D = layout.sizes.D, flags = layout.scores.flags;
  NO_UNROLL for (int at = thread_x(); at < P::kBlockRows * P::kAcross; at += P::kThreads) {
    const int r = P::query_row(at), d = P::query_d(at);
    const bool inside = place.first_row + r < place.rows && d < D;
    const AttentionRow row = place.row_or_last(r);
    const T* p = q + place.b * layout.q.b + (place.first_head + row.head) * layout.q.h +
                 int64_t{row.query} * layout.q.row;
    if constexpr (P::kDirectQueries) {
      if ((flags & kAttentionVectorQ) != 0) {
        P::copy_query(lds, r, d, inside ? p + d : p, inside);
        continue;
      }
    }
    Pack<T> pack = {};
    if (inside) {
      if ((flags & kAttentionVectorQ) != 0) {
        pack = load_pack(p + d);
      } else {
        UNROLL for (int e = 0; e < P::kSize; ++e) {
          if (d + e < D) pack.v[e] = p[int64_t{d + e} * layout.q.column];
        }
      }
    }
    P::store_query(lds, r, d, pack);
  }
}

// What is needed after Q is loaded, for all work-items behind the next barrier.
template <class T, class P>
DEVICE void remember_extras(const AttentionArgs& args, const AttentionPlace<P>& place, typename P::Lds& lds) {
  const AttentionLayout& layout = args.layout;
  const AttentionScores& settings = layout.scores;
  if (thread_x() != 0) return;
  lds.extras = {AttentionExtra<T>::of(args.bias, layout.bias, place.b),
                AttentionExtra<uint8_t>::of(args.mask, layout.mask, place.b),
                settings.scale,
                settings.softcap,
                settings.inverse_softcap,
                settings.mask_value,
                args.o,
                args.partial,
                args.statistics,
                args.found,
                layout.o};
}

// From products of the keys from t on to scores.
template <class T, class P>
DEVICE void finish_scores(typename P::Scores& scores, const AttentionPlace<P>& place,
                          const AttentionExtras<T>& extras, int t) {
  const AttentionSizes& sizes = place.layout.sizes;
  const int32_t flags = place.layout.scores.flags;
  const int next = t + P::kKeys;
  UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
    const AttentionRow row = place.row_at(opaque(min_int(place.first_row + P::row(slot), place.rows - 1)));
    const int left = sizes.T - t;
    const float scale = extras.scale;
    P::each_of(scores, slot, [&](int, float s) { return s * scale; });
    if ((flags & kAttentionSoftcap) != 0) {
      const float cap = extras.softcap, inverse = extras.inverse_softcap;
      P::each_of(scores, slot, [&](int, float s) { return cap * tanh_fast(s * inverse); });
    }
    if ((flags & kAttentionBias) != 0) {
      const AttentionExtra<T>& extra = extras.bias;
      const T* bias = extra.at(place.first_head + row.head, row.query, t);
      const int last = opaque(left) - 1, column = extra.column;
      P::each_of(scores, slot, [&](int key, float s) {
        return s + to_float(bias[static_cast<uint32_t>(min_int(key, last) * column)]);
      });
    }
    if (place.causal && next > place.first_hidden) {
      const int seen = row.query + place.ahead + 1 - t;
      P::each_of(scores, slot, [&](int key, float s) { return key < seen ? s : -infinity(); });
    }
    if ((flags & kAttentionMask) != 0) {
      const AttentionExtra<uint8_t>& extra = extras.mask;
      const uint8_t* mask = extra.at(place.first_head + row.head, row.query, t);
      const int last = opaque(left) - 1, column = extra.column;
      const float masked = extras.mask_value;
      P::each_of(scores, slot, [&](int key, float s) {
        return mask[static_cast<uint32_t>(min_int(key, last) * column)] != 0 ? s : masked;
      });
    }
    if (next > sizes.T) {
      P::each_of(scores, slot, [&](int key, float s) { return key < left ? s : -infinity(); });
    }
  }
}

// The same where scores are the products, their scale in the exponent.
template <class P>
DEVICE void finish_plain_scores(typename P::Scores& scores, const AttentionPlace<P>& place, int t) {
  const int32_t T = place.layout.sizes.T;
  const int next = t + P::kKeys;
  if (!((place.causal && next > place.first_hidden) || next > T)) return;
  UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
    const AttentionRow row = place.row_or_last(P::row(slot));
    const int seen = min_int(T, place.causal ? row.query + place.ahead + 1 : T) - t;
    P::each_of(scores, slot, [&](int key, float s) { return key < seen ? s : -infinity(); });
  }
}

// Of the keys so far, for each row of a work-item.
template <class P>
struct AttentionSoftmax {
  float highest[P::kSlots], sum[P::kSlots];

  DEVICE AttentionSoftmax() {
    UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
      highest[slot] = -infinity();
      sum[slot] = 0;
    }
  }

  // Scores become probabilities, and what was computed with an older highest score is brought to the new one.
  template <class T>
  DEVICE void add(typename P::Scores& scores, P& products, float exponent) {
    float most[P::kSlots], factor[P::kSlots];
    UNROLL for (int slot = 0; slot < P::kSlots; ++slot) most[slot] = highest[slot];
    P::each(scores, [&](int slot, int, float s) {
      most[slot] = max_float(most[slot], s);
      return s;
    });
    UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
      most[slot] = P::row_max(most[slot]);
      // Nothing but -inf so far: subtract 0, since -inf - -inf would be NaN although finite scores may
      // follow.
      const float shift = most[slot] == -infinity() ? 0.0f : most[slot];
      factor[slot] = power<T>(highest[slot], shift, exponent);
      highest[slot] = most[slot];
      most[slot] = shift;
      sum[slot] *= factor[slot];
    }
    P::each(scores, [&](int slot, int, float s) {
      const float p = probability<T>(s, most[slot], exponent);
      sum[slot] += p;
      return p;
    });
    products.each_output([&](int slot, int, float o) { return o * factor[slot]; });
  }

  // The same, with a highest score that is kept while no score of the wave is 2^kSlack times above it: the factor
  // cancels, and probabilities in float16 stay below 2^(10 + kSlack) (probability()).
  template <class T>
  DEVICE void add_lazily(typename P::Scores& scores, P& products, float exponent) {
    constexpr float kSlack = 5.0f;
    float most[P::kSlots], factor[P::kSlots];
    UNROLL for (int slot = 0; slot < P::kSlots; ++slot) most[slot] = highest[slot];
    P::each(scores, [&](int slot, int, float s) {
      most[slot] = max_float(most[slot], s);
      return s;
    });
    bool higher = false;
    UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
      most[slot] = P::row_max(most[slot]);
      higher = higher || (most[slot] - highest[slot]) * exponent > kSlack;
    }
    if (P::any(higher)) {
      UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
        const float shift = most[slot] == -infinity() ? 0.0f : most[slot];
        factor[slot] = power<T>(highest[slot], shift, exponent);
        highest[slot] = most[slot];
        sum[slot] *= factor[slot];
      }
      products.each_output([&](int slot, int, float o) { return o * factor[slot]; });
    }
    UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
      most[slot] = highest[slot] == -infinity() ? 0.0f : highest[slot];
    }
    P::each(scores, [&](int slot, int, float s) {
      const float p = probability<T>(s, most[slot], exponent);
      sum[slot] += p;
      return p;
    });
  }
};

// What fused_attention_combine_* merges.
template <class T, class P>
DEVICE void store_split(const AttentionPlace<P>& place, const AttentionExtras<T>& extras, const P& products,
                        const AttentionSoftmax<P>& softmax) {
  float* partial = extras.partial + static_cast<size_t>(place.id) * (P::kBlockRows * P::kHead);
  float* statistics = extras.statistics + static_cast<size_t>(place.id) * (P::kBlockRows * 2);
  UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
    const int r = P::row(slot);
    if (!P::keeps(slot) || place.first_row + r >= place.rows) continue;
    statistics[2 * r] = softmax.highest[slot];
    statistics[2 * r + 1] = softmax.sum[slot];
    products.each_output_of(slot, [&](int column, float o) { partial[r * P::kHead + column] = o; });
  }
}

// Put together in LDS, so that it leaves in whole vectors.
template <class T, class P>
DEVICE void store_output(const AttentionPlace<P>& place, typename P::Lds& lds, const P& products,
                         const AttentionSoftmax<P>& softmax) {
  const AttentionSizes& sizes = place.layout.sizes;
  const int32_t flags = place.layout.scores.flags;
  barrier();
  T* const output = P::output_at(lds);
  UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
    if (!P::keeps(slot)) continue;
    const int r = P::row(slot);
    lds.sum[r] = softmax.sum[slot];
    const float inverse = 1.0f / softmax.sum[slot];
    products.each_few_of(slot, [&](int column, const auto& few) {
      constexpr int kCount = sizeof few.v / sizeof few.v[0];
      Few<T, kCount> to;
      UNROLL for (int e = 0; e < kCount; ++e) to.v[e] = from_float<T>(few.v[e] * inverse);
      *reinterpret_cast<Few<T, kCount>*>(output + r * P::kOutputStride + column) = to;
    });
  }
  if ((flags & kAttentionFound) != 0) {
    const int parts = value_parts(sizes.T);
    const int32_t* found =
        lds.extras.found + static_cast<size_t>(place.all_heads) * static_cast<size_t>(parts * sizes.Dv);
    for (int d = thread_x(); d < sizes.Dv; d += P::kThreads) {
      lds.last[d] = last_found(found, parts, sizes.Dv, d);
    }
  }
  barrier();
  NO_UNROLL for (int at = thread_x(); at < P::kBlockRows * P::kAcross; at += P::kThreads) {
    const int r = at / P::kAcross, d = at % P::kAcross * P::kSize;
    if (place.first_row + r >= place.rows || d >= sizes.Dv) continue;
    Pack<T> pack = load_pack(output + r * P::kOutputStride + d);
    const AttentionRow row = place.row_at(place.first_row + r);
    const int from = first_unread(lds.sum[r], row.query + place.ahead + 1, sizes.T, flags);
    if (from == 0) pack = {};
    if ((flags & kAttentionFound) != 0) {
      UNROLL for (int e = 0; e < P::kSize; ++e) {
        if (d + e < sizes.Dv && lds.last[d + e] >= from) {
          pack.v[e] = from_float<T>(not_a_number());
        }
      }
    }
    const AttentionStrides& to = lds.extras.strides;
    T* o = lds.extras.o + place.b * to.b + (place.first_head + row.head) * to.h +
           int64_t{row.query} * to.row + int64_t{d} * to.column;
    if ((flags & kAttentionVectorO) != 0) {
      store_pack(o, pack);
    } else {
      UNROLL for (int e = 0; e < P::kSize; ++e) {
        if (d + e < sizes.Dv) o[int64_t{e} * to.column] = pack.v[e];
      }
    }
  }
}

// kPlain: scores are scale Q K^T, causal or not, and scale > 0.
template <class T, class P, bool kPlain>
DEVICE void multiply_in_turn(const AttentionArgs& args, const AttentionPlace<P>& place, typename P::Lds& lds,
                             P& products, AttentionSoftmax<P>& softmax) {
  const AttentionLayout& layout = args.layout;
  AttentionKeys<T, P> keys(args, place, lds);

  // All copies at once: the first block of K, then Q.
  if (place.begin < place.end && (!P::kDirectKeys || P::kDirectQueries)) {
    keys.begin_keys(place.begin, thread_x());
  }
  load_queries<T, P>(args.q, place, lds);
  remember_extras<T, P>(args, place, lds);
  if constexpr (P::kDirectQueries) wait_for_copies();
  barrier();
  products.take_queries(lds);
  barrier();
  if (place.begin < place.end) {
    if constexpr (P::kDirectKeys && !P::kDirectQueries) keys.begin_keys(place.begin, thread_x());
    keys.finish_keys(place.begin, thread_x());
  }

  for (int t = place.begin; t < place.end; t += P::kKeys) {
    const int thread = opaque(thread_x());
    const int next = t + P::kKeys;
    barrier();
    keys.begin_values(t, thread);
    typename P::Scores scores;
    products.multiply_keys(lds, scores, layout.sizes.D);
    if constexpr (kPlain) {
      finish_plain_scores<P>(scores, place, t);
    } else {
      finish_scores<T, P>(scores, place, lds.extras, t);
    }
    softmax.template add<T>(scores, products, layout.scores.exponent);
    keys.finish_values(t, thread);
    barrier();
    if (next < place.end) keys.begin_keys(next, thread);
    products.multiply_values(lds, scores);
    if (next < place.end) keys.finish_keys(next, thread);
  }
}

// Between the work-items that share blocks of keys.
template <class P>
DEVICE void team_barrier() {
  if constexpr (P::kTeams > 1) {
    barrier_of_part(P::team(), P::kTeamThreads);
  } else {
    barrier();
  }
}

// The same where memory reaches LDS without passing through registers and rows of K and V are whole vectors: they have
// two places there, and a block takes one barrier.
template <class T, class P>
DEVICE void multiply_ahead(const AttentionArgs& args, const AttentionPlace<P>& place, typename P::Lds& lds,
                           P& products, AttentionSoftmax<P>& softmax) {
  AttentionBlocks<T, P> blocks(args, place, lds);
  load_queries<T, P>(args.q, place, lds);
  blocks.begin(2 * P::team(), 0, 1);
  remember_extras<T, P>(args, place, lds);
  wait_for_copies();
  barrier();
  products.take_queries(lds);
  // A wave without rows leaves the units to the others.
  const bool has_rows = place.first_row + P::first_row_of_wave() < place.rows;

  int at = 2 * P::team();
  NO_UNROLL for (int first = place.begin; first < place.end; first += P::kTeams * P::kKeys) {
    const int t = first + P::team() * P::kKeys;
    if (first != place.begin) {
      wait_for_copies();
      team_barrier<P>();  // all have this block, and are done with the one before
    }
    if (has_rows && t < place.end) {
      typename P::Scores scores;
      products.multiply_keys(lds, scores, at, [&](int d) { blocks.begin(at ^ 1, d, P::kD); });
      finish_plain_scores<P>(scores, place, t);
      softmax.template add_lazily<T>(scores, products, args.layout.scores.exponent);
      products.multiply_values(lds, scores, at);
    } else {
      blocks.begin(at ^ 1, 0, 1);
    }
    at ^= 1;
  }
  wait_for_copies();  // of the block beyond the last one: what follows may use the same LDS
}

// Each of two teams gets what the other one has summed up of the rows that it keeps.
template <class P>
DEVICE void join_teams(typename P::Lds& lds, P& products, AttentionSoftmax<P>& softmax, float exponent) {
  static_assert(P::kTeams == 2, "one other");
  const int team = P::team();
  barrier();  // all are done with K and V
  products.hand_output(lds);
  UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
    if (P::keeps(slot)) continue;
    const int at = P::kHandedSums + slot % P::kKept * 2;
    *P::handed_at(lds, team, at) = softmax.highest[slot];
    *P::handed_at(lds, team, at + 1) = softmax.sum[slot];
  }
  barrier();
  float mine[P::kSlots], theirs[P::kSlots];
  UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
    if (!P::keeps(slot)) continue;
    const int at = P::kHandedSums + slot % P::kKept * 2;
    const float other = *P::handed_at(lds, 1 - team, at);
    const float highest = max_float(softmax.highest[slot], other);
    const float shift = highest == -infinity() ? 0.0f : highest;
    mine[slot] = exp2_fast((softmax.highest[slot] - shift) * exponent);
    theirs[slot] = exp2_fast((other - shift) * exponent);
    softmax.highest[slot] = highest;
    softmax.sum[slot] = fused_multiply_add(*P::handed_at(lds, 1 - team, at + 1), theirs[slot],
                                           softmax.sum[slot] * mine[slot]);
  }
  products.take_output(lds, mine, theirs);
}

template <class T, class P, bool kPlain>
DEVICE void fused_attention(const AttentionArgs& args, typename P::Lds& lds) {
  const AttentionPlace<P> place(args.layout);
  P products;
  AttentionSoftmax<P> softmax;
  if constexpr (P::kAhead) {
    static_assert(kPlain, "no registers for what stands between the products");
    multiply_ahead<T, P>(args, place, lds, products, softmax);
  } else {
    multiply_in_turn<T, P, kPlain>(args, place, lds, products, softmax);
  }
  UNROLL for (int slot = 0; slot < P::kSlots; ++slot) { softmax.sum[slot] = P::row_sum(softmax.sum[slot]); }
  if constexpr (P::kTeams > 1) join_teams(lds, products, softmax, args.layout.scores.exponent);
  if ((args.layout.scores.flags & kAttentionSplit) != 0) {
    store_split<T, P>(place, lds.extras, products, softmax);
  } else {
    store_output<T, P>(place, lds, products, softmax);
  }
}

template <class T>
DEVICE void attention_combine(const AttentionCombineArgs& args) {
  const float *partial = args.partial, *statistics = args.statistics;
  const int32_t* found = args.found;
  T* o = args.o;
  const AttentionStrides& strides = args.strides;
  const AttentionSizes& sizes = args.sizes;
  const Divisor &columns = args.columns, &rows = args.rows, &queries = args.queries, &heads = args.heads;
  const int32_t splits = args.splits, block_rows = args.block_rows, head_size = args.head_size;
  const uint32_t i = work_item(kAttentionThreads);
  if (i >= args.total) return;
  const uint32_t at = divide(i, columns);
  const auto column = static_cast<int>(i - at * columns.d);
  const uint32_t all_heads = divide(at, rows), r = at - all_heads * rows.d;
  const uint32_t block = r / static_cast<uint32_t>(block_rows),
                 place = r - block * static_cast<uint32_t>(block_rows);
  const uint32_t row_blocks =
      (rows.d + static_cast<uint32_t>(block_rows) - 1) / static_cast<uint32_t>(block_rows);
  const size_t first = static_cast<size_t>(all_heads * row_blocks + block) * static_cast<size_t>(splits);
  partial += (first * static_cast<size_t>(block_rows) + place) * static_cast<size_t>(head_size) +
             static_cast<size_t>(column);
  statistics += (first * static_cast<size_t>(block_rows) + place) * 2;
  float highest = -infinity();
  for (int s = 0; s < splits; ++s) highest = max_float(highest, statistics[2 * s * block_rows]);
  const float shift = highest == -infinity() ? 0.0f : highest;
  float sum = 0, value = 0;
  for (int s = 0; s < splits; ++s) {
    const float factor = exp2_fast((statistics[2 * s * block_rows] - shift) * args.exponent);
    sum += statistics[2 * s * block_rows + 1] * factor;
    value += partial[static_cast<size_t>(s) * static_cast<size_t>(block_rows * head_size)] * factor;
  }
  const uint32_t batch = divide(all_heads, heads), group_head = divide(r, queries);
  const uint32_t query = r - group_head * queries.d;
  const auto head = (all_heads - batch * heads.d) * divide(rows.d, queries) + group_head;
  const int from = first_unread(sum, static_cast<int>(query) + sizes.T - sizes.S + 1, sizes.T, args.flags);
  float y = from == 0 ? 0.0f : value / sum;
  if (found != nullptr) {
    const int parts = value_parts(sizes.T);
    found += static_cast<size_t>(all_heads) * static_cast<size_t>(parts) * columns.d;
    if (last_found(found, parts, sizes.Dv, column) >= from) y = not_a_number();
  }
  o[batch * strides.b + head * strides.h + int64_t{query} * strides.row + int64_t{column} * strides.column] =
      from_float<T>(y);
}

// Bound by memory: reads V once.
template <class T>
DEVICE void attention_values(const AttentionValuesArgs& args,
                             int32_t (&lds)[kAttentionThreads][Pack<T>::kSize]) {
  const T* v = args.v;
  int32_t* found = args.found;
  const AttentionStrides& strides = args.strides;
  const int32_t Dv = args.Dv, across = args.across;
  const Divisor &parts = args.parts, &heads = args.heads;
  constexpr int kSize = Pack<T>::kSize;
  const auto id = static_cast<uint32_t>(block_x());
  const uint32_t all_heads = divide(id, parts), part = id - all_heads * parts.d;
  const uint32_t batch = divide(all_heads, heads);
  const int d = (thread_x() & (across - 1)) * kSize, first = thread_x() / across,
            step = kAttentionThreads / across;
  v += batch * strides.b + (all_heads - batch * heads.d) * strides.h + int64_t{d} * strides.column;
  const int begin = static_cast<int>(part) * kAttentionValueKeys;
  const int end = min_int(begin + kAttentionValueKeys, args.keys);
  int last[kSize];
  UNROLL for (int e = 0; e < kSize; ++e) last[e] = -1;
  if (d < Dv && args.vectors != 0) {
    for (int t = begin + first; t < end; t += step) {
      const Pack<T> pack = load_pack(v + int64_t{t} * strides.row);
      UNROLL for (int e = 0; e < kSize; ++e) last[e] = is_finite(pack.v[e]) ? last[e] : t;
    }
  } else if (d < Dv) {
    for (int t = begin + first; t < end; t += step) {
      UNROLL for (int e = 0; e < kSize; ++e) {
        const int at = min_int(d + e, Dv - 1) - d;
        const T x = v[int64_t{t} * strides.row + int64_t{at} * strides.column];
        last[e] = is_finite(x) ? last[e] : t;
      }
    }
  }
  UNROLL for (int e = 0; e < kSize; ++e) lds[thread_x()][e] = last[e];
  barrier();
  if (thread_x() >= Dv) return;
  int most = -1;
  for (int i = 0; i < step; ++i) {
    most = max_int(most, lds[i * across + thread_x() / kSize][thread_x() % kSize]);
  }
  found[static_cast<size_t>(id) * static_cast<size_t>(Dv) + static_cast<size_t>(thread_x())] = most;
}

template <class T>
struct AttentionFound {
  int32_t last[kAttentionThreads][Pack<T>::kSize];
};

// kUsed: as of MatrixAttention.
template <class T, int kHead, int kUsed, bool kPlain, AttentionRows kRows>
struct AttentionOf {
  static constexpr bool kMatrix = sizeof(T) == 2 ? kMatrixF16 : kMatrixF32;
  static constexpr bool kAhead = kMatrix && kPlain && kCopiesToLds;
  static constexpr AttentionShape kShape =
      attention_shape(kMatrix, kWave, kLdsBytes, kHead, sizeof(T), kPlain, kRows);
};
// Only the one that the target has is compiled.
template <class T, int kHead, int kUsed, class Of, bool kMatrix>
struct AttentionProducts {
  static constexpr AttentionShape kShape = Of::kShape;
  struct Type : MatrixAttention<T, kHead, kUsed, kShape.waves, kShape.rows, kShape.keys,
                                kShape.queries_in_lds, Of::kAhead, kShape.teams> {
    static constexpr int kSharing = kShape.sharing;
    static constexpr int kShapeLds = kShape.lds_bytes(true, Tile<T>::kLoadsRows, Of::kAhead, sizeof(T));
  };
};
template <class T, int kHead, int kUsed, class Of>
struct AttentionProducts<T, kHead, kUsed, Of, false> {
  static constexpr AttentionShape kShape = Of::kShape;
  struct Type : VectorAttention<T, kHead, kShape.waves, kShape.rows, kShape.keys, kShape.parts> {
    static constexpr int kSharing = kShape.sharing;
    static constexpr int kShapeLds = kShape.lds_bytes(false, false, false, sizeof(T));
  };
};
template <class T, int kHead, int kUsed, bool kPlain, AttentionRows kRows,
          class Of = AttentionOf<T, kHead, kUsed, kPlain, kRows>>
using Products = typename AttentionProducts<T, kHead, kUsed, Of, Of::kMatrix>::Type;

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define ATTENTION_KERNEL(T, kHead, kPlain, kRows, name) \
  ATTENTION_KERNEL_OF(T, kHead, kHead, kPlain, kRows, name)
#define ATTENTION_KERNEL_OF(T, kHead, kUsed, kPlain, kRows, name)                                          \
  KERNEL_SHARING(name, (Products<T, kHead, kUsed, kPlain, kRows>::kThreads),                               \
                 (Products<T, kHead, kUsed, kPlain, kRows>::kSharing), AttentionArgs, q, k, v, bias, mask, \
                 o, partial, statistics, found) {                                                          \
    using P = Products<T, kHead, kUsed, kPlain, kRows>;                                                    \
    static_assert(sizeof(typename P::Lds) == P::kShapeLds, "what the plan asks for");                      \
    LARGE_SHARED(typename P::Lds, lds);                                                                    \
    fused_attention<T, P, kPlain>(args, lds);                                                              \
  }

#define ATTENTION_KERNELS(T, suffix)                                                                     \
  ATTENTION_KERNEL(T, 64, true, AttentionRows::kFew, fused_attention_plain_64_##suffix)                  \
  ATTENTION_KERNEL(T, 128, true, AttentionRows::kFew, fused_attention_plain_128_##suffix)                \
  ATTENTION_KERNEL(T, 256, true, AttentionRows::kFew, fused_attention_plain_256_##suffix)                \
  ATTENTION_KERNEL(T, 64, false, AttentionRows::kFew, fused_attention_64_##suffix)                       \
  ATTENTION_KERNEL(T, 128, false, AttentionRows::kFew, fused_attention_128_##suffix)                     \
  ATTENTION_KERNEL(T, 256, false, AttentionRows::kFew, fused_attention_256_##suffix)                     \
  KERNEL(fused_attention_combine_##suffix, kAttentionThreads, AttentionCombineArgs, partial, statistics, \
         found, o) {                                                                                     \
    attention_combine<T>(args);                                                                          \
  }                                                                                                      \
  KERNEL(fused_attention_values_##suffix, kAttentionThreads, AttentionValuesArgs, v, found) {            \
    SHARED(AttentionFound<T>, lds);                                                                      \
    attention_values<T>(args, lds.last);                                                                 \
  }

ATTENTION_KERNELS(float, f32)
ATTENTION_KERNELS(half_t, f16)
#if !GRAPHOPT_MATRIX_F32
ATTENTION_KERNEL(float, 64, true, AttentionRows::kMany, fused_attention_plain_many_64_f32)
ATTENTION_KERNEL(float, 128, true, AttentionRows::kMany, fused_attention_plain_many_128_f32)
ATTENTION_KERNEL(float, 64, false, AttentionRows::kMany, fused_attention_many_64_f32)
ATTENTION_KERNEL(float, 128, false, AttentionRows::kMany, fused_attention_many_128_f32)
#endif
#if GRAPHOPT_ON_NVIDIA
ATTENTION_KERNEL(half_t, 64, true, AttentionRows::kMany, fused_attention_plain_many_64_f16)
ATTENTION_KERNEL_OF(half_t, 64, 48, true, AttentionRows::kMany, fused_attention_plain_many_48_f16)
ATTENTION_KERNEL_OF(half_t, 128, 96, true, AttentionRows::kFew, fused_attention_plain_96_f16)
ATTENTION_KERNEL_OF(half_t, 128, 96, true, AttentionRows::kTeams, fused_attention_plain_teams_96_f16)
ATTENTION_KERNEL(half_t, 64, true, AttentionRows::kTeams, fused_attention_plain_teams_64_f16)
ATTENTION_KERNEL(half_t, 128, true, AttentionRows::kTeams, fused_attention_plain_teams_128_f16)
#endif
