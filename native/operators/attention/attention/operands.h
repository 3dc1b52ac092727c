// Views of K, V, bias and mask, shared by the GEMMs on the matrix units (matrix_form.h) and on the vector unit
// (vector_form.h).
#pragma once

#include "device/platform.h"
#include "operators/attention/attention/args.h"

namespace graphopt::hip {

// Adjacent elements that one instruction moves.
template <class T, int kCount>
struct alignas(kCount * sizeof(T)) Few {
  T v[kCount];
};

// `count` rows of K or V, `width` elements each. Elements outside read as zero.
template <class T>
struct Block {
  const T* data;
  int32_t row, column, count, width;

  // Returns the pack at `offset` = key * row + d, or zeros if the position is outside. For an outside position, reads
  // the first pack of the block, which avoids a branch.
  DEVICE Pack<T> pack(int key, int d, uint32_t offset) const {
    const bool inside = key < count && d < width;
    const auto bits = bit_cast<Bits128>(load_pack(data + (inside ? offset : 0)));
    const Bits128 zero = {};
    return bit_cast<Pack<T>>(inside ? bits : zero);
  }
  // Copies the block to LDS: kPacks packs for each work-item, kAcross packs for each row. to(key, d) is the address.
  template <int kAcross, int kPacks, int kThreads, class To>
  DEVICE void copy_packs(int thread, const To& to) const {
    const int first = thread / kAcross, d = thread % kAcross * Pack<T>::kSize;
    auto offset = static_cast<uint32_t>(first * row + d);
    UNROLL for (int i = 0; i < kPacks; ++i) {
      const int key = first + i * (kThreads / kAcross);
      const bool inside = key < count && d < width;
      copy_to_lds(to(key, d), data + (inside ? offset : 0), inside);
      offset += static_cast<uint32_t>(kThreads / kAcross * row);
    }
  }
  DEVICE T element(int key, int d) const {
    return key < count && d < width ? data[int64_t{key} * row + int64_t{d} * column] : from_float<T>(0.0f);
  }
};

// The keys of a batch element, which are split among work-groups.
struct KeyRange {
  int count;     // number of keys
  int position;  // position of query 0, counted in keys
  int first;     // the first key of the first split
  int of_split;  // number of keys of a split

  DEVICE KeyRange(const AttentionSizes& sizes, int32_t flags, const Divisor& splits, const int32_t* last_keys,
                  int b)
      : count(sizes.T), position(sizes.T - sizes.S), first(0), of_split(sizes.split_keys) {
    if (last_keys == nullptr) return;
    const bool is_first = (flags & kAttentionBeginsAtFirstKey) != 0;
    count = max_int(min_int(last_keys[b], (is_first ? min_int(sizes.S, sizes.T) : sizes.T) - 1) + 1, 0);
    position = is_first ? 0 : max_int(count - sizes.S, 0);
    if ((flags & kAttentionWindow) != 0) first = max_int(position_of(0, flags) - sizes.left, 0);
    const auto each = static_cast<int>(divide(static_cast<uint32_t>(length()) + splits.d - 1, splits));
    of_split = max_int((each + sizes.split_keys - 1) & -sizes.split_keys, sizes.split_keys);
  }

  DEVICE int length() const { return max_int(count - first, 0); }
  // Returns whether a split has keys.
  DEVICE bool has(int split) const { return split * of_split < length(); }
  // Returns whether a split has keys or is the first one.
  DEVICE bool uses(int split) const { return split * of_split < max_int(length(), 1); }

  // Returns the position of a query.
  DEVICE int position_of(int query, int32_t flags) const {
    const int at = query + position;
    return (flags & kAttentionEndsAtLastKey) != 0 ? min_int(at, count - 1) : at;
  }
};

// Returns the term of a sink in the sum of probabilities. The probabilities are relative to the highest score and
// scaled by 2^raised.
DEVICE float sink_term(float sink, float highest, float exponent, float raised) {
  const float shift = highest == -infinity() ? 0.0f : highest * exponent;
  return exp2_fast(fused_multiply_add(sink, 1.44269504f, raised) - shift);
}

// Bias or mask of one batch element.
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
    return global(data) + head * h + int64_t{query} * row + int64_t{key} * column;
  }
};
// Arguments of finish_scores and of the code after the loop over the keys, stored in LDS. Outside LDS, the compiler
// would keep these uniform values in scalar registers, and there are too few during the loop.
template <class T>
struct AttentionExtras {
  AttentionExtra<T> bias;
  AttentionExtra<uint8_t> mask;
  float scale, softcap, inverse_softcap, mask_value;
  T* o;
  float *partial, *statistics;
  const void* nonfinite;     // or sinks
  AttentionStrides strides;  // of o
  int32_t last_seen;         // of AttentionPlace
  int32_t is_nan;            // whether the softmax of a row is NaN
};

}  // namespace graphopt::hip
