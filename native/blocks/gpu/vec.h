// A vector of consecutive elements, which a work-item loads or stores in one instruction. Its address must be
// aligned to its size.
#pragma once

#include "device/platform.h"

namespace graphopt::hip {

template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Vec {
  T v[kWidth];
};

template <int kWidth, class T>
DEVICE Vec<T, kWidth> load_vec(const T* from) {
  return *reinterpret_cast<const Vec<T, kWidth>*>(from);
}

template <class T, int kWidth>
DEVICE void store_vec(T* to, const Vec<T, kWidth>& from) {
  *reinterpret_cast<Vec<T, kWidth>*>(to) = from;
}

template <class T, int kWidth>
DEVICE Vec<float, kWidth> to_floats(const Vec<T, kWidth>& x) {
  Vec<float, kWidth> y;
  UNROLL for (int w = 0; w < kWidth; ++w) y.v[w] = to_float(x.v[w]);
  return y;
}

template <class T, int kWidth>
DEVICE Vec<T, kWidth> from_floats(const Vec<float, kWidth>& x) {
  Vec<T, kWidth> y;
  UNROLL for (int w = 0; w < kWidth; ++w) y.v[w] = from_float<T>(x.v[w]);
  return y;
}

}  // namespace graphopt::hip
