// The counterpart of matrix_form.h for the vector unit, for types that the matrix units do not support.
#pragma once

#include "device/platform.h"
#include "operators/attention/attention/operands.h"

namespace graphopt::hip {

// A wave has kDown x 8 work-items. The work-item at (down, across) has kSlots adjacent rows, every eighth group of
// kGroup keys, and every eighth group of four output columns.
template <class T, int kHead_, int kWaves, int kWaveRows, int kKeys_, int kParts>
struct VectorAttention {
  static constexpr int kHead = kHead_, kKeys = kKeys_;
  static constexpr int kThreads = kWaves * kWave, kBlockRows = kWaves * kWaveRows;
  static constexpr int kWaveGroups = 1, kRowParts = 1, kPartRows = kBlockRows;
  DEVICE static int wave_group() { return 0; }
  DEVICE static bool keeps(int) { return true; }
  static constexpr bool kLazily = false;
  DEVICE static bool has_rows_in(int) { return true; }
  DEVICE static int row_in_part(int slot) { return row(slot); }
  static constexpr int kDown = kWave / 8, kSlots = kWaveRows / kDown;
  static constexpr int kScores = kKeys / 8, kOutputs = kHead / 8;
  static constexpr int kGroup = kScores < 4 ? kScores : 4;  // adjacent keys of a work-item
  static constexpr int kSize = Pack<T>::kSize;
  static constexpr int kAcross = kHead / kSize;
  static constexpr int kPacks = kKeys * kAcross / kThreads;
  static_assert(kPacks * kThreads == kKeys * kAcross && kThreads % kAcross == 0, "entire packs and rows");
  static_assert((kSlots == 4 || kSlots == 8) && kAcross % 4 == 0, "128-bit accesses");
  static constexpr bool kDoubleBuffered = false;
  static constexpr bool kDirectQueries = kCopiesToLds && sizeof(T) == 4;
  static constexpr bool kDirectKeys = kDirectQueries, kDirectValues = kDirectQueries;

  // Q and K are transposed: they have one row for each element of the head. Groups of 8 keys or query rows are
  // permuted: work-items that write different rows then access different banks. p has one row for each key, permuted by
  // p_at().
  struct Lds {
    alignas(16) float query[kHead][kBlockRows];
    alignas(16) float key[kHead][kKeys];
    alignas(16) float value[kKeys][kHead];
    alignas(16) float p[kWaves][kKeys / kParts][kWaveRows];
    float sum[kBlockRows];
    int32_t last[kHead];  // for each column of V, the last key with a non-finite value
    AttentionExtras<T> extras;
  };
  // The output is assembled over Q, which is unused by then and at least as large.
  static constexpr int kOutputStride = kHead;
  static constexpr bool kOutputOverlaps = false;  // see matrix_form.h
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

  // Lanes that differ only in bit 0 of their index differ in across(); lanes that differ only in bit 1 differ in
  // down(). In a cycle, an NVIDIA GPU reads 16 bytes for each of 8 lanes. It serves 16 lanes if those that differ only
  // in bit 0, or only in bit 1, read the same address.
  DEVICE static int down() { return (lane_id() >> 1 & 1) | lane_id() / 16 * 2; }
  DEVICE static int across() { return (lane_id() & 5) | (lane_id() >> 2 & 2); }
  DEVICE static int row(int slot) { return wave_id() * kWaveRows + down() * kSlots + slot; }
  DEVICE static int key_of(int i, int item) { return i / kGroup * (8 * kGroup) + item * kGroup + i % kGroup; }
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
  // each_group calls f(first key) for each group of kKeysTogether adjacent keys of a slot, in the order of each_of.
  static constexpr int kKeysTogether = kGroup, kKeyGroups = kScores / kGroup;
  static constexpr bool kMaskAhead = false;
  static_assert(kAttentionKeysTogether % kKeysTogether == 0, "aligned groups");
  template <class F>
  DEVICE static void each_group(int, const F& f) {
    UNROLL for (int i = 0; i < kScores; i += kGroup) f(key_of(i, across()));
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
  // Calls f(column, values) for groups of adjacent elements of one slot.
  template <class F>
  DEVICE void each_few_of(int slot, const F& f) const {
    UNROLL for (int i = 0; i < kOutputs; i += 4) {
      Few<float, 4> few;
      UNROLL for (int e = 0; e < 4; ++e) few.v[e] = output[slot][i + e];
      f(i / 4 * 32 + across() * 4, few);
    }
  }

  // 32 adjacent work-items load 4 packs of each of 8 rows. The next groups of 32 load the next rows, and after the last
  // row the next 4 packs. Keys are loaded in the same order.
  DEVICE static int query_row(int at) { return at / 32 % (kBlockRows / 8) * 8 + at % 8; }
  DEVICE static int query_d(int at) { return (at / 32 / (kBlockRows / 8) * 4 + at / 8 % 4) * kSize; }
  DEVICE static void store_query(Lds& lds, int r, int d, const Pack<T>& pack) {
    UNROLL for (int e = 0; e < kSize; ++e) lds.query[d + e][exchange_row(r, d)] = to_float(pack.v[e]);
  }
  DEVICE static void copy_query(Lds& lds, int r, int d, const T* from, bool inside) {
    UNROLL for (int e = 0; e < kSize; ++e) {
      copy_to_lds<4>(&lds.query[d + e][exchange_row(r, d)], from + e, inside);
    }
  }
  static constexpr bool kTakesQueries = false;
  DEVICE static void take_queries(Lds&, int) {}

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
  DEVICE static void store_keys(Lds& lds, const Staged& s, const Block<T>&, int thread) {
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
  DEVICE static void store_values(Lds& lds, const Staged& s, const Block<T>&, int thread) {
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
        copy_to_lds<4>(&lds.key[d + ds + e][exchanged ^ keys], from + e, inside);
      }
    }
  }
  DEVICE static void copy_values(Lds& lds, const Block<T>& block, int thread) {
    block.template copy_packs<kAcross, kPacks, kThreads>(
        thread, [&](int key, int d) { return reinterpret_cast<T*>(&lds.value[key][d]); });
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
    // The operands at each index d of a head are loaded during the multiplications at index d - 1.
    float a[2][kSlots], b[2][kScores];
    const int r = row(0);
    constexpr int kStep = 8;
    const auto load = [&](int first, int d) {
      // The permutations move groups of 8 within 32 rows or keys and are the same for four adjacent d.
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

  // Returns the address of p for a row of LDS: row 8 i + item has score i of a part, from the work-items with across()
  // == item. Groups of four query rows are permuted by `item`: the work-items then write to different banks.
  DEVICE static float* p_at(Lds& lds, int i, int item, int slot) {
    constexpr int kFours = kSlots / 4;
    const int four = (down() * kFours + slot / 4) ^ (item * kFours / 2 % (kDown * kFours));
    return &lds.p[wave_id()][i * 8 + item][four * 4];
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
      UNROLL_A_LITTLE for (int item = 0; item < 8; ++item) {
        float a[kSlots];
        UNROLL for (int slot = 0; slot < kSlots; slot += 4) {
          load_fours(p_at(lds, i, item, slot), a + slot, 4);
        }
        const float* line = lds.value[key_of(first + i, item)];
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

}  // namespace graphopt::hip
