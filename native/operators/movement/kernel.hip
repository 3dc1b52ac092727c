// Copies between tensors with any strides (Transpose, Slice, Concat, Split, Expand), and Pad.
//
// Bound by memory: each element is read once and written once. The element is the widest that all strides
// allow, up to 16 bytes, whatever the tensor's type is (operators/movement/plan.cpp). scripts/gpu_bench.py
// sets transposes beside a copy.
#include "blocks/gpu/walk.h"
#include "device/platform.h"
#include "operators/movement/args.h"

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

template <class T>
DEVICE void pad(const PadArgs& args) {
  const T* x = args.x;
  T* y = args.y;
  const Axes& axes = args.axes;
  const uint32_t begin = static_cast<uint32_t>(block_x()) * (kCopyThreads * kCopyElements);
  T value[kCopyElements];
  UNROLL for (int k = 0; k < kCopyElements; ++k) {
    const uint32_t i = begin + static_cast<uint32_t>(k * kCopyThreads + thread_x());
    uint32_t rest = i;
    int32_t offset = 0;
    bool outside = false;
    UNROLL for (int axis = 0; axis < kMostAxes; ++axis) {
      if (axis >= args.rank) break;
      uint32_t next = 0, here = rest;
      if (axis < kMostAxes - 1) {
        next = divide(rest, axes.inner[axis]);
        here = rest - next * axes.inner[axis].d;
      }
      rest = next;
      int32_t at = static_cast<int32_t>(here) - args.before.d[axis];
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
      outside = outside || at < 0 || at > last;
      offset += at * args.x_strides.s[axis];
    }
    value[k] = static_cast<T>(args.value);
    if (i < args.total && !outside) value[k] = x[args.x_offset + static_cast<uint32_t>(offset)];
  }
  UNROLL for (int k = 0; k < kCopyElements; ++k) {
    const uint32_t i = begin + static_cast<uint32_t>(k * kCopyThreads + thread_x());
    if (i < args.total) y[i] = value[k];
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define STRIDED_COPY_KERNEL(T, suffix) \
  KERNEL(strided_copy_##suffix, kCopyThreads, StridedCopyArgs, x, y) { strided_copy<T>(args); }

STRIDED_COPY_KERNEL(uint8_t, b8)
STRIDED_COPY_KERNEL(uint16_t, b16)
STRIDED_COPY_KERNEL(uint32_t, b32)
STRIDED_COPY_KERNEL(Bits128, b128)

#define PAD_KERNEL(T, suffix) \
  KERNEL(pad_##suffix, kCopyThreads, PadArgs, x, y) { pad<T>(args); }

PAD_KERNEL(uint8_t, b8)
PAD_KERNEL(uint16_t, b16)
PAD_KERNEL(uint32_t, b32)
PAD_KERNEL(uint64_t, b64)
