// Rotary position embedding: rotates each pair of the first 2 * `half` elements of a head by an angle. `interleaved`:
// the elements of a pair are adjacent; otherwise they are `half` apart.
#pragma once

#include "blocks/gpu/vec.h"
#include "device/platform.h"

namespace graphopt::hip {

// The functions below process kWidth adjacent elements from index `at` on. kWidth is 1, or it divides `at` and `half`;
// if `interleaved`, it divides `at` and 2 * half.

// Returns the index of the first of kWidth adjacent elements that contain the partners of these elements.
template <int kWidth>
DEVICE uint32_t first_partner(uint32_t at, uint32_t half, bool interleaved) {
  return interleaved ? (kWidth > 1 ? at : at ^ 1u) : at < half ? at + half : at - half;
}

// Returns the entries of a cos or sin table [half] for these elements.
template <int kWidth, class T>
DEVICE Vec<T, kWidth> load_angles(const T* table, uint32_t at, uint32_t half, bool interleaved) {
  const uint32_t first = interleaved ? at / 2 : at < half ? at : at - half;
  if (!interleaved) return load_vec<kWidth>(table + first);
  Vec<T, kWidth> angles;
  UNROLL for (uint32_t w = 0; w < kWidth; ++w) angles.v[w] = table[first + w / 2];
  return angles;
}

// Returns the rotated elements. `partners`: the elements from first_partner() on.
template <class T, int kWidth>
DEVICE Vec<float, kWidth> rotated(const Vec<float, kWidth>& own, const Vec<float, kWidth>& partners,
                                  uint32_t at, uint32_t half, bool interleaved, const Vec<T, kWidth>& cos,
                                  const Vec<T, kWidth>& sin) {
  // If interleaved, the partner of element w is element w ^ kDistance of `partners`.
  constexpr uint32_t kDistance = kWidth > 1 ? 1 : 0;
  Vec<float, kWidth> y;
  UNROLL for (uint32_t w = 0; w < kWidth; ++w) {
    const bool second = interleaved ? (at + w) % 2 != 0 : at >= half;
    const float adjacent = partners.v[w ^ kDistance], apart = partners.v[w];
    const float b = interleaved ? adjacent : apart;
    y.v[w] = own.v[w] * to_float(cos.v[w]) + (second ? b : -b) * to_float(sin.v[w]);
  }
  return y;
}

}  // namespace graphopt::hip
