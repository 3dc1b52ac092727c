// Rotary position embedding: rotates each pair of the first 2 * `half` elements of a head by an angle. `beside`: the
// elements of a pair are adjacent, else they are `half` apart.
#pragma once

#include "blocks/gpu/vec.h"
#include "device/platform.h"

namespace graphopt::hip {

// The functions below process kWidth adjacent elements from index `at` on. kWidth is 1, or divides `at`, the distance of
// the elements of a pair, or for adjacent pairs 2 * half.

// Returns the index of the first element to load for the pair partners.
template <int kWidth>
DEVICE uint32_t first_partner(uint32_t at, uint32_t half, bool beside) {
  return beside ? (kWidth > 1 ? at : at ^ 1u) : at < half ? at + half : at - half;
}

// Returns the elements' entries of a cos or sin table [half].
template <int kWidth, class T>
DEVICE Vec<T, kWidth> load_angles(const T* table, uint32_t at, uint32_t half, bool beside) {
  const uint32_t first = beside ? at / 2 : at < half ? at : at - half;
  if (!beside) return load_vec<kWidth>(table + first);
  Vec<T, kWidth> angles;
  UNROLL for (uint32_t w = 0; w < kWidth; ++w) angles.v[w] = table[first + w / 2];
  return angles;
}

// `partners`: the elements from first_partner() on.
template <class T, int kWidth>
DEVICE Vec<float, kWidth> rotated(const Vec<float, kWidth>& own, const Vec<float, kWidth>& partners,
                                  uint32_t at, uint32_t half, bool beside, const Vec<T, kWidth>& cos,
                                  const Vec<T, kWidth>& sin) {
  constexpr uint32_t kBeside = kWidth > 1 ? 1 : 0;  // distance of the two elements of a pair in `partners`
  Vec<float, kWidth> y;
  UNROLL for (uint32_t w = 0; w < kWidth; ++w) {
    const bool second = beside ? (at + w) % 2 != 0 : at >= half;
    const float adjacent = partners.v[w ^ kBeside], apart = partners.v[w];
    const float b = beside ? adjacent : apart;
    y.v[w] = own.v[w] * to_float(cos.v[w]) + (second ? b : -b) * to_float(sin.v[w]);
  }
  return y;
}

}  // namespace graphopt::hip
