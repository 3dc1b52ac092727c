// The two GEMMs of fused_attention_* on the matrix units, and the layouts of Q, K, V, scores and sums in LDS and
// registers. vector_form.h has the same for the vector unit.
#pragma once

#include "gemm/pipelines/instruction.h"
#include "operators/attention/attention/operands.h"

namespace graphopt::hip {

// kUsed: number of head elements to multiply, a multiple of 16; the rest of kHead is zero. kDoubleBuffered: K and V are
// double-buffered in LDS.
template <class T, int kHead_, int kUsed, int kWaves, int kWaveRows, int kKeys_, bool kQueriesInLds,
          bool kDoubleBuffered_, int kWaveGroups_, int kRowParts_>
struct MatrixAttention {
  using Instruction = hip::Instruction<T>;
  static constexpr int kHead = kHead_, kKeys = kKeys_, kWaveGroups = kWaveGroups_;
  static constexpr int kGroupThreads = kWaves * kWave, kThreads = kWaveGroups * kGroupThreads;
  static constexpr int kBlockRows = kWaves * kWaveRows;
  static constexpr int kRowParts = kRowParts_, kPartRows = kBlockRows / kRowParts;  // shape.h
  static constexpr int kM = kWaveRows / 16, kN = kKeys / 16, kD = kUsed / 16;
  static constexpr int kSlots = kM * Instruction::kRows;  // a work-item has one slot for each of its rows
  static constexpr int kSize = Pack<T>::kSize;
  static constexpr int kAcross = kHead / kSize;
  static constexpr int kPacks = kKeys * kAcross / kGroupThreads;
  static_assert(kPacks * kGroupThreads == kKeys * kAcross && kGroupThreads % kAcross == 0,
                "entire packs and rows");
  // Number of adjacent keys that a work-item loads if V is transposed on the way to LDS.
  static constexpr int kTogether = kPacks % 4 == 0 ? 4 : kPacks % 2 == 0 ? 2 : 1;

  // The padding places adjacent rows in different banks.
  static constexpr int kPad = kSize, kRow = kHead + kPad;
  static constexpr int kQueryCount = kPartRows * (kHead + kPad);
  static constexpr int kKeyCount = kKeys * (kHead + kPad);
  static constexpr int kValueCount = Instruction::kLoadsRows ? kKeyCount : kHead * (kKeys + kPad);
  static constexpr bool kDoubleBuffered = kDoubleBuffered_;
  // Whether Q, K and V are copied to LDS directly, not through registers.
  static constexpr bool kDirectQueries = kDoubleBuffered;
  static constexpr bool kDirectKeys = kCopiesToLds && Instruction::kLoadsRows, kDirectValues = kDirectKeys;
  // Whether the highest score of a row is only updated if it grows much (AttentionSoftmax::add_lazily).
  static constexpr bool kLazily = kWave == 64 && sizeof(T) == 2;
  static_assert(kWaveGroups == 1 || kDoubleBuffered, "each wave group has separate buffers");
  static constexpr int kCount = kDoubleBuffered ? kQueryCount + 2 * kWaveGroups * (kKeyCount + kValueCount)
                                : kQueriesInLds ? kQueryCount + kKeyCount + kValueCount
                                : kQueryCount > kKeyCount + kValueCount ? kQueryCount
                                                                        : kKeyCount + kValueCount;
  struct Lds {
    alignas(16) T v[kCount];
    float sum[kBlockRows];
    int32_t last[kHead];  // for each column of V, the last key with a non-finite value
    AttentionExtras<T> extras;
  };
  // The output is assembled in this LDS.
  static constexpr int kOutputStride = kHead + kPad;
  DEVICE static T* output_at(Lds& lds) { return lds.v; }
  // Whether other waves may still use this LDS. Since the barrier before the last multiplication by V, no wave
  // reads K, or Q if it is in LDS.
  static constexpr bool kOutputOverlaps =
      kDoubleBuffered || kRowParts > 1 || (!kQueriesInLds && kPartRows * kOutputStride > kKeyCount);

  struct Staged {
    Pack<T> pack[kDirectKeys ? 1 : kPacks];
  };
  struct Scores {
    typename Instruction::Sum tile[kM][kN];
  };

  typename Instruction::Left queries[kQueriesInLds ? 1 : kM][kQueriesInLds ? 1 : kD];
  typename Instruction::Sum output[kM][kD] = {};

