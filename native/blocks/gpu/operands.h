// Shared code of elementwise kernels: reads operands with numpy broadcasting, and defines a macro for the
// cases of a switch over operators.
#pragma once

#include "blocks/gpu/vec.h"
#include "blocks/gpu/walk.h"

namespace graphopt::hip {

// Reads the pack of a tensor that starts at element i of the iteration (walk.h) and converts each element by
// `load`. Requires Walk::is_vectorizable. A tensor that is broadcast along the innermost axis repeats one
// element. A null tensor leaves `to` unchanged.
template <class T, class C, class Load>
DEVICE void read_operand(const T* from, uint32_t i, const Axes& axes, const Strides& strides,
                         const Load& load, C (&to)[Pack<T>::kSize]) {
  if (from == nullptr) return;
  const uint32_t at = offset_of(i, axes, strides);
  if (strides.s[0] != 0) {
    const Pack<T> in = load_pack(from + at);
    UNROLL for (int j = 0; j < Pack<T>::kSize; ++j) to[j] = load(in.v[j]);
  } else {
    const C one = load(from[at]);
    UNROLL for (int j = 0; j < Pack<T>::kSize; ++j) to[j] = one;
  }
}

// Returns a bit for each of kCount elements of the iteration (walk.h): bit j is set if the mask is not 0 at element i +
// j. Without a mask all bits are 0.
template <int kCount, class Args>
DEVICE uint32_t mask_bits(const Args& args, uint32_t i) {
  const uint8_t* mask = args.mask;
  if (mask == nullptr) return 0;
  const Args& reloaded = kCount == 1 ? reload(args) : args;  // see map_operands
  const uint32_t at = offset_of(i, reloaded.axes, reloaded.mask_strides);
  uint32_t bits = 0;
  UNROLL for (int j = 0; j < kCount; ++j) {
    if (mask[at + static_cast<uint32_t>(j * reloaded.mask_strides.s[0])] != 0) bits |= 1u << j;
  }
  return bits;
}

// Computes y = op(a, b); each work-item reads 16 bytes of a. compute(i, left, right, results) implements op. `left` and
// `right` contain elements of a and b, converted by `load`, from element i of the iteration on. `results` receives one
// result for each of them.
template <int kThreads, class T, class Y, class Args, class Load, class Compute>
DEVICE void map_operands(const Args& args, const Load& load, const Compute& compute) {
  using C = decltype(load(T()));
  const T *a = args.a, *b = args.b;
  Y* y = args.y;
  constexpr int kSize = Pack<T>::kSize;
  if (args.vectors != 0) {
    const uint32_t i = work_item(kThreads) * kSize;
    if (i >= args.total) return;
    C left[kSize] = {}, right[kSize] = {};
    read_operand(a, i, args.axes, args.a_strides, load, left);
    read_operand(b, i, args.axes, args.b_strides, load, right);
    Vec<Y, kSize> results;
    compute(i, left, right, results.v);
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
    // Axes and strides are read again, because on GCN they would take too many scalar registers during `compute`.
    const Args& reloaded = reload(args);
    const C left[1] = {load(a[offset_of(i, reloaded.axes, reloaded.a_strides)])};
    C right[1] = {};
    if (b != nullptr) right[0] = load(b[offset_of(i, reloaded.axes, reloaded.b_strides)]);
    Y result[1];
    compute(i, left, right, result);
    y[i] = result[0];
  }
}

template <int kThreads, class T, class Y, class Args, class Compute>
DEVICE void map_operands(const Args& args, const Compute& compute) {
  map_operands<kThreads, T, Y>(args, [](T x) { return x; }, compute);
}

}  // namespace graphopt::hip

// One case of a switch over operators: sets to[j] = expression for the kCount values of a work-item, with v = x[j] and
// w = z[j]. The loop is inside the case, so the switch runs once for all values. This is a macro because a case label
// cannot be passed to a function.
#define ELEMENTWISE_CASE(to, op, expression)  \
  case op:                                    \
    UNROLL for (int j = 0; j < kCount; ++j) { \
      const auto v = x[j], w = z[j];          \
      (void)w;                                \
      to[j] = (expression);                   \
    }                                         \
    break;
