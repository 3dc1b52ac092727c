// Shared code of elementwise kernels: operands with numpy broadcasting, and a case for switches over
// operators.
#pragma once

#include "blocks/gpu/vec.h"
#include "blocks/gpu/walk.h"

namespace graphopt::hip {

// Returns the pack of a tensor at element i of a walk, for an innermost axis that allows packs. A broadcast
// tensor repeats one element; a null tensor gives zeros.
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

// Returns the mask of kCount elements of a walk, starting at element i. Bit j belongs to element i + j.
// Without a mask all bits are 0.
template <int kCount, class Args>
DEVICE uint32_t mask_bits(const Args& args, uint32_t i) {
  const uint8_t* mask = args.mask;
  if (mask == nullptr) return 0;
  const uint32_t at = offset_of(i, args.axes, args.mask_strides);
  uint32_t bits = 0;
  UNROLL for (int j = 0; j < kCount; ++j) {
    if (mask[at + static_cast<uint32_t>(j * args.mask_strides.s[0])] != 0) bits |= 1u << j;
  }
  return bits;
}

// y = op(a, b), with 16 bytes of a for each work-item. compute(i, left, right, results) writes one result for
// each element of its arrays, which start at element i of the walk.
template <int kThreads, class T, class Y, class Args, class Compute>
DEVICE void map_operands(const Args& args, const Compute& compute) {
  const T *a = args.a, *b = args.b;
  Y* y = args.y;
  constexpr int kSize = Pack<T>::kSize;
  if (args.vectors != 0) {
    const uint32_t i = work_item(kThreads) * kSize;
    if (i >= args.total) return;
    const Pack<T> left = read_operand(a, i, args.axes, args.a_strides),
                  right = read_operand(b, i, args.axes, args.b_strides);
    Vec<Y, kSize> results;
    compute(i, left.v, right.v, results.v);
    if constexpr (sizeof results == sizeof(Bits128)) {
      *reinterpret_cast<Bits128*>(y + i) = bit_cast<Bits128>(results);
    } else {
      store_vec(y + i, results);
    }
    return;
  }
  const uint32_t begin = static_cast<uint32_t>(block_x()) * (kThreads * kSize);
  NO_UNROLL for (int k = 0; k < kSize; ++k) {
    const uint32_t i = begin + static_cast<uint32_t>(k * kThreads + thread_x());
    if (i >= args.total) return;
    const T left[1] = {a[offset_of(i, args.axes, args.a_strides)]};
    T right[1] = {};
    if (b != nullptr) right[0] = b[offset_of(i, args.axes, args.b_strides)];
    Y result[1];
    compute(i, left, right, result);
    y[i] = result[0];
  }
}

}  // namespace graphopt::hip

// A case of a switch on a value that is uniform in a wave: to[j] = expression for the kCount values of a
// work-item, with v = x[j] and w = z[j]. A macro, because a case cannot be passed to a function.
#define ELEMENTWISE_CASE(to, op, expression)  \
  case op:                                    \
    UNROLL for (int j = 0; j < kCount; ++j) { \
      const auto v = x[j], w = z[j];          \
      (void)w;                                \
      to[j] = (expression);                   \
    }                                         \
    break;
