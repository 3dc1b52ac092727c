// ScaleShift[Add][act]: y = act(x scale[c] + shift[c] + r).
//
// Bound by memory: X (and R) are read once and Y is written once; 2 FLOPs an element besides the activation.
// A work-group handles kTile consecutive elements, 16 bytes a work-item: more of them would leave too few
// work-groups for one image. docs/measurements/gpu_h200.md sets it beside a copy. Launch:
// operators/scale_shift/plan.cpp.
#include "blocks/gpu/activation.h"
#include "device/platform.h"
#include "operators/scale_shift/args.h"

namespace graphopt::hip {

template <class T>
DEVICE void scale_shift(const ScaleShiftArgs& args) {
  const T *x = args.x, *scale = args.scale, *shift = args.shift, *residual = args.residual;
  T* y = args.y;
  const Divisor &inner = args.inner, &channels = args.channels;
  constexpr int kSize = Pack<T>::kSize;
  constexpr uint32_t kTile = kScaleShiftThreads * kSize;
  const auto channel_of = [&](uint32_t plane) {
    const uint32_t c = plane - divide(plane, channels) * channels.d + args.first_channel;
    return c < channels.d ? c : c - channels.d;
  };
  const uint32_t begin = static_cast<uint32_t>(block_x()) * kTile;

  if (args.vectors != 0 && args.total - begin >= kTile) {
    const uint32_t i = begin + static_cast<uint32_t>(thread_x()) * kSize;
    const Pack<T> in = load_pack(x + i);
    Pack<T> add = {};
    if (residual != nullptr) add = load_pack(residual + i);
    const uint32_t plane = divide(i, inner);
    uint32_t offset = i - plane * inner.d;
    uint32_t c = channel_of(plane);
    float a = to_float(scale[c]), b = to_float(shift[c]);
    float value[kSize];
    if (inner.d % kSize == 0) {  // the whole vector is of one channel
      UNROLL for (int j = 0; j < kSize; ++j) value[j] = to_float(in.v[j]) * a + b;
    } else {
      UNROLL for (int j = 0; j < kSize; ++j) {
        if (offset == inner.d) {
          offset = 0;
          c = c + 1 == channels.d ? 0 : c + 1;
          a = to_float(scale[c]);
          b = to_float(shift[c]);
        }
        value[j] = to_float(in.v[j]) * a + b;
        ++offset;
      }
    }
    if (residual != nullptr) {
      UNROLL for (int j = 0; j < kSize; ++j) value[j] += to_float(add.v[j]);
    }
    activate(args.act, value);
    Pack<T> out;
    UNROLL for (int j = 0; j < kSize; ++j) out.v[j] = from_float<T>(value[j]);
    store_pack(y + i, out);
    return;
  }

  const uint32_t end = args.total - begin < kTile ? args.total : begin + kTile;
  for (uint32_t i = begin + static_cast<uint32_t>(thread_x()); i < end; i += kScaleShiftThreads) {
    const uint32_t c = channel_of(divide(i, inner));
    float value[1] = {to_float(x[i]) * to_float(scale[c]) + to_float(shift[c])};
    if (residual != nullptr) value[0] += to_float(residual[i]);
    activate(args.act, value);
    y[i] = from_float<T>(value[0]);
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

KERNEL(scale_shift_f32, kScaleShiftThreads, ScaleShiftArgs, x, scale, shift, residual, y) {
  scale_shift<float>(args);
}

KERNEL(scale_shift_f16, kScaleShiftThreads, ScaleShiftArgs, x, scale, shift, residual, y) {
  scale_shift<half_t>(args);
}
