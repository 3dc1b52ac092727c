// RotaryEmbedding and FusedRotary[Interleaved]. Memory-bound: a work-item rotates one element, or kRotaryTogether
// adjacent ones. Each element of X is read twice: for its own rotation and for that of its pair partner. The second
// read hits the GPU's cache. A position out of range gives zeros; ONNX Runtime's CPU kernel can raise an error.
#include "blocks/gpu/rotary.h"
#include "operators/attention/rotary/args.h"

namespace graphopt::hip {

// Returns kWidth rotated elements of a head, from index `at` on.
template <class T, int kWidth>
DEVICE Vec<T, kWidth> rotated_at(const T* x, uint32_t at, uint32_t half, bool beside,
                                 const Vec<T, kWidth>& cos, const Vec<T, kWidth>& sin) {
  const auto own = to_floats(load_vec<kWidth>(x + at)),
             partners = to_floats(load_vec<kWidth>(x + first_partner<kWidth>(at, half, beside)));
  return from_floats<T>(rotated(own, partners, at, half, beside, cos, sin));
}

template <class T, int kWidth>
DEVICE void rotary(const RotaryArgs& args) {
  const T *x = args.x, *cos = args.cos, *sin = args.sin;
  const int64_t* ids = args.ids;
  T* y = args.y;
  const uint32_t i = work_item(kRotaryThreads) * kWidth;
  if (i >= args.total) return;
  const uint32_t vector = divide(i, args.head), at = i - vector * args.head.d;
  const uint32_t outer = divide(vector, args.columns), column = vector - outer * args.columns.d;
  const uint32_t b = divide(outer, args.rows), row = outer - b * args.rows.d;
  const bool of_columns = args.columns_are_tokens != 0, beside = args.interleaved != 0;
  const uint32_t token = of_columns ? column : row, tokens = of_columns ? args.columns.d : args.rows.d;
  const size_t index = static_cast<size_t>(b) * tokens + token;
  const int64_t position = ids == nullptr     ? static_cast<int64_t>(index)
                           : args.one_id != 0 ? ids[0] + token
                                              : ids[index];
  const auto half = static_cast<uint32_t>(args.half);
  Vec<T, kWidth> out;
  if (position < 0 || position >= args.positions) {
    UNROLL for (int w = 0; w < kWidth; ++w) out.v[w] = from_float<T>(0.0f);
  } else if (at >= 2 * half) {
    out = load_vec<kWidth>(x + i);
  } else {
    const size_t angle = static_cast<size_t>(position) * half;
    out = rotated_at(x + (i - at), at, half, beside, load_angles<kWidth>(cos + angle, at, half, beside),
                     load_angles<kWidth>(sin + angle, at, half, beside));
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
  const uint32_t outer = divide(row, args.n2), i2 = row - outer * args.n2.d;
  const uint32_t i0 = divide(outer, args.n1), i1 = outer - i0 * args.n1.d;
  const auto offset = [&](const uint32_t (&s)[3]) { return i0 * s[0] + i1 * s[1] + i2 * s[2]; };
  store_vec(y + i, rotated_at(x + offset(args.x_strides), at, args.D.d / 2, args.interleaved != 0,
                              load_vec<kWidth>(cos + offset(args.cos_strides) + at),
                              load_vec<kWidth>(sin + offset(args.sin_strides) + at)));
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(rotary, (rotary<T, 1>), kRotaryThreads, RotaryArgs, x, ids, cos, sin, y)
FLOAT_KERNELS(rotary_together, (rotary<T, kRotaryTogether>), kRotaryThreads, RotaryArgs, x, ids, cos, sin, y)
FLOAT_KERNELS(fused_rotary, (fused_rotary<T, 1>), kRotaryThreads, FusedRotaryArgs, x, cos, sin, y)
FLOAT_KERNELS(fused_rotary_together, (fused_rotary<T, kRotaryTogether>), kRotaryThreads, FusedRotaryArgs, x,
              cos, sin, y)
