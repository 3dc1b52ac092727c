// Comparisons, logic and tests such as IsNaN, with numpy broadcasting. Each result is a bool of one byte.
//
// Bound by memory: inputs are read once. Wherever the innermost axis allows it, a work-item reads 16 bytes of
// each input and writes its results with one store.
#include "blocks/gpu/operands.h"
#include "device/platform.h"
#include "operators/elementwise/logic/args.h"

namespace graphopt::hip {

// Converts to values that a signed comparison orders correctly: unsigned 0 becomes the least signed integer.
DEVICE float comparable(half_t x, bool) { return to_float(x); }
DEVICE float comparable(float x, bool) { return x; }
template <class T>
DEVICE T comparable(T x, bool is_unsigned) {
  constexpr int kSign = 8 * sizeof(T) - 1;
  return static_cast<T>(x ^ static_cast<T>(uint64_t{is_unsigned} << kSign));
}

DEVICE bool is_positive_inf(float x) { return x > 3.40282347e+38f; }
DEVICE bool is_negative_inf(float x) { return x < -3.40282347e+38f; }

// truth[j] = op(x[j], z[j]). The operation is the same for all work-items, so a work-item branches once for its kCount
// values. Comparisons with NaN are false, as in IEEE 754.
template <int kCount, class C>
DEVICE void decide(LogicOp op, const C (&x)[kCount], const C (&z)[kCount], uint8_t (&truth)[kCount]) {
  constexpr C kZero = 0;
  switch (op) {
    ELEMENTWISE_CASE(truth, LogicOp::kEqual, v == w)
    ELEMENTWISE_CASE(truth, LogicOp::kLess, v < w)
    ELEMENTWISE_CASE(truth, LogicOp::kLessOrEqual, v <= w)
    ELEMENTWISE_CASE(truth, LogicOp::kGreater, v > w)
    ELEMENTWISE_CASE(truth, LogicOp::kGreaterOrEqual, v >= w)
    ELEMENTWISE_CASE(truth, LogicOp::kAnd, v != kZero && w != kZero)
    ELEMENTWISE_CASE(truth, LogicOp::kOr, v != kZero || w != kZero)
    ELEMENTWISE_CASE(truth, LogicOp::kXor, (v != kZero) != (w != kZero))
    ELEMENTWISE_CASE(truth, LogicOp::kNot, v == kZero)
    ELEMENTWISE_CASE(truth, LogicOp::kIsNaN, v != v)
    ELEMENTWISE_CASE(truth, LogicOp::kIsInf,
                     is_positive_inf(static_cast<float>(v)) || is_negative_inf(static_cast<float>(v)))
    ELEMENTWISE_CASE(truth, LogicOp::kIsPositiveInf, is_positive_inf(static_cast<float>(v)))
    ELEMENTWISE_CASE(truth, LogicOp::kIsNegativeInf, is_negative_inf(static_cast<float>(v)))
  }
}

template <class T>
DEVICE void logic(const LogicArgs& args) {
  using C = decltype(comparable(T(), false));
  const bool is_unsigned = args.is_unsigned != 0;
  map_operands<kLogicThreads, T, uint8_t>(
      args, [&](T x) { return comparable(x, is_unsigned); },
      [&](uint32_t, const auto& left, const auto& right, auto& results) {
        constexpr int kCount = sizeof left / sizeof(C);
        // On GCN, a truth value occupies two scalar registers until it is converted to a byte. There are too few
        // registers for 16 truth values.
        constexpr int kPart = kCount < 8 ? kCount : 8;
        UNROLL for (int begin = 0; begin < kCount; begin += kPart) {
          C x[kPart], z[kPart];
          uint8_t truth[kPart] = {};
          UNROLL for (int j = 0; j < kPart; ++j) {
            x[j] = left[begin + j];
            z[j] = right[begin + j];
          }
          decide(args.op, x, z, truth);
          UNROLL for (int j = 0; j < kPart; ++j) results[begin + j] = truth[j];
        }
      });
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(logic, logic<T>, kLogicThreads, LogicArgs, a, b, y)
KERNEL_OF(logic_i8, logic<int8_t>, kLogicThreads, LogicArgs, a, b, y)
KERNEL_OF(logic_i16, logic<int16_t>, kLogicThreads, LogicArgs, a, b, y)
KERNEL_OF(logic_i32, logic<int32_t>, kLogicThreads, LogicArgs, a, b, y)
KERNEL_OF(logic_i64, logic<int64_t>, kLogicThreads, LogicArgs, a, b, y)
