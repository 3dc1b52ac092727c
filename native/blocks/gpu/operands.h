// What elementwise kernels have in common: operands with numpy broadcasting, and a switch over operators.
#pragma once

#include "blocks/gpu/walk.h"

namespace graphopt::hip {

// The elements of a tensor from element i of a walk on, where the innermost axis allows whole packs: one element for
// all where the tensor is broadcast, zeros where there is none.
template <class T>
DEVICE Pack<T> read_operand(const T* from, uint32_t i, const Axes& axes, const Strides& strides) {
  Pack<T> in = {};
  if (from == nullptr) return in;
  const uint32_t at = offset_of(i, axes, strides);
  if (strides.s[0] != 0) return load_pack(from + at);
  const T one = from[at];
  UNROLL for (int j = 0; j < Pack<T>::kSize; ++j) in.v[j] = one;
  return in;
}

}  // namespace graphopt::hip

// A case of a switch, the same for all lanes: to[j] = expression for all kCount values of a lane, where v is a value of
// x and w that of z. A macro, because a case cannot be passed to a function.
#define CASE_OF_EACH(to, op, expression)      \
  case op:                                    \
    UNROLL for (int j = 0; j < kCount; ++j) { \
      const auto v = x[j], w = z[j];          \
      (void)w;                                \
      to[j] = (expression);                   \
    }                                         \
    break;
