// A vector of consecutive elements, which a work-item loads or stores in one instruction. Its address must be
// aligned to its size.
#pragma once

#include "device/platform.h"

namespace graphopt::hip {

template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Neighbours {
  T v[kWidth];
};

template <int kWidth, class T>
DEVICE Neighbours<T, kWidth> load_neighbours(const T* from) {
  return *reinterpret_cast<const Neighbours<T, kWidth>*>(from);
}

template <class T, int kWidth>
DEVICE void store_neighbours(T* to, const Neighbours<T, kWidth>& from) {
  *reinterpret_cast<Neighbours<T, kWidth>*>(to) = from;
}

}  // namespace graphopt::hip
