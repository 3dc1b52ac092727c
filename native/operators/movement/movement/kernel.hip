// Copies between tensors with any strides (Transpose, Slice, Concat, Split, Expand), and Pad.
//
// Bound by memory: each element is read once and written once. If the strides and offsets of X and Y allow
// it, 16 bytes are copied at a time (operators/movement/movement/plan.cpp). If only Y allows it, a work-item
// computes the position in X of the first element of a 16-byte pack. It steps from there to the other elements, and
// writes the pack with one store. Computing each position separately would take longer than the memory accesses.
// scripts/gpu_bench.py compares both kernels with a copy.
#include "blocks/gpu/walk.h"
#include "device/platform.h"
#include "operators/movement/movement/args.h"

namespace graphopt::hip {

template <class T>
DEVICE void strided_copy(const StridedCopyArgs& args) {
  const T* x = args.x;
  T* y = args.y;
  const uint32_t begin = static_cast<uint32_t>(block_x()) * (kCopyThreads * kCopyElements);
  T value[kCopyElements];
  UNROLL for (int k = 0; k < kCopyElements; ++k) {
    const uint32_t i = begin + static_cast<uint32_t>(k * kCopyThreads + thread_x());
    if (i < args.total) value[k] = x[args.x_offset + offset_of(i, args.axes, args.x_strides)];
  }
  UNROLL for (int k = 0; k < kCopyElements; ++k) {
    const uint32_t i = begin + static_cast<uint32_t>(k * kCopyThreads + thread_x());
    if (i < args.total) y[args.y_offset + offset_of(i, args.axes, args.y_strides)] = value[k];
  }
}

// Writes Y in packs of consecutive elements, which may be anywhere in X.
template <class T>
DEVICE void strided_copy_to_packs(const StridedCopyArgs& args) {
  constexpr int kSize = Pack<T>::kSize;
  const uint32_t first = work_item(kCopyThreads) * kSize;
  const T* const x = args.x;
  T* const y = args.y;
  if (first + kSize <= args.total) {
    WalkPosition place(first, args.axes, args.x_strides);
    Pack<T> pack;
    if (args.x_strides.s[0] == 1 && place.at[0] + kSize <= args.axes.inner[0].d) {
      pack = load_pack_anywhere(x + (args.x_offset + place.offset));
    } else {
      UNROLL for (int j = 0; j < kSize; ++j) {
        pack.v[j] = x[args.x_offset + place.offset];
        if (j + 1 < kSize) place.advance(args.axes, args.x_strides);
      }
    }
    store_pack(y + args.y_offset + offset_of(first, args.axes, args.y_strides), pack);
    return;
  }
  NO_UNROLL for (uint32_t i = first; i < args.total; ++i) {
    y[args.y_offset + offset_of(i, args.axes, args.y_strides)] =
        x[args.x_offset + offset_of(i, args.axes, args.x_strides)];
  }
}

// An element of y, and the properties of its row along the innermost axis.
struct PadRow {
  int32_t here;     // position in the row
  uint32_t offset;  // offset of the row in x
  bool outside;     // the entire row is outside of x
};

// Returns the position along an axis of x that corresponds to position `here` of y. It is out of range if y has the pad
// value there.
DEVICE int32_t padded_place(const PadArgs& args, int axis, int32_t here) {
  int32_t at = here - args.before.d[axis];
  if (args.mode == PadMode::kConstant) return at;
  const int32_t last = args.x_dims.d[axis] - 1;
  if (args.mode == PadMode::kReflect) {
    at = at < 0 ? -at : at;
    at = at > last ? 2 * last - at : at;
  } else if (args.mode == PadMode::kEdge) {
    at = max_int(0, min_int(at, last));
  } else if (args.mode == PadMode::kWrap) {
    at %= last + 1;
    at += at < 0 ? last + 1 : 0;
  }
  return at;
}

DEVICE bool is_inside(const PadArgs& args, int axis, int32_t at) {
  return static_cast<uint32_t>(at) < static_cast<uint32_t>(args.x_dims.d[axis]);
}

DEVICE PadRow row_of(const PadArgs& args, uint32_t i) {
  uint32_t rest = divide(i, args.axes.inner[0]);
  PadRow row = {static_cast<int32_t>(i - rest * args.axes.inner[0].d), args.x_offset, false};
  UNROLL for (int axis = 1; axis < kMaxAxes; ++axis) {
    if (axis >= args.rank) break;
    uint32_t next = 0, here = rest;
    if (axis < kMaxAxes - 1) {
      next = divide(rest, args.axes.inner[axis]);
      here = rest - next * args.axes.inner[axis].d;
    }
    rest = next;
    const int32_t at = padded_place(args, axis, static_cast<int32_t>(here));
    row.outside = row.outside || !is_inside(args, axis, at);
    row.offset += static_cast<uint32_t>(at * args.x_strides.s[axis]);
  }
  return row;
}

template <class T>
DEVICE T padded(const PadArgs& args, const PadRow& row) {
  const int32_t at = padded_place(args, 0, row.here);
  T value = static_cast<T>(args.value);
  if (!row.outside && is_inside(args, 0, at)) {
    value = static_cast<const T*>(args.x)[row.offset + static_cast<uint32_t>(at)];
  }
  return value;
}

template <class T>
DEVICE void pad(const PadArgs& args) {
  constexpr int kSize = Pack<T>::kSize;
  const T* const x = args.x;
  T* const y = args.y;
  const bool uses_packs = args.uses_packs != 0;
  const auto thread = static_cast<uint32_t>(thread_x());
  const uint32_t first =
      static_cast<uint32_t>(block_x()) * (kCopyThreads * kSize) + (uses_packs ? thread * kSize : thread);
  if (!uses_packs || first + kSize > args.total) {
    NO_UNROLL for (uint32_t k = 0; k < kSize; ++k) {
      const uint32_t i = first + k * (uses_packs ? 1 : kCopyThreads);
      if (i < args.total) y[i] = padded<T>(args, row_of(args, i));
    }
    return;
  }
  // Rows are at least as long as a pack, so a pack spans at most two rows.
  const PadRow row = row_of(args, first);
  const int32_t left = static_cast<int32_t>(args.axes.inner[0].d) - row.here;
  const int32_t at = row.here - args.before.d[0];
  const T* const from = x + row.offset + static_cast<uint32_t>(at);
  Pack<T> pack;
  if (!row.outside && at >= 0 && at + kSize <= args.x_dims.d[0]) {
    pack = load_pack_anywhere(from);
  } else {
    const PadRow next = left < kSize ? row_of(args, first + static_cast<uint32_t>(left)) : row;
    UNROLL for (int j = 0; j < kSize; ++j) {
      PadRow here = j < left ? row : next;
      here.here = j < left ? row.here + j : j - left;
      pack.v[j] = padded<T>(args, here);
    }
  }
  store_pack(y + first, pack);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

BITS_KERNELS(strided_copy, strided_copy<T>, kCopyThreads, StridedCopyArgs, x, y)
KERNEL_OF(strided_copy_b128, strided_copy<Bits128>, kCopyThreads, StridedCopyArgs, x, y)

BITS_KERNELS(strided_copy_to_packs, strided_copy_to_packs<T>, kCopyThreads, StridedCopyArgs, x, y)

BITS_KERNELS(pad, pad<T>, kCopyThreads, PadArgs, x, y)
