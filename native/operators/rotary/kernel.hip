// RotaryEmbedding and FusedRotary[Interleaved]. Bound by memory: a work-item turns one number; the other of its
// pair comes from a cache. A position that is out of range gives zeros, where other devices can raise an error.
#include "blocks/gpu/rotary.h"
#include "device/platform.h"
#include "operators/rotary/args.h"

namespace graphopt::hip {

template <class T>
DEVICE void rotary(const RotaryArgs& args) {
  const T *x = args.x, *cos = args.cos, *sin = args.sin;
  const int64_t* ids = args.ids;
  T* y = args.y;
  const uint32_t i = work_item(kRotaryThreads);
  if (i >= args.total) return;
  const uint32_t vector = divide(i, args.head), at = i - vector * args.head.d;
  const uint32_t across = divide(vector, args.columns), column = vector - across * args.columns.d;
  const uint32_t b = divide(across, args.rows), row = across - b * args.rows.d;
  const bool inside = args.tokens_inside != 0;
  const uint32_t token = inside ? column : row, tokens = inside ? args.columns.d : args.rows.d;
  const size_t number = static_cast<size_t>(b) * tokens + token;
  const int64_t position = ids == nullptr     ? static_cast<int64_t>(number)
                           : args.one_id != 0 ? ids[0] + token
                                              : ids[number];
  if (position < 0 || position >= args.positions) {
    y[i] = from_float<T>(0.0f);
    return;
  }
  const size_t angle = static_cast<size_t>(position) * static_cast<size_t>(args.half);
  const T* head = x + (i - at);
  y[i] = from_float<T>(rotated([&](int h) { return to_float(head[h]); }, static_cast<int>(at), args.half,
                               args.interleaved != 0, cos + angle, sin + angle));
}

template <class T>
DEVICE void fused_rotary(const FusedRotaryArgs& args) {
  const T *x = args.x, *cos = args.cos, *sin = args.sin;
  T* y = args.y;
  const uint32_t i = work_item(kRotaryThreads);
  if (i >= args.total) return;
  const uint32_t row = divide(i, args.D), at = i - row * args.D.d;
  const uint32_t across = divide(row, args.n2), i2 = row - across * args.n2.d;
  const uint32_t i0 = divide(across, args.n1), i1 = across - i0 * args.n1.d;
  const auto of = [&](const uint32_t (&steps)[3]) { return i0 * steps[0] + i1 * steps[1] + i2 * steps[2]; };
  const uint32_t half = args.D.d / 2;
  const bool beside = args.interleaved != 0, second = beside ? at % 2 != 0 : at >= half;
  const uint32_t other = beside ? at ^ 1u : second ? at - half : at + half;
  const T* from = x + of(args.x_steps);
  const float turned = to_float(from[other]);
  y[i] = from_float<T>(to_float(from[at]) * to_float(cos[of(args.cos_steps) + at]) +
                       (second ? turned : -turned) * to_float(sin[of(args.sin_steps) + at]));
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

KERNEL(rotary_f32, kRotaryThreads, RotaryArgs, x, ids, cos, sin, y) { rotary<float>(args); }
KERNEL(rotary_f16, kRotaryThreads, RotaryArgs, x, ids, cos, sin, y) { rotary<half_t>(args); }
KERNEL(fused_rotary_f32, kRotaryThreads, FusedRotaryArgs, x, cos, sin, y) { fused_rotary<float>(args); }
KERNEL(fused_rotary_f16, kRotaryThreads, FusedRotaryArgs, x, cos, sin, y) { fused_rotary<half_t>(args); }
