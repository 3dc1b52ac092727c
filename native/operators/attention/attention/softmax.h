// The steps between the two matrix multiplications of fused_attention_*: scores, and the online softmax.
#pragma once

#include "blocks/gpu/activation.h"
#include "operators/attention/attention/loading.h"

namespace graphopt::hip {

// Bias and mask of the rows of a work-item at the keys of a block. If P::kExtrasAhead is set, they are loaded during the
// multiplication by K, else one row at a time.
template <class T, class P>
struct StagedExtras {
  static constexpr int kStaged = P::kExtrasAhead ? P::kSlots : 1;
  ExtraRow<T, P> bias[kStaged];
  ExtraRow<uint8_t, P> mask[kStaged];

  // Loads a row at the keys from t on.
  template <class E>
  DEVICE static void load(const AttentionPlace<P>& place, const AttentionExtra<E>& extra, int32_t vectors,
                          int t, int slot, ExtraRow<E, P>& to) {
    const AttentionRow row = place.row_at(opaque(min_int(place.first_row + P::row(slot), place.rows - 1)));
    to.load(extra.at(place.first_head + row.head, row.query, t), extra.column, opaque(place.end - t),
            (place.layout.scores.flags & vectors) != 0, slot);
  }
  DEVICE void load_ahead(const AttentionPlace<P>& place, const AttentionExtras<T>& extras, int t) {
    if constexpr (P::kExtrasAhead) {
      const int32_t flags = place.layout.scores.flags;
      UNROLL for (int slot = 0; slot < P::kSlots; ++slot) {
        if ((flags & kAttentionBias) != 0)
          load(place, extras.bias, kAttentionVectorBias, t, slot, bias[slot]);
        if ((flags & kAttentionMask) != 0)
          load(place, extras.mask, kAttentionVectorMask, t, slot, mask[slot]);
      }
    }
  }
  DEVICE const ExtraRow<T, P>& bias_of(const AttentionPlace<P>& place, const AttentionExtras<T>& extras,
                                       int t, int slot) {
    if constexpr (P::kExtrasAhead) return bias[slot];
    load(place, extras.bias, kAttentionVectorBias, t, slot, bias[0]);
    return bias[0];
  }
  DEVICE const ExtraRow<uint8_t, P>& mask_of(const AttentionPlace<P>& place, const AttentionExtras<T>& extras,
                                             int t, int slot) {
    if constexpr (P::kExtrasAhead) return mask[slot];
    load(place, extras.mask, kAttentionVectorMask, t, slot, mask[0]);
    return mask[0];
  }
};

// Converts the elements of Q K^T for the keys from t on to scores: applies scale, softcap, bias, causality, mask and
// window.
template <class T, class P>
DEVICE void finish_scores(typename P::Scores& scores, const AttentionPlace<P>& place,
                          const AttentionExtras<T>& extras, StagedExtras<T, P>& staged, int t) {
  const AttentionSizes& sizes = place.layout.sizes;
  const int32_t flags = place.layout.scores.flags;
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
      const ExtraRow<T, P>& bias = staged.bias_of(place, extras, t, slot);
      int at = 0;
      P::each_of(scores, slot, [&](int, float s) { return s + to_float(bias[at++]); });
    }
    if (place.causal() && next > place.first_hidden) {
      const int seen = row.query + place.ahead + 1 - t;
      P::each_of(scores, slot, [&](int key, float s) { return key < seen ? s : -infinity(); });
    }
    if ((flags & kAttentionMask) != 0) {
      const ExtraRow<uint8_t, P>& mask = staged.mask_of(place, extras, t, slot);
      const float masked = extras.mask_value;
      int at = 0;
      P::each_of(scores, slot, [&](int, float s) { return mask[at++] != 0 ? s : masked; });
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

// The same for plain kernels: their scores are the unscaled elements of Q K^T, because `exponent` includes the scale.
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

// Returns 2^(exponent (score - shift)). In float16 scores are far from overflow, and the rounding of shift * exponent
// is the same for the entire row, so a fused multiply-add can save an instruction. In float32 the products could
// overflow: mask_value may be the lowest finite number.
template <class T>
DEVICE float power(float score, float shift, float exponent) {
  if constexpr (sizeof(T) == 2) return exp2_fast(fused_multiply_add(score, exponent, -shift * exponent));
  return exp2_fast((score - shift) * exponent);
}

// Returns the unnormalised probability, which p V and the sum use, scaled by 2^kAttentionRaised in float16. The factor
// cancels in O. The largest value, 1,024, is far from overflow, and the value for a score 16 below the highest one is
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

  DEVICE static void scale(P& products, const float (&factor)[P::kSlots]) {
    products.each_output([&](int slot, int, float o) { return o * factor[slot]; });
  }

  // Converts scores to probabilities, and rescales the sums and outputs from the old highest score to the new one.
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
    scale(products, factor);
  }

  // The same, but the highest score of a row is only updated if a probability of the wave would exceed 2^kSlack. The
  // choice of the subtracted score cancels in O, and scaled probabilities in float16 are at most 2^(10 + kSlack)
  // (probability()). On CDNA, the work-items of a row exchange their highest scores through LDS, which takes long, and
  // therefore only for an update. The outputs are scaled in any case: if only an update scales them, the compiler copies
  // them in all other blocks.
  template <class T>
  DEVICE void add_lazily(typename P::Scores& scores, P& products, float exponent) {
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
      if constexpr (!kCdna) scale(products, factor);
    }
    if constexpr (kCdna) scale(products, factor);
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
