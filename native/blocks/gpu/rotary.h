// Rotary position embedding: rotates each pair of the first 2 * `half` elements of a head by an angle.
#pragma once

#include "device/platform.h"

namespace graphopt::hip {

// Returns element i of a head after the rotation. `cos` and `sin` [half] belong to the position of the head's
// token; if they are null, the head is not rotated. at(i) returns element i of the head before the rotation.
template <class T, class At>
DEVICE float rotate_element(const At& at, int i, int half, bool interleaved, const T* cos, const T* sin) {
  if (cos == nullptr || i >= 2 * half) return at(i);
  const int pair = interleaved ? i / 2 : i < half ? i : i - half;
  const bool second = interleaved ? (i & 1) != 0 : i >= half;
  const int other = interleaved ? i ^ 1 : second ? i - half : i + half;
  const float a = at(i), b = at(other);
  const float c = to_float(cos[pair]), s = to_float(sin[pair]);
  return second ? a * c + b * s : a * c - b * s;
}

}  // namespace graphopt::hip
