// Views of K, V, bias and mask, shared by both forms of fused_attention_* (matrix_form.h, vector_form.h).
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

  // The pack at `offset` = key row + d. If the position is outside, the first pack of the block is read instead, which
  // avoids a branch.
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
// Arguments of finish_scores and of the code after the loop over the keys, stored in LDS. They are uniform, so the
// compiler would otherwise keep them in scalar registers, of which there are too few during the loop.
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

}  // namespace graphopt::hip
