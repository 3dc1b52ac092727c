// Comparisons, logic and questions about numbers with numpy broadcasting: truth values, a byte each.
//
// Bound by memory: inputs are read once, 16 bytes a work-item wherever the innermost axis allows it, and
// their bytes are written at once.
#include "blocks/gpu/walk.h"
#include "device/platform.h"
#include "operators/elementwise/logic/args.h"

namespace graphopt::hip {

// Numbers whose order is that of what their bits stand for: of unsigned ones 0 becomes the least signed number.
DEVICE float comparable(half_t x, bool) { return to_float(x); }
DEVICE float comparable(float x, bool) { return x; }
template <class T>
DEVICE T comparable(T x, bool is_unsigned) {
  constexpr int kSign = 8 * sizeof(T) - 1;
  return static_cast<T>(x ^ static_cast<T>(uint64_t{is_unsigned} << kSign));
}

DEVICE bool is_positive_inf(float x) { return x > 3.40282347e+38f; }
DEVICE bool is_negative_inf(float x) { return x < -3.40282347e+38f; }

// truth = op(x, z), the operator being the same in all lanes: one branch for all of a lane's values.
// Comparisons with NaN are false, as everywhere.
template <int kCount, class C>
DEVICE void decide(LogicOp op, const C (&x)[kCount], const C (&z)[kCount], uint8_t (&truth)[kCount]) {
  constexpr C kZero = 0;
#define GRAPHOPT_ON_EACH(op, expression)      \
  case LogicOp::op:                           \
    UNROLL for (int j = 0; j < kCount; ++j) { \
      const C v = x[j], w = z[j];             \
      (void)w;                                \
      truth[j] = (expression) ? 1 : 0;        \
    }                                         \
    break;
  switch (op) {
    GRAPHOPT_ON_EACH(kEqual, v == w)
    GRAPHOPT_ON_EACH(kLess, v < w)
    GRAPHOPT_ON_EACH(kLessOrEqual, v <= w)
    GRAPHOPT_ON_EACH(kGreater, v > w)
    GRAPHOPT_ON_EACH(kGreaterOrEqual, v >= w)
    GRAPHOPT_ON_EACH(kAnd, v != kZero && w != kZero)
    GRAPHOPT_ON_EACH(kOr, v != kZero || w != kZero)
    GRAPHOPT_ON_EACH(kXor, (v != kZero) != (w != kZero))
    GRAPHOPT_ON_EACH(kNot, v == kZero)
    GRAPHOPT_ON_EACH(kIsNaN, v != v)
    GRAPHOPT_ON_EACH(kIsInf, is_positive_inf(static_cast<float>(v)) || is_negative_inf(static_cast<float>(v)))
    GRAPHOPT_ON_EACH(kIsPositiveInf, is_positive_inf(static_cast<float>(v)))
    GRAPHOPT_ON_EACH(kIsNegativeInf, is_negative_inf(static_cast<float>(v)))
  }
#undef GRAPHOPT_ON_EACH
}

template <class T>
DEVICE void logic(const LogicArgs& args) {
  using C = decltype(comparable(T(), false));
  const bool is_unsigned = args.is_unsigned != 0;
  const T *a = args.a, *b = args.b;
  uint8_t* y = args.y;
  const Axes& axes = args.axes;
  constexpr int kSize = Pack<T>::kSize;
  if (args.vectors != 0) {
    const uint32_t i = work_item(kLogicThreads) * kSize;
    if (i >= args.total) return;
    const auto read = [&](const T* from, const Strides& strides, C(&to)[kSize]) {
      const uint32_t at = offset_of(i, axes, strides);
      if (strides.s[0] != 0) {
        const Pack<T> in = load_pack(from + at);
        UNROLL for (int j = 0; j < kSize; ++j) to[j] = comparable(in.v[j], is_unsigned);
      } else {
        const C one = comparable(from[at], is_unsigned);
        UNROLL for (int j = 0; j < kSize; ++j) to[j] = one;
      }
    };
    struct alignas(kSize) Truth {
      uint8_t v[kSize];
    };
    C x[kSize], z[kSize] = {};
    Truth out = {};
    read(a, args.a_strides, x);
    if (b != nullptr) read(b, args.b_strides, z);
    // A truth is two scalar registers before it is a byte, of which 16 are too many for GCN.
    constexpr int kPart = kSize < 8 ? kSize : 8;
    UNROLL for (int begin = 0; begin < kSize; begin += kPart) {
      C v[kPart], w[kPart];
      uint8_t truth[kPart] = {};
      UNROLL for (int j = 0; j < kPart; ++j) {
        v[j] = x[begin + j];
        w[j] = z[begin + j];
      }
      decide(args.op, v, w, truth);
      UNROLL for (int j = 0; j < kPart; ++j) out.v[begin + j] = truth[j];
    }
    *reinterpret_cast<Truth*>(y + i) = out;
    return;
  }
  const uint32_t begin = static_cast<uint32_t>(block_x()) * (kLogicThreads * kSize);
  NO_UNROLL for (int k = 0; k < kSize; ++k) {
    const uint32_t i = begin + static_cast<uint32_t>(k * kLogicThreads + thread_x());
    if (i >= args.total) return;
    const C x[1] = {comparable(a[offset_of(i, axes, args.a_strides)], is_unsigned)};
    const C z[1] = {b != nullptr ? comparable(b[offset_of(i, axes, args.b_strides)], is_unsigned) : C(0)};
    uint8_t truth[1] = {};
    decide(args.op, x, z, truth);
    y[i] = truth[0];
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

KERNEL(logic_f32, kLogicThreads, LogicArgs, a, b, y) { logic<float>(args); }
KERNEL(logic_f16, kLogicThreads, LogicArgs, a, b, y) { logic<half_t>(args); }
KERNEL(logic_i8, kLogicThreads, LogicArgs, a, b, y) { logic<int8_t>(args); }
KERNEL(logic_i16, kLogicThreads, LogicArgs, a, b, y) { logic<int16_t>(args); }
KERNEL(logic_i32, kLogicThreads, LogicArgs, a, b, y) { logic<int32_t>(args); }
KERNEL(logic_i64, kLogicThreads, LogicArgs, a, b, y) { logic<int64_t>(args); }