  DEVICE static T* query_at(Lds& lds, int row, int d) { return lds.v + row * (kHead + kPad) + d; }
  // With kDoubleBuffered each wave group has two buffers; otherwise there is one.
  DEVICE static T* key_at(Lds& lds, int key, int d, int buffer = 0) {
    return lds.v + (kQueriesInLds || kDoubleBuffered ? kQueryCount : 0) + buffer * (kKeyCount + kValueCount) +
           key * (kHead + kPad) + d;
  }
  // V has the same layout in LDS as in memory if the instructions can load tiles from it (kLoadsRows). Otherwise V is
  // transposed, and packs of keys are permuted: work-items that write different rows then access different banks. Each
  // coordinate is split into tile and position in the tile: tile offsets are then immediate operands of the load.
  DEVICE static T* value_at(Lds& lds, int key_tile, int key, int d_tile, int d, int buffer = 0) {
    T* values = key_at(lds, 0, 0, buffer) + kKeyCount;
    if constexpr (Instruction::kLoadsRows) {
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

  // Returns the index of the wave group.
  DEVICE static int wave_group() { return kWaveGroups == 1 ? 0 : wave_id() / kWaves; }
  DEVICE static int first_row_of_wave() {
    return (kWaveGroups == 1 ? wave_id() : wave_id() % kWaves) * kWaveRows;
  }
  // Returns the row of the work-group for a slot.
  DEVICE static int row(int slot) {
    return first_row_of_wave() + slot / Instruction::kRows * 16 + Instruction::row(slot % Instruction::kRows);
  }
  DEVICE static float row_max(float x) { return Instruction::row_max(x); }
  DEVICE static float row_sum(float x) { return Instruction::row_sum(x); }

  // value = f(slot, key, value)
  template <class F>
  DEVICE static void each(Scores& scores, const F& f) {
    UNROLL for (int m = 0; m < kM; ++m) {
      UNROLL for (int n = 0; n < kN; ++n) {
        UNROLL for (int i = 0; i < Instruction::kSums; ++i) {
          scores.tile[m][n].v[i] = f(m * Instruction::kRows + Instruction::row_of(i),
                                     n * 16 + Instruction::column(i), scores.tile[m][n].v[i]);
        }
      }
    }
  }
  // The same for one slot: value = f(key, value)
  template <class F>
  DEVICE static void each_of(Scores& scores, int slot, const F& f) {
    // Without opaque(), clang for AMD would keep the key of each score in a register for all blocks.
    const int first = kCopiesToLds ? 0 : opaque(Instruction::column(0)) - Instruction::column(0);
    UNROLL for (int n = 0; n < kN; ++n) {
      UNROLL for (int i = 0; i < Instruction::kSums; ++i) {
        if (Instruction::row_of(i) != slot % Instruction::kRows) continue;
        auto& tile = scores.tile[slot / Instruction::kRows][n].v;
        tile[i] = f(first + n * 16 + Instruction::column(i), tile[i]);
      }
      keep_order();
    }
  }
  // each_group calls f(first key) for each group of kKeysTogether adjacent keys of a slot, in the order of each_of.
  static constexpr int kKeysTogether = Instruction::kContiguous;
  static constexpr int kKeyGroups = kN * Instruction::kSums / Instruction::kRows / kKeysTogether;
  static constexpr bool kMaskAhead = kKeysTogether > 1;  // otherwise there are too few registers
  static_assert(kAttentionKeysTogether % kKeysTogether == 0, "aligned groups");
  template <class F>
  DEVICE static void each_group(int slot, const F& f) {
    const int first = kCopiesToLds ? 0 : opaque(Instruction::column(0)) - Instruction::column(0);
    UNROLL for (int n = 0; n < kN; ++n) {
      UNROLL for (int i = 0; i < Instruction::kSums; i += kKeysTogether) {
        if (Instruction::row_of(i) == slot % Instruction::kRows) f(first + n * 16 + Instruction::column(i));
      }
    }
  }
  // value = f(slot, column, value)
  template <class F>
  DEVICE void each_output(const F& f) {
    UNROLL for (int m = 0; m < kM; ++m) {
      UNROLL for (int d = 0; d < kD; ++d) {
        UNROLL for (int i = 0; i < Instruction::kSums; ++i) {
          output[m][d].v[i] = f(m * Instruction::kRows + Instruction::row_of(i),
                                d * 16 + Instruction::column(i), output[m][d].v[i]);
        }
      }
    }
  }

  // Each of two wave groups keeps half of the rows. For the other half, a work-item sends its sums of p V, its highest
  // scores and its sums of p. The receiver is the work-item of the other group with the same rows. The exchange uses
  // the LDS after Q. One access moves four elements, and adjacent work-items access different banks.
  static constexpr int kKeptM = kM / kWaveGroups, kKept = kKeptM * Instruction::kRows;
  static constexpr int kExchangedOutputs = kKeptM * kD * Instruction::kSums,
                       kExchanged = kExchangedOutputs + 2 * kKept;
  DEVICE static bool keeps_tile(int m) { return kWaveGroups == 1 || m / kKeptM == wave_group(); }
  DEVICE static bool keeps(int slot) { return keeps_tile(slot / Instruction::kRows); }
  DEVICE static float* exchange_at(Lds& lds, int sender, int i) {
    static_assert(
        kM % kWaveGroups == 0 && kExchanged % 4 == 0 && Instruction::kSums % 4 == 0 &&
            kWaveGroups * kExchanged * kGroupThreads * sizeof(float) <= (kCount - kQueryCount) * sizeof(T),
        "fits into the buffers of keys and values");
    float* const first = reinterpret_cast<float*>(key_at(lds, 0, 0)) + sender * (kExchanged * kGroupThreads);
    return first + i / 4 * (kGroupThreads * 4) + thread_x() % kGroupThreads * 4 + i % 4;
  }
  // Calls f(m, d, i, which) for each group of four sums of some tiles: those that this work-item keeps (`kept`), or
  // those that it sends to the other wave group. `which` is the index of the group's first sum among the sent sums.
  template <class F>
  DEVICE static void each_four(bool kept, const F& f) {
    UNROLL for (int m = 0; m < kM; ++m) {
      if (keeps_tile(m) != kept) continue;
      UNROLL for (int d = 0; d < kD; ++d) {
        UNROLL for (int i = 0; i < Instruction::kSums; i += 4)
            f(m, d, i, (m % kKeptM * kD + d) * Instruction::kSums + i);
      }
    }
  }
  DEVICE void send_output(Lds& lds) const {
    each_four(false, [&](int m, int d, int i, int which) {
      Pack<float> four;
      UNROLL for (int e = 0; e < 4; ++e) four.v[e] = output[m][d].v[i + e];
      store_pack(exchange_at(lds, wave_group(), which), four);
    });
  }
  // output = output mine[slot] + received theirs[slot]
  template <class Slots>
  DEVICE void receive_output(Lds& lds, const Slots& mine, const Slots& theirs) {
    each_four(true, [&](int m, int d, int i, int which) {
      const Pack<float> four = load_pack(exchange_at(lds, 1 - wave_group(), which));
      UNROLL for (int e = 0; e < 4; ++e) {
        const int slot = m * Instruction::kRows + Instruction::row_of(i + e);
        float& sum = output[m][d].v[i + e];
        sum = fused_multiply_add(four.v[e], theirs[slot], sum * mine[slot]);
      }
    });
  }

  // Calls f(column, value) for the elements of one slot.
  template <class F>
  DEVICE void each_output_of(int slot, const F& f) const {
    UNROLL for (int d = 0; d < kD; ++d) {
      UNROLL for (int i = 0; i < Instruction::kSums; ++i) {
        if (Instruction::row_of(i) != slot % Instruction::kRows) continue;
        f(d * 16 + Instruction::column(i), output[slot / Instruction::kRows][d].v[i]);
      }
    }
  }
  // Calls f(column, values) for groups of adjacent elements of one slot.
  template <class F>
  DEVICE void each_few_of(int slot, const F& f) const {
    constexpr int kCount = Instruction::kContiguous;
    UNROLL for (int d = 0; d < kD; ++d) {
      UNROLL for (int i = 0; i < Instruction::kSums; i += kCount) {
        if (Instruction::row_of(i) != slot % Instruction::kRows) continue;
        Few<float, kCount> few;
        UNROLL for (int e = 0; e < kCount; ++e) few.v[e] = output[slot / Instruction::kRows][d].v[i + e];
        f(d * 16 + Instruction::column(i), few);
      }
    }
  }

  // Row and first element of the at-th pack of Q to store.
  DEVICE static int query_row(int at) { return at / kAcross; }
  DEVICE static int query_d(int at) { return at % kAcross * kSize; }
  DEVICE static void store_query(Lds& lds, int r, int d, const Pack<T>& pack) {
    store_pack(query_at(lds, r, d), pack);
  }
  DEVICE static int in_part(int row) { return kRowParts == 1 ? row : row % kPartRows; }
  DEVICE static int row_in_part(int slot) { return in_part(row(slot)); }
  // Whether the rows of this wave are in a part of the work-group's rows.
  DEVICE static bool has_rows_in(int part) {
    return kRowParts == 1 ||
           (kWaveGroups == 1 ? wave_id() : wave_id() % kWaves) / (kWaves / kRowParts) == part;
  }
  // Whether the waves keep Q in registers, which they load from LDS once.
  static constexpr bool kTakesQueries = !kQueriesInLds;
  // Called between two barriers. After the first barrier, all queries of a part are in LDS. After the second one, they
  // may be overwritten by the next part or, unless kQueriesInLds, by K and V.
  DEVICE void take_queries(Lds& lds, int part) {
    if constexpr (kTakesQueries) {
      if (!has_rows_in(part)) return;
      UNROLL for (int m = 0; m < kM; ++m) {
        UNROLL for (int d = 0; d < kD; ++d) queries[m][d] = load_query(lds, m, d);
      }
    }
  }
  DEVICE static typename Instruction::Left load_query(Lds& lds, int m, int d) {
    return Instruction::load_left(
        [&](int r, int k) { return query_at(lds, in_part(first_row_of_wave()) + m * 16 + r, d * 16 + k); });
  }

  // Return the first row and element that a work-item loads. It loads kTogether adjacent rows, and then rows with a
  // stride of kTogether * kThreads / kAcross. Divisions are unsigned, because the compiler does not know that `thread`
  // is not negative.
  template <int kTogether>
  DEVICE static int staged_key(int thread) {
    return static_cast<int>(static_cast<uint32_t>(thread) / kAcross * kTogether);
  }
  DEVICE static int staged_d(int thread) {
    return static_cast<int>(static_cast<uint32_t>(thread) % kAcross * kSize);
  }
  // Positions outside of the block are clamped: selecting zeros instead would wait for the load here.
  template <int kTogether>
  DEVICE static void load(Staged& s, const Block<T>& block, int thread) {
    const int d = min_int(staged_d(thread), block.width - kSize);
    const auto row = static_cast<uint32_t>(block.row);
    const auto last = static_cast<uint32_t>((min_int(block.count, kKeys) - 1) * block.row + d);
    auto offset = static_cast<uint32_t>(staged_key<kTogether>(thread) * block.row + d);
    UNROLL for (int i = 0; i < kPacks; i += kTogether) {
      UNROLL for (int j = 0; j < kTogether; ++j) {
        const uint32_t at = offset + static_cast<uint32_t>(j) * row;
        s.pack[i + j] = load_pack(block.data + (at < last ? at : last));
      }
      offset += static_cast<uint32_t>(kThreads / kAcross * kTogether) * row;
    }
  }
  static constexpr int kValuesTogether = Instruction::kLoadsRows ? 1 : kTogether;
  // Keys outside of the block need no zeros, because their scores are replaced by -inf.
  DEVICE static void load_keys(Staged& s, const Block<T>& block, int thread) { load<1>(s, block, thread); }
  DEVICE static void store_keys(Lds& lds, const Staged& s, const Block<T>& block, int thread) {
    const int key = staged_key<1>(thread), d = staged_d(thread);
    UNROLL for (int i = 0; i < kPacks; ++i) {
      store_pack(key_at(lds, i * (kThreads / kAcross) + key, d), s.pack[i]);
    }
    if (d < block.width) return;
    UNROLL for (int i = 0; i < kPacks; ++i) {
      store_pack(key_at(lds, i * (kThreads / kAcross) + key, d), Pack<T>{});
    }
  }
  // Columns outside of the block need no zeros, because their outputs are not stored.
  DEVICE static void load_values(Staged& s, const Block<T>& block, int thread) {
    load<kValuesTogether>(s, block, thread);
  }
  DEVICE static void store_values(Lds& lds, const Staged& s, const Block<T>& block, int thread) {
    const int key = staged_key<kValuesTogether>(thread), d = staged_d(thread);
    if constexpr (Instruction::kLoadsRows) {
      UNROLL for (int i = 0; i < kPacks; ++i) {
        store_pack(value_at(lds, i * (kThreads / kAcross) + key, d), s.pack[i]);
      }
    } else {
      UNROLL for (int i = 0; i < kPacks; i += kTogether) {
        UNROLL for (int e = 0; e < kSize; ++e) {
          Few<T, kTogether> few;
          UNROLL for (int j = 0; j < kTogether; ++j) few.v[j] = s.pack[i + j].v[e];
          T* to = value_at(lds, i * (kThreads / kAcross) + key, d) + e * (kKeys + kPad);
          *reinterpret_cast<Few<T, kTogether>*>(to) = few;
        }
      }
    }
    if (block.count >= kKeys) return;
    NO_UNROLL for (int i = 0; i < kPacks; ++i) {
      const int at = i / kValuesTogether * kValuesTogether * (kThreads / kAcross) + key + i % kValuesTogether;
      if (at < block.count) continue;
      UNROLL for (int e = 0; e < kSize; ++e) store_value(lds, at, d + e, from_float<T>(0.0f));
    }
  }
  DEVICE static void copy_keys(Lds& lds, const Block<T>& block, int thread) {
    block.template copy_packs<kAcross, kPacks, kThreads>(thread,
                                                         [&](int key, int d) { return key_at(lds, key, d); });
  }
  DEVICE static void copy_values(Lds& lds, const Block<T>& block, int thread) {
    block.template copy_packs<kAcross, kPacks, kThreads>(
        thread, [&](int key, int d) { return value_at(lds, key, d); });
  }
  DEVICE static void copy_query(Lds& lds, int r, int d, const T* from, bool inside) {
    copy_to_lds(query_at(lds, r, d), from, inside);
  }
  DEVICE static void store_key(Lds& lds, int key, int d, T x) { *key_at(lds, key, d) = x; }
  DEVICE static void store_value(Lds& lds, int key, int d, T x) { *value_at(lds, key, d) = x; }

  // The operands of an instruction consist of kDeep tiles of 16 elements of the head, or of 16 keys.
  static constexpr int kDeep = Instruction::kTwoTiles ? 2 : 1;
  static_assert(kD % kDeep == 0 && kN % kDeep == 0, "entire operands");
  struct Left {
    typename Instruction::Left tile[kDeep];
  };
  struct Right {
    typename Instruction::Right tile[kDeep];
  };
  DEVICE static void multiply(typename Instruction::Sum& sum, const Left& left, const Right& right) {
    if constexpr (Instruction::kTwoTiles) {
      Instruction::multiply_two(sum, left.tile[0], left.tile[1], right.tile[0], right.tile[1]);
    } else {
      Instruction::multiply(sum, left.tile[0], right.tile[0]);
    }
  }

  DEVICE void multiply_keys(Lds& lds, Scores& scores, int) {
    multiply_keys(lds, scores, 0, [](int) {});
  }
  // Calls between(d) once for each operand along the head; it runs while the matrix units multiply.
  template <class Between>
  DEVICE void multiply_keys(Lds& lds, Scores& scores, int buffer, const Between& between) {
    UNROLL for (int m = 0; m < kM; ++m) { UNROLL for (int n = 0; n < kN; ++n) scores.tile[m][n] = {}; }
    // The operands of a step are loaded during the multiplications of the previous steps.
    Right right[kStepsHeld][kKeyTiles];
    Left left[kLeftAhead ? 2 : 1][kM];
    UNROLL for (int step = 0; step < kStepsHeld - 1; ++step) load_key_tiles(lds, buffer, step, right[step]);
    if constexpr (kLeftAhead) load_left(lds, 0, left[0]);
    UNROLL for (int step = 0; step < kD / kDeep * kStepsN; ++step) {
      const int d = step / kStepsN, first = step % kStepsN * kKeyTiles;
      keep_order();
      const int ahead = step + kStepsHeld - 1;
      if (ahead < kD / kDeep * kStepsN) load_key_tiles(lds, buffer, ahead, right[ahead % kStepsHeld]);
      if constexpr (kLeftAhead) {
        if (first + kKeyTiles == kN && d + 1 < kD) load_left(lds, d + 1, left[(d + 1) % 2]);
      }
      if (first == 0) between(d);
      UNROLL for (int m = 0; m < kM; ++m) {
        if constexpr (!kLeftAhead) left[0][m] = left_at(lds, m, d);
        UNROLL for (int n = 0; n < kKeyTiles; ++n) {
          multiply(scores.tile[m][first + n], left[kLeftAhead ? d % 2 : 0][m], right[step % kStepsHeld][n]);
        }
      }
    }
    UNROLL for (int m = 0; m < kM; ++m) {
      UNROLL for (int n = 0; n < kN; ++n) compute_here(scores.tile[m][n].v);
    }
  }

  DEVICE Left left_at(Lds& lds, int m, int d) const {
    Left left;
    UNROLL for (int i = 0; i < kDeep; ++i) {
      if constexpr (kQueriesInLds) {
        left.tile[i] = load_query(lds, m, d * kDeep + i);
      } else {
        left.tile[i] = queries[m][d * kDeep + i];
      }
    }
    return left;
  }
  DEVICE void load_left(Lds& lds, int d, Left (&left)[kM]) const {
    UNROLL for (int m = 0; m < kM; ++m) left[m] = left_at(lds, m, d);
  }

  // kKeyTiles: number of operands of K in a step, all for the same part of a head. Two cases need so many registers
  // that a step has fewer of them. kLeftAhead: Q of the next part is loaded from LDS in advance. kHeldTwice: a wave of
  // RDNA 3 holds each operand twice.
  static constexpr bool kHeldTwice = Instruction::kSlots == 16;
  static constexpr bool kLeftAhead = kDoubleBuffered && kQueriesInLds && kHead == 128;
  static constexpr int kKeyTiles = (kLeftAhead || kHeldTwice) && kN % 2 == 0 ? 2 : kN,
                       kStepsN = kN / kKeyTiles;
  DEVICE static void load_key_tiles(Lds& lds, int buffer, int step, Right (&right)[kKeyTiles]) {
    const int d = step / kStepsN, first = step % kStepsN * kKeyTiles;
    UNROLL for (int n = 0; n < kKeyTiles; ++n) {
      UNROLL for (int i = 0; i < kDeep; ++i) {
        right[n].tile[i] = Instruction::load_right([&](int key, int k) {
          return key_at(lds, (first + n) * 16 + key, (d * kDeep + i) * 16 + k, buffer);
        });
      }
    }
  }

  // Number of steps whose operands are in registers or being loaded, including the current step. CDNA has more
  // registers and a higher LDS latency. For heads of 64, three work-groups share a compute unit and leave fewer
  // registers.
  static constexpr int kStepsHeld = kWave == 64 && !Instruction::kTwoTiles && kHead > 64 ? 3 : 2;
  // Number of operands of V in a step, all for the same keys.
  static constexpr int kStepTiles = kHeldTwice || kLeftAhead ? 2 : kD % 4 == 0 ? 4 : 3;
  static constexpr int kStepsD = kD / kStepTiles;
  DEVICE static void load_value_tiles(Lds& lds, int buffer, int step, Right (&right)[kStepTiles]) {
    UNROLL for (int at = 0; at < kStepTiles * kDeep; ++at) {
      const int n = step / kStepsD * kDeep + at % kDeep, d = step % kStepsD * kStepTiles + at / kDeep;
      auto& tile = right[at / kDeep].tile[at % kDeep];
      if constexpr (Instruction::kLoadsRows) {
        tile = Instruction::load_right_rows(
            [&](int key, int column) { return value_at(lds, n, key, d, column, buffer); });
      } else {
        tile = Instruction::load_right([&](int column, int key) { return value_at(lds, n, key, d, column); });
      }
    }
  }

  DEVICE void multiply_values(Lds& lds, const Scores& scores, int buffer = 0) {
    constexpr int kSteps = kN / kDeep * kStepsD;
    Right right[kStepsHeld][kStepTiles];
    Left left[kM] = {};
    UNROLL for (int step = 0; step < kStepsHeld - 1; ++step) load_value_tiles(lds, buffer, step, right[step]);
    UNROLL for (int step = 0; step < kSteps; ++step) {
      keep_order();
      const int ahead = step + kStepsHeld - 1;
      if (ahead < kSteps) load_value_tiles(lds, buffer, ahead, right[ahead % kStepsHeld]);
      if (step % kStepsD == 0) {
        UNROLL for (int m = 0; m < kM; ++m) {
          UNROLL for (int i = 0; i < kDeep; ++i) {
            left[m].tile[i] = Instruction::to_left(scores.tile[m][step / kStepsD * kDeep + i]);
          }
        }
      }
      UNROLL for (int m = 0; m < kM; ++m) {
        UNROLL for (int i = 0; i < kStepTiles; ++i) {
          multiply(output[m][step % kStepsD * kStepTiles + i], left[m], right[step % kStepsHeld][i]);
        }
      }
    }
    UNROLL for (int m = 0; m < kM; ++m) { UNROLL for (int d = 0; d < kD; ++d) compute_here(output[m][d].v); }
  }
};

}  // namespace graphopt::hip
