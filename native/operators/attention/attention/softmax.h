// The steps between the two matrix multiplications of fused_attention_*: scores, and the online softmax.
#pragma once

#include "blocks/gpu/activation.h"
#include "operators/attention/attention/loading.h"

namespace graphopt::hip {

// The mask elements of a work-item for a block of keys, loaded during the multiplication by K. The bias is not loaded
// in advance, because it would take twice as many registers.
template <class P>
struct StagedMask {
  static constexpr int kTogether = P::kKeysTogether;
  Few<uint8_t, kTogether> group[P::kSlots][P::kKeyGroups];

  // Whether load() loads the block from key t on. All keys of the block must belong to this work-group, because load()
  // does not clamp indices.
  DEVICE static bool is_used(const AttentionPlace<P>& place, int t) {
    return P::kMaskAhead && (place.layout.scores.flags & kAttentionVectorMask) != 0 &&
           t + P::kKeys <= place.end;
  }
  DEVICE void load(const AttentionPlace<P>& place, const AttentionExtra<uint8_t>& mask, int t) {
    if (!is_used(place, t)) return;
    UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
      const AttentionRow row = place.row_or_last(P::row(slot));
      const uint8_t* const from = mask.at(place.first_head + row.head, row.query, t);
      int at = 0;
      P::each_group(slot, [&](int key) {
        group[slot][at++] = *reinterpret_cast<const Few<uint8_t, kTogether>*>(from + key);
      });
    }
  }
  // Returns whether the mask keeps key i of a slot, in the order of P::each_of.
  DEVICE bool keeps(int slot, int i) const { return group[slot][i / kTogether].v[i % kTogether] != 0; }
};

// Converts the elements of Q K^T for the keys from t on to scores: applies scale, softcap, bias, causality, mask and
// window.
template <class T, class P>
DEVICE void finish_scores(typename P::Scores& scores, const AttentionPlace<P>& place,
                          const AttentionExtras<T>& extras, const StagedMask<P>& staged, int t) {
  const AttentionSizes& sizes = place.layout.sizes;
  const int32_t flags = place.flags();
  const int next = t + P::kKeys;
  UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
    const AttentionRow row = place.row_at(opaque(min_int(place.first_row + P::row(slot), place.rows - 1)));
    const int left = place.end - t;
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
    if (place.causal() && next > place.first_hidden) {
      const int seen = row.query + place.ahead + 1 - t;
      P::each_of(scores, slot, [&](int key, float s) { return key < seen ? s : -infinity(); });
    }
    if (StagedMask<P>::is_used(place, t)) {
      const float masked = extras.mask_value;
      int at = 0;
      P::each_of(scores, slot, [&](int, float s) { return staged.keeps(slot, at++) ? s : masked; });
    } else if ((flags & kAttentionMask) != 0) {
      const AttentionExtra<uint8_t>& extra = extras.mask;
      const uint8_t* mask = extra.at(place.first_head + row.head, row.query, t);
      const int last = opaque(left) - 1, column = extra.column;
      const float masked = extras.mask_value;
      P::each_of(scores, slot, [&](int key, float s) {
        return mask[static_cast<uint32_t>(min_int(key, last) * column)] != 0 ? s : masked;
      });
    }
    if ((flags & kAttentionWindow) != 0) {
      const int end = min_int(row.query + place.ahead, extras.last_seen) + 1 - t;
      const int begin = end - 1 - sizes.right - sizes.left;
      P::each_of(scores, slot, [&](int key, float s) { return key >= begin && key < end ? s : -infinity(); });
    }
    if (next > place.end) {
      P::each_of(scores, slot, [&](int key, float s) { return key < left ? s : -infinity(); });
    }
  }
}

// The same for plain kernels, whose scores are the unscaled elements of Q K^T: `exponent` includes the scale.
template <class P>
DEVICE void finish_plain_scores(typename P::Scores& scores, const AttentionPlace<P>& place, int t) {
  const int next = t + P::kKeys;
  if (!((place.causal() && next > place.first_hidden) || next > place.end)) return;
  UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
    const AttentionRow row = place.row_or_last(P::row(slot));
    const int seen = min_int(place.end, place.causal() ? row.query + place.ahead + 1 : place.end) - t;
    P::each_of(scores, slot, [&](int key, float s) { return key < seen ? s : -infinity(); });
  }
}

