// RotaryEmbedding and FusedRotary[Interleaved]. Memory-bound: a work-item rotates one element, or kRotaryTogether
// adjacent ones. Each element of X is read twice, for itself and as the pair partner of another element; the second
// read hits the GPU's cache. A position out of range gives zeros; on other devices it can raise an error.
#include "blocks/gpu/vec.h"
#include "device/platform.h"
#include "operators/attention/rotary/args.h"

namespace graphopt::hip {

// Returns kWidth adjacent elements of a head from index `at` on, rotated by their cos and sin. `beside`: the elements
// of a pair are adjacent, else they are `half` apart.
template <class T, int kWidth>
DEVICE Vec<T, kWidth> rotated(const T* x, uint32_t at, uint32_t half, bool beside, const Vec<T, kWidth>& cos,
                              const Vec<T, kWidth>& sin) {
  const uint32_t other = beside ? (kWidth > 1 ? at : at ^ 1u) : at < half ? at + half : at - half;
  const auto own = load_vec<kWidth>(x + at), partners = load_vec<kWidth>(x + other);
  constexpr uint32_t kBeside = kWidth > 1 ? 1 : 0;  // distance of the two elements of a pair in `partners`
  Vec<T, kWidth> y;
  UNROLL for (uint32_t w = 0; w < kWidth; ++w) {
    const bool second = beside ? (at + w) % 2 != 0 : at >= half;
    const float next = to_float(partners.v[w ^ kBeside]), same = to_float(partners.v[w]);
    const float b = beside ? next : same;
    y.v[w] = from_float<T>(to_float(own.v[w]) * to_float(cos.v[w]) + (second ? b : -b) * to_float(sin.v[w]));
  }
  return y;
}

template <class T, int kWidth>
DEVICE void rotary(const RotaryArgs& args) {
  const T *x = args.x, *cos = args.cos, *sin = args.sin;
  const int64_t* ids = args.ids;
  T* y = args.y;
  const uint32_t i = work_item(kRotaryThreads) * kWidth;
  if (i >= args.total) return;
  const uint32_t vector = divide(i, args.head), at = i - vector * args.head.d;
  const uint32_t across = divide(vector, args.columns), column = vector - across * args.columns.d;
  const uint32_t b = divide(across, args.rows), row = across - b * args.rows.d;
  const bool inside = args.tokens_inside != 0, beside = args.interleaved != 0;
  const uint32_t token = inside ? column : row, tokens = inside ? args.columns.d : args.rows.d;
  const size_t number = static_cast<size_t>(b) * tokens + token;
  const int64_t position = ids == nullptr     ? static_cast<int64_t>(number)
                           : args.one_id != 0 ? ids[0] + token
                                              : ids[number];
  const auto half = static_cast<uint32_t>(args.half);
  Vec<T, kWidth> out;
  if (position < 0 || position >= args.positions) {
    UNROLL for (int w = 0; w < kWidth; ++w) out.v[w] = from_float<T>(0.0f);
  } else if (at >= 2 * half) {
    out = load_vec<kWidth>(x + i);
  } else {
    const uint32_t in_half = at < half ? at : at - half;
    const size_t angle = static_cast<size_t>(position) * half + (beside ? at / 2 : in_half);
    Vec<T, kWidth> c, s;
    UNROLL for (uint32_t w = 0; w < kWidth; ++w) {
      c.v[w] = cos[angle + (beside ? w / 2 : w)];
      s.v[w] = sin[angle + (beside ? w / 2 : w)];
    }
    out = rotated<T, kWidth>(x + (i - at), at, half, beside, c, s);
  }
  store_vec(y + i, out);
}

template <class T, int kWidth>
DEVICE void fused_rotary(const FusedRotaryArgs& args) {
  const T *x = args.x, *cos = args.cos, *sin = args.sin;
  T* y = args.y;
  const uint32_t i = work_item(kRotaryThreads) * kWidth;
  if (i >= args.total) return;
  const uint32_t row = divide(i, args.D), at = i - row * args.D.d;
  const uint32_t across = divide(row, args.n2), i2 = row - across * args.n2.d;
  const uint32_t i0 = divide(across, args.n1), i1 = across - i0 * args.n1.d;
  const auto of = [&](const uint32_t (&steps)[3]) { return i0 * steps[0] + i1 * steps[1] + i2 * steps[2]; };
  store_vec(y + i, rotated<T, kWidth>(x + of(args.x_steps), at, args.D.d / 2, args.interleaved != 0,
                                      load_vec<kWidth>(cos + of(args.cos_steps) + at),
                                      load_vec<kWidth>(sin + of(args.sin_steps) + at)));
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(rotary, (rotary<T, 1>), kRotaryThreads, RotaryArgs, x, ids, cos, sin, y)
FLOAT_KERNELS(rotary_together, (rotary<T, kRotaryTogether>), kRotaryThreads, RotaryArgs, x, ids, cos, sin, y)
FLOAT_KERNELS(fused_rotary, (fused_rotary<T, 1>), kRotaryThreads, FusedRotaryArgs, x, cos, sin, y)
FLOAT_KERNELS(fused_rotary_together, (fused_rotary<T, kRotaryTogether>), kRotaryThreads, FusedRotaryArgs, x,
              cos, sin, y)
