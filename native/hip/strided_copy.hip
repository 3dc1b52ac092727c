// Copies between tensors with any strides (Transpose, Slice, Concat, Split, Expand), and Pad.
//
// Bound by memory: each element is read once and written once. The element is the widest that all strides
// allow, up to 16 bytes, whatever the tensor's type is (gpu/strided_copy_plan.cpp). scripts/gpu_bench.py sets
// transposes beside a copy.
#include "hip/platform.h"
#include "hip/walk.h"

namespace graphopt::hip {

constexpr int kCopyThreads = 256;
constexpr int kCopyElements = 4;  // of a work-item

template <class T>
DEVICE void strided_copy(const T* x, T* y, uint32_t total, const Axes& axes, const Strides& x_strides,
                         const Strides& y_strides, uint32_t x_offset, uint32_t y_offset) {
  const uint32_t begin = static_cast<uint32_t>(block_x()) * (kCopyThreads * kCopyElements);
  T value[kCopyElements];
  UNROLL for (int k = 0; k < kCopyElements; ++k) {
    const uint32_t i = begin + static_cast<uint32_t>(k * kCopyThreads + thread_x());
    if (i < total) value[k] = x[x_offset + offset_of(i, axes, x_strides)];
  }
  UNROLL for (int k = 0; k < kCopyElements; ++k) {
    const uint32_t i = begin + static_cast<uint32_t>(k * kCopyThreads + thread_x());
    if (i < total) y[y_offset + offset_of(i, axes, y_strides)] = value[k];
  }
}

// From the innermost axis on.
struct PadAxes {
  int32_t d[5];
};

enum PadMode : int32_t { kPadConstant, kPadReflect, kPadEdge };

// y[i] = x[i - before], `value` or a value of x near it where there is none. `x_strides` are those of x.
template <class T>
DEVICE void pad(const T* x, T* y, uint32_t total, const Axes& axes, const Strides& x_strides,
                const PadAxes& before, const PadAxes& x_dims, uint32_t value, int32_t mode) {
  const uint32_t begin = static_cast<uint32_t>(block_x()) * (kCopyThreads * kCopyElements);
  for (int k = 0; k < kCopyElements; ++k) {
    const uint32_t i = begin + static_cast<uint32_t>(k * kCopyThreads + thread_x());
    if (i >= total) return;
    uint32_t rest = i;
    int32_t offset = 0;
    bool outside = false;
    UNROLL for (int axis = 0; axis < 5; ++axis) {
      uint32_t next = 0, here = rest;
      if (axis < 4) {
        next = divide(rest, axes.inner[axis]);
        here = rest - next * axes.inner[axis].d;
      }
      rest = next;
      int32_t at = static_cast<int32_t>(here) - before.d[axis];
      const int32_t last = x_dims.d[axis] - 1;
      if (mode == kPadReflect) {
        at = at < 0 ? -at : at;
        at = at > last ? 2 * last - at : at;
      } else if (mode == kPadEdge) {
        at = max_int(0, min_int(at, last));
      }
      outside = outside || at < 0 || at > last;
      offset += at * x_strides.s[axis];
    }
    y[i] = outside ? static_cast<T>(value) : x[offset];
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define STRIDED_COPY_KERNEL(T, suffix)                                                       \
  KERNEL(strided_copy_##suffix, kCopyThreads,                                                \
         (const T* x, T* y, uint32_t total, Axes axes, Strides x_strides, Strides y_strides, \
          uint32_t x_offset, uint32_t y_offset)) {                                           \
    strided_copy(x, y, total, axes, x_strides, y_strides, x_offset, y_offset);               \
  }

STRIDED_COPY_KERNEL(uint8_t, b8)
STRIDED_COPY_KERNEL(uint16_t, b16)
STRIDED_COPY_KERNEL(uint32_t, b32)
STRIDED_COPY_KERNEL(Bits128, b128)

#define PAD_KERNEL(T, suffix)                                                                             \
  KERNEL(pad_##suffix, kCopyThreads,                                                                      \
         (const T* x, T* y, uint32_t total, Axes axes, Strides x_strides, PadAxes before, PadAxes x_dims, \
          uint32_t value, int32_t mode)) {                                                                \
    pad(x, y, total, axes, x_strides, before, x_dims, value, mode);                                       \
  }

PAD_KERNEL(uint16_t, b16)
PAD_KERNEL(uint32_t, b32)