// Returns 2^(exponent (score - shift)). In float16, a fused multiply-add saves an instruction: the products cannot
// overflow, and the rounding error of shift * exponent is the same for the entire row. In float32 the products could
// overflow, because mask_value may be the lowest finite number.
template <class T>
DEVICE float power(float score, float shift, float exponent) {
  if constexpr (sizeof(T) == 2) return exp2_fast(fused_multiply_add(score, exponent, -shift * exponent));
  return exp2_fast((score - shift) * exponent);
}

// Returns the unnormalised probability for p V and the sum. In float16 it is scaled by 2^kAttentionRaised, which
// cancels in O. The largest value, 1,024, is far from overflow, and the value for a score 16 below the highest score is
// not yet subnormal. Subnormals have few bits, and the matrix units of gfx90a flush them to zero.
template <class T>
DEVICE float probability(float score, float shift, float exponent) {
  if constexpr (sizeof(T) == 2) {
    return exp2_fast(
        fused_multiply_add(score, exponent, fused_multiply_add(-shift, exponent, kAttentionRaised)));
  }
  return power<T>(score, shift, exponent);
}

// Highest score and sum of probabilities over the keys so far, for each row of a work-item.
template <class P>
struct AttentionSoftmax {
  float highest[P::kSlots], sum[P::kSlots];

  DEVICE AttentionSoftmax() {
    UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
      highest[slot] = -infinity();
      sum[slot] = 0;
    }
  }

  DEVICE static void scale(P& gemms, const float (&factor)[P::kSlots]) {
    gemms.each_output([&](int slot, int, float o) { return o * factor[slot]; });
  }

  // Converts scores to probabilities, and rescales the sums and outputs from the old highest score to the new one.
  template <class T>
  DEVICE void add(typename P::Scores& scores, P& gemms, float exponent) {
    float most[P::kSlots], factor[P::kSlots];
    UNROLL for (int slot = 0; slot < P::kSlots; ++slot) most[slot] = highest[slot];
    P::each(scores, [&](int slot, int, float s) {
      most[slot] = max_float(most[slot], s);
      return s;
    });
    UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
      most[slot] = P::row_max(most[slot]);
      // If all scores so far are -inf, subtract 0: -inf - -inf would be NaN although finite scores may follow.
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
    scale(gemms, factor);
  }

  // The same, but the highest score of a row is only updated if a probability of the wave would exceed 2^kSlack. The
  // subtracted score cancels in O, and scaled probabilities in float16 are at most 2^(10 + kSlack) (probability()). On
  // CDNA, the work-items of a row exchange their highest scores through LDS, which takes long. They therefore do so
  // only for an update. On CDNA, the outputs are scaled in every block. If only an update scaled them, the compiler
  // would copy them in all other blocks.
  template <class T>
  DEVICE void add_lazily(typename P::Scores& scores, P& gemms, float exponent) {
    constexpr float kSlack = 5.0f;
    constexpr bool kCdna = kWave == 64;
    float most[P::kSlots], factor[P::kSlots];
    UNROLL for (int slot = 0; slot < P::kSlots; ++slot) most[slot] = highest[slot];
    P::each(scores, [&](int slot, int, float s) {
      most[slot] = max_float(most[slot], s);
      return s;
    });
    bool higher = false;
    UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
      if constexpr (!kCdna) most[slot] = P::row_max(most[slot]);
      higher = higher || (most[slot] - highest[slot]) * exponent > kSlack;
      if constexpr (kCdna) factor[slot] = 1;
    }
    if (any_in_wave(higher)) {
      UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
        if constexpr (kCdna) most[slot] = P::row_max(most[slot]);
        const float shift = most[slot] == -infinity() ? 0.0f : most[slot];
        factor[slot] = power<T>(highest[slot], shift, exponent);
        highest[slot] = most[slot];
        sum[slot] *= factor[slot];
      }
      if constexpr (!kCdna) scale(gemms, factor);
    }
    if constexpr (kCdna) scale(gemms, factor);
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

}  // namespace graphopt::hip
