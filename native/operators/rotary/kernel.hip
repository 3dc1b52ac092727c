// RotaryEmbedding. Bound by memory: a work-item turns one number; the other of its pair comes from a cache. A
// position that is out of range gives zeros, where other devices can raise an error.
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
  y[i] = from_float<T>(rotated(x + (i - at), static_cast<int>(at), args.half, args.interleaved != 0,
                               cos + angle, sin + angle));
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

KERNEL(rotary_f32, kRotaryThreads, RotaryArgs, x, ids, cos, sin, y) { rotary<float>(args); }
KERNEL(rotary_f16, kRotaryThreads, RotaryArgs, x, ids, cos, sin, y) { rotary<half_t>(args); }
