// ScatterElements and ScatterND, with and without a reduction. Results do not depend on the order of work-items. There
// is one exception: in a minimum or maximum of three or more updates, the sign of a zero and the bits of a NaN.
//
// One kernel links the updates of each target into a list, in an order that depends on a race. A second kernel then
// combines each target with its list. Without a reduction the last update wins, as on the CPU. One or two updates are
// combined in their order. Three or more float updates are added as 40-bit integers, in units derived from the largest
// addend. Their sum is the same in any order, and more accurate than a sum in float. Products are computed in the order
// of the updates.
//
// Memory-bound if targets have few updates each: x is read once, and y is written once. An update with an index out of
// range is ignored; other devices may raise an error.
#include "blocks/gpu/walk.h"
#include "device/platform.h"
#include "operators/movement/scatter/args.h"

namespace graphopt::hip {

DEVICE uint32_t scatter_item(int k) {
  return static_cast<uint32_t>(block_x()) * (kScatterThreads * kScatterElements) +
         static_cast<uint32_t>(k * kScatterThreads + thread_x());
}

// The linked lists of updates of all targets. Updates are numbered from 1. Element i is update i, with the number of
// the next update in its list; 0 ends the list. SeparateList reads two arrays, InterleavedList one.
template <class T>
struct SeparateList {
  const T* updates;
  const uint32_t* next;
  size_t stride;
  DEVICE ScatterLinked<T> operator[](uint32_t i) const { return {updates[(i - 1) * stride], next[i - 1]}; }
};
template <class T>
struct InterleavedList {
  const ScatterLinked<T>* linked;
  DEVICE ScatterLinked<T> operator[](uint32_t i) const { return linked[i - 1]; }
};

// Calls f(update, number of the update) for each update of a list.
template <class List, class F>
DEVICE void each_update(const List& list, uint32_t first, const F& f) {
  for (uint32_t i = first; i != 0;) {
    const auto linked = list[i];
    f(linked.update, i);
    i = linked.next;
  }
}

template <class T, class List>
DEVICE T add_in_any_order(T start, const List& list, uint32_t first) {
  uint64_t sum = static_cast<uint64_t>(start);
  each_update(list, first, [&](T update, uint32_t) { sum += static_cast<uint64_t>(update); });
  return static_cast<T>(sum);
}

DEVICE uint32_t magnitude_bits(float x) { return bit_cast<uint32_t>(x) & 0x7fffffffu; }

// Returns x in units of 2^-39 p, where p is the power of two with the biased exponent `largest`. The magnitude of x is
// less than 2 p.
DEVICE int64_t in_units(float x, uint32_t largest) {
  const uint32_t bits = magnitude_bits(x), exponent = bits >> 23;
  const uint32_t mantissa = exponent != 0 ? (bits & 0x7fffffu) | 0x800000u : bits;
  const uint32_t shift = largest - (exponent != 0 ? exponent : 1);
  const int64_t units = shift < 40 ? static_cast<int64_t>(static_cast<uint64_t>(mantissa) << 16 >> shift) : 0;
  return x < 0 ? -units : units;
}

// 2^n for n from -126 to 127.
DEVICE float power_of_two(int32_t n) { return bit_cast<float>(static_cast<uint32_t>(n + 127) << 23); }

template <class T, class List>
DEVICE float add_floats(T start, const List& list, uint32_t first) {
  uint32_t largest = magnitude_bits(to_float(start)), addends = 1;
  each_update(list, first, [&](T update, uint32_t) {
    const uint32_t bits = magnitude_bits(to_float(update));
    largest = bits > largest ? bits : largest;
    ++addends;
  });
  largest >>= 23;
  if (largest == 0xff) {  // only infinities and NaN determine the result
    const auto non_finite = [](float x) { return magnitude_bits(x) < 0x7f800000u ? 0.0f : x; };
    float sum = non_finite(to_float(start));
    each_update(list, first, [&](T update, uint32_t) { sum += non_finite(to_float(update)); });
    return sum;
  }
  largest = largest != 0 ? largest : 1;
  // An addend has less than 2^40 units, so 2^23 addends do not overflow. More addends need larger units.
  for (; addends > 1u << 23; addends = (addends + 1) / 2) ++largest;
  int64_t sum = in_units(to_float(start), largest);
  each_update(list, first, [&](T update, uint32_t) { sum += in_units(to_float(update), largest); });
  // A unit is 2^(largest - 127 - 23 - 16). It is applied as two factors, because it may be out of float's
  // range.
  const int32_t n = static_cast<int32_t>(largest) - 166;
  return static_cast<float>(sum) * power_of_two(n / 2) * power_of_two(n - n / 2);
}

DEVICE float sum(float a, float b) { return a + b; }
DEVICE uint64_t sum(uint64_t a, uint64_t b) { return a + b; }
DEVICE float product(float a, float b) { return a * b; }
DEVICE uint64_t product(uint64_t a, uint64_t b) { return a * b; }
DEVICE float widened(float x) { return x; }
DEVICE float widened(half_t x) { return to_float(x); }
DEVICE uint64_t widened(uint8_t x) { return x; }
DEVICE uint64_t widened(int8_t x) { return static_cast<uint64_t>(static_cast<int64_t>(x)); }
DEVICE uint64_t widened(int32_t x) { return static_cast<uint64_t>(static_cast<int64_t>(x)); }
DEVICE uint64_t widened(int64_t x) { return static_cast<uint64_t>(x); }

// Multiplies the updates in the order of their numbers, independent of their order in the list.
template <class T, class List>
DEVICE T multiply(T start, const List& list, uint32_t first) {
  auto y = widened(start);
  uint32_t done = 0;
  while (true) {
    uint32_t least = 0;
    T update = start;
    each_update(list, first, [&](T other, uint32_t i) {
      if (i <= done || (least != 0 && i > least)) return;
      least = i;
      update = other;
    });
    if (least == 0) return static_cast<T>(y);
    y = product(y, widened(update));
    done = least;
  }
}

template <class T>
struct Sum {
  template <class List>
  static DEVICE T of(T start, const List& list, uint32_t first) {
    return add_in_any_order(start, list, first);
  }
};
template <>
struct Sum<float> {
  template <class List>
  static DEVICE float of(float start, const List& list, uint32_t first) {
    return add_floats(start, list, first);
  }
};
template <>
struct Sum<half_t> {
  template <class List>
  static DEVICE half_t of(half_t start, const List& list, uint32_t first) {
    return from_float<half_t>(add_floats(start, list, first));
  }
};

// Returns the smaller or larger of a and b; NaN if a or b is NaN.
template <class T>
DEVICE T extreme(T a, T b, bool largest) {
  if (a != a) return a;
  return b != b || (largest ? b > a : b < a) ? b : a;
}

// Reduces x and all updates of a list.
template <class T, class List>
DEVICE T reduce_list(ScatterReduction reduction, T x, const List& list, uint32_t first) {
  if (reduction == ScatterReduction::kAdd) return Sum<T>::of(x, list, first);
  if (reduction == ScatterReduction::kMul) return multiply(x, list, first);
  each_update(list, first,
              [&](T update, uint32_t) { x = extreme(x, update, reduction == ScatterReduction::kMax); });
  return x;
}

// Reduces x and one update, or x and two updates in the order of the arguments.
template <class T>
DEVICE T reduce_one_or_two(ScatterReduction reduction, T x, T one, T two, bool both) {
  const auto wide = widened(x), first = widened(one), second = widened(two);
  if (reduction == ScatterReduction::kAdd) {
    const auto y = sum(wide, first);
    return static_cast<T>(both ? sum(y, second) : y);
  }
  if (reduction == ScatterReduction::kMul) {
    const auto y = product(wide, first);
    return static_cast<T>(both ? product(y, second) : y);
  }
  const T y = extreme(x, one, reduction == ScatterReduction::kMax);
  return both ? extreme(y, two, reduction == ScatterReduction::kMax) : y;
}

// Adjacent elements, loaded or stored with one instruction.
template <class T>
struct alignas(kScatterElements * sizeof(T)) Vec {
  T v[kScatterElements];
};

// Element k of a work-item: its index in y, its target, and its column in the target. kScalars: every target is one
// element, and a work-item has four adjacent targets.
template <bool kScalars>
struct ScatterPosition {
  uint32_t i, target, column;
  DEVICE ScatterPosition(const ScatterApplyArgs& args, int k)
      : i(kScalars ? kScatterElements * work_item(kScatterThreads) + static_cast<uint32_t>(k)
                   : scatter_item(k)),
        target(kScalars ? i : divide(i, args.inner)),
        column(kScalars ? 0 : i - target * args.inner.d) {}
};

// Returns the lists of all targets, with the updates of one column. kScalars: targets have one column, and
// scatter_link_scalars_* has written the lists, in which one access reads an update and the number of the next one.
template <class T, bool kScalars>
DEVICE auto list_of(const ScatterApplyArgs& args, uint32_t column) {
  if constexpr (kScalars) {
    const ScatterLinked<T>* linked = args.next;
    return InterleavedList<T>{linked};
  } else {
    const T* updates = args.updates;
    const uint32_t* next = args.next;
    return SeparateList<T>{updates + column, next, args.inner.d};
  }
}

// Most targets have at most two updates. The first updates of all targets of a work-item are loaded together, then
// their second updates.
template <class T, bool kScalars>
DEVICE void scatter_reduce(const ScatterApplyArgs& args) {
  using Position = ScatterPosition<kScalars>;
  const T* x = args.x;
  const uint32_t* heads = args.first;
  T* y = args.y;
  Vec<T> value = {};
  T one[kScatterElements], two[kScatterElements];
  Vec<uint32_t> first = {};
  uint32_t second[kScatterElements], third[kScatterElements];
  const bool all = Position(args, kScatterElements - 1).i < args.total, vectors = kScalars && all;
  if (vectors) {
    const uint32_t i = Position(args, 0).i;
    value = *reinterpret_cast<const Vec<T>*>(x + i);
    first = *reinterpret_cast<const Vec<uint32_t>*>(heads + i);
  } else {
    UNROLL for (int k = 0; k < kScatterElements; ++k) {
      const Position at(args, k);
      if (at.i >= args.total) continue;
      value.v[k] = x[at.i];
      first.v[k] = heads[at.target];
    }
  }
  UNROLL for (int k = 0; k < kScatterElements; ++k) {
    one[k] = T(0);
    second[k] = 0;
    if (first.v[k] == 0) continue;
    const auto linked = list_of<T, kScalars>(args, Position(args, k).column)[first.v[k]];
    one[k] = linked.update;
    second[k] = linked.next;
  }
  UNROLL for (int k = 0; k < kScatterElements; ++k) {
    two[k] = T(0);
    third[k] = 0;
    if (second[k] == 0) continue;
    const auto linked = list_of<T, kScalars>(args, Position(args, k).column)[second[k]];
    two[k] = linked.update;
    third[k] = linked.next;
  }
  uint32_t lists = 0;
  UNROLL for (int k = 0; k < kScatterElements; ++k) {
    if (third[k] != 0) {
      lists |= 1u << k;
      continue;
    }
    // The order of the two updates in the list depends on a race, so they are sorted here.
    const bool swapped = second[k] != 0 && second[k] < first.v[k];
    const T early = swapped ? two[k] : one[k], late = swapped ? one[k] : two[k];
    if (first.v[k] != 0)
      value.v[k] = reduce_one_or_two(args.reduction, value.v[k], early, late, second[k] != 0);
  }
  if (vectors) {
    *reinterpret_cast<Vec<T>*>(y + Position(args, 0).i) = value;
  } else {
    UNROLL for (int k = 0; k < kScatterElements; ++k) {
      const uint32_t i = Position(args, k).i;
      if (i < args.total) y[i] = value.v[k];
    }
  }
  NO_UNROLL for (int k = 0; k < kScatterElements; ++k) {
    if ((lists >> k & 1) == 0) continue;
    const Position at(args, k);
    y[at.i] = reduce_list(args.reduction, x[at.i], list_of<T, kScalars>(args, at.column), heads[at.target]);
  }
}

// Without a reduction, the last update wins.
template <class T>
DEVICE void scatter_take(const ScatterApplyArgs& args) {
  const T *x = args.x, *updates = args.updates;
  const uint32_t *heads = args.first, *next = args.next;
  T* y = args.y;
  T value[kScatterElements];
  UNROLL for (int k = 0; k < kScatterElements; ++k) {
    const uint32_t i = scatter_item(k);
    if (i >= args.total) continue;
    const uint32_t target = divide(i, args.inner), column = i - target * args.inner.d;
    uint32_t last = heads[target];
    for (uint32_t j = last; j != 0; j = next[j - 1]) last = j > last ? j : last;
    value[k] = last != 0 ? updates[static_cast<size_t>(last - 1) * args.inner.d + column] : x[i];
  }
  UNROLL for (int k = 0; k < kScatterElements; ++k) {
    const uint32_t i = scatter_item(k);
    if (i < args.total) y[i] = value[k];
  }
}

// Calls link(index of the update, number of the next update in its list).
template <class Link>
DEVICE void link_updates(const ScatterLinkArgs& args, const Link& link) {
  const int32_t* narrow = args.index;
  const int64_t* wide = args.index;
  uint32_t* first = args.first;
  const uint32_t i = work_item(kScatterThreads);
  if (i >= args.count) return;
  uint32_t target = 0;
  bool inside = true;
  if (args.tuple == 0) {
    int64_t at = args.narrow != 0 ? narrow[i] : wide[i];
    at = at < 0 ? at + args.sizes[0] : at;
    inside = at >= 0 && at < args.sizes[0];
    target = offset_of(i, args.axes, args.strides) +
             static_cast<uint32_t>(at) * static_cast<uint32_t>(args.axis_stride);
  } else {
    const int64_t* tuple = wide + static_cast<size_t>(i) * static_cast<size_t>(args.tuple);
    UNROLL for (int j = 0; j < kMaxAxes; ++j) {
      if (j >= args.tuple) break;
      int64_t at = tuple[j];
      at = at < 0 ? at + args.sizes[j] : at;
      inside = inside && at >= 0 && at < args.sizes[j];
      target += static_cast<uint32_t>(at) * static_cast<uint32_t>(args.strides.s[j]);
    }
  }
  if (inside) link(i, atomic_exchange(first + target, i + 1));
}

template <class T>
DEVICE void link_scalars(const ScatterLinkArgs& args) {
  const T* given = args.updates;
  ScatterLinked<T>* next = args.next;
  link_updates(args, [&](uint32_t i, uint32_t after) { next[i] = ScatterLinked<T>{given[i], after}; });
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

KERNEL(scatter_clear, kScatterThreads, ScatterClearArgs, first) {
  uint32_t* first = args.first;
  const uint32_t i = kScatterElements * work_item(kScatterThreads);
  if (i + kScatterElements <= args.targets) {
    *reinterpret_cast<Vec<uint32_t>*>(first + i) = {};
  } else {
    NO_UNROLL for (uint32_t j = i; j < args.targets; ++j) first[j] = 0;
  }
}

KERNEL(scatter_link, kScatterThreads, ScatterLinkArgs, index, updates, first, next) {
  uint32_t* next = args.next;
  link_updates(args, [&](uint32_t i, uint32_t after) { next[i] = after; });
}

BITS_KERNELS(scatter_link_scalars, link_scalars<T>, kScatterThreads, ScatterLinkArgs, index, updates, first,
             next)

KERNEL_OF(scatter_take_b8, scatter_take<uint8_t>, kScatterThreads, ScatterApplyArgs, x, updates, first, next,
          y)
KERNEL_OF(scatter_take_b16, scatter_take<uint16_t>, kScatterThreads, ScatterApplyArgs, x, updates, first,
          next, y)
KERNEL_OF(scatter_take_b32, scatter_take<uint32_t>, kScatterThreads, ScatterApplyArgs, x, updates, first,
          next, y)
KERNEL_OF(scatter_take_b128, scatter_take<Bits128>, kScatterThreads, ScatterApplyArgs, x, updates, first,
          next, y)

FLOAT_KERNELS(scatter_reduce, (scatter_reduce<T, false>), kScatterThreads, ScatterApplyArgs, x, updates,
              first, next, y)
KERNEL_OF(scatter_reduce_u8, (scatter_reduce<uint8_t, false>), kScatterThreads, ScatterApplyArgs, x, updates,
          first, next, y)
KERNEL_OF(scatter_reduce_i8, (scatter_reduce<int8_t, false>), kScatterThreads, ScatterApplyArgs, x, updates,
          first, next, y)
KERNEL_OF(scatter_reduce_i32, (scatter_reduce<int32_t, false>), kScatterThreads, ScatterApplyArgs, x, updates,
          first, next, y)
KERNEL_OF(scatter_reduce_i64, (scatter_reduce<int64_t, false>), kScatterThreads, ScatterApplyArgs, x, updates,
          first, next, y)
// As many work-groups share a compute unit as is possible without register spills.
FLOAT_KERNELS(scatter_reduce_scalars, (scatter_reduce<T, true>), LaunchBounds(kScatterThreads, 6),
              ScatterApplyArgs, x, updates, first, next, y)
KERNEL_OF(scatter_reduce_scalars_u8, (scatter_reduce<uint8_t, true>), LaunchBounds(kScatterThreads, 6),
          ScatterApplyArgs, x, updates, first, next, y)
KERNEL_OF(scatter_reduce_scalars_i8, (scatter_reduce<int8_t, true>), LaunchBounds(kScatterThreads, 6),
          ScatterApplyArgs, x, updates, first, next, y)
KERNEL_OF(scatter_reduce_scalars_i32, (scatter_reduce<int32_t, true>), LaunchBounds(kScatterThreads, 6),
          ScatterApplyArgs, x, updates, first, next, y)
KERNEL_OF(scatter_reduce_scalars_i64, (scatter_reduce<int64_t, true>), LaunchBounds(kScatterThreads, 4),
          ScatterApplyArgs, x, updates, first, next, y)
