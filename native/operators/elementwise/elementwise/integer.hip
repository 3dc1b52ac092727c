// Element-wise operators of integers with numpy broadcasting, with one kernel for each width of an element.
//
// Bound by memory, like elementwise_*: a work-item accesses 16 bytes per instruction wherever the innermost
// axis allows it. Arithmetic uses 64 bits and wraps around. A division by zero gives 0, whereas a CPU's
// division instruction would end the process.
#include "blocks/gpu/operands.h"
#include "device/platform.h"
#include "operators/elementwise/elementwise/integer_args.h"

namespace graphopt::hip {

// Extends an integer to 64 bits, signed or unsigned.
template <class T>
DEVICE int64_t widen(T bits, bool is_signed) {
  constexpr int kFree = 64 - 8 * static_cast<int>(sizeof(T));
  const uint64_t high = static_cast<uint64_t>(bits) << kFree;
  return is_signed ? static_cast<int64_t>(high) >> kFree : static_cast<int64_t>(high >> kFree);
}

DEVICE int64_t add_wrapping(int64_t v, int64_t w) {
  return static_cast<int64_t>(static_cast<uint64_t>(v) + static_cast<uint64_t>(w));
}
DEVICE int64_t negative(int64_t v) { return static_cast<int64_t>(uint64_t{0} - static_cast<uint64_t>(v)); }
DEVICE int64_t quotient(int64_t v, int64_t w, bool is_uint64) {
  if (w == 0) return 0;
  if (is_uint64) return static_cast<int64_t>(static_cast<uint64_t>(v) / static_cast<uint64_t>(w));
  return w == -1 ? negative(v) : v / w;
}

// Shifts v by w. If w is outside of [0, bits), the result is 0, but -1 for a right shift of a negative v.
DEVICE int64_t shifted(int64_t v, int64_t w, int bits, bool left, bool is_uint64) {
  const bool out = w < 0 || w >= bits;
  if (left) return out ? 0 : static_cast<int64_t>(static_cast<uint64_t>(v) << w);
  if (is_uint64) return out ? 0 : static_cast<int64_t>(static_cast<uint64_t>(v) >> w);
  return v >> (out ? 63 : w);
}

DEVICE bool is_less(int64_t v, int64_t w, bool is_uint64) {
  return is_uint64 ? static_cast<uint64_t>(v) < static_cast<uint64_t>(w) : v < w;
}

// If low > high, the result is high.
DEVICE int64_t limited(int64_t v, int64_t low, int64_t high, bool is_uint64) {
  const int64_t least = is_less(v, low, is_uint64) ? low : v;
  return is_less(high, least, is_uint64) ? high : least;
}

// x[j] = op(x[j], z[j]). The operation is the same for all work-items, so a work-item branches once for its kCount
// values. kWhere selects x[j] if bit j of the mask is set, else z[j].
template <int kBits, int kCount>
DEVICE void compute(const IntegerElementwiseArgs& args, uint32_t mask, int64_t (&x)[kCount],
                    const int64_t (&z)[kCount]) {
  const bool is_uint64 = kBits == 64 && args.is_signed == 0;  // the only type with values outside of int64
  switch (args.op) {
    ELEMENTWISE_CASE(x, IntegerOp::kNeg, negative(v))
    ELEMENTWISE_CASE(x, IntegerOp::kAbs, v < 0 && !is_uint64 ? negative(v) : v)
    ELEMENTWISE_CASE(x, IntegerOp::kNot, ~v)
    ELEMENTWISE_CASE(x, IntegerOp::kAdd, add_wrapping(v, w))
    ELEMENTWISE_CASE(x, IntegerOp::kSub, add_wrapping(v, negative(w)))
    ELEMENTWISE_CASE(x, IntegerOp::kMul,
                     static_cast<int64_t>(static_cast<uint64_t>(v) * static_cast<uint64_t>(w)))
    ELEMENTWISE_CASE(x, IntegerOp::kMax, is_less(w, v, is_uint64) ? v : w)
    ELEMENTWISE_CASE(x, IntegerOp::kMin, is_less(v, w, is_uint64) ? v : w)
    ELEMENTWISE_CASE(x, IntegerOp::kAnd, v & w)
    ELEMENTWISE_CASE(x, IntegerOp::kOr, v | w)
    ELEMENTWISE_CASE(x, IntegerOp::kXor, v ^ w)
    ELEMENTWISE_CASE(x, IntegerOp::kShiftLeft, shifted(v, w, kBits, true, is_uint64))
    ELEMENTWISE_CASE(x, IntegerOp::kShiftRight, shifted(v, w, kBits, false, is_uint64))
    ELEMENTWISE_CASE(x, IntegerOp::kWhere, (mask >> j & 1) != 0 ? v : w)
    ELEMENTWISE_CASE(x, IntegerOp::kClip, limited(v, args.low, args.high, is_uint64))
    // Division compiles to long code, so three operations share it.
    case IntegerOp::kDiv:
    case IntegerOp::kMod:
    case IntegerOp::kFmod:
      UNROLL for (int j = 0; j < kCount; ++j) {
        const int64_t v = x[j], w = z[j], q = quotient(v, w, is_uint64);
        const int64_t r = w == 0 ? 0
                                 : add_wrapping(v, negative(static_cast<int64_t>(static_cast<uint64_t>(q) *
                                                                                 static_cast<uint64_t>(w))));
        const bool adjusts = args.op == IntegerOp::kMod && !is_uint64 && r != 0 && (r < 0) != (w < 0);
        x[j] = args.op == IntegerOp::kDiv ? q : adjusts ? r + w : r;
        keep_order();
      }
      break;
  }
}

template <class T>
DEVICE void integer_elementwise(const IntegerElementwiseArgs& args) {
  const bool is_signed = args.is_signed != 0;
  map_operands<kIntegerElementwiseThreads, T, T>(
      args, [&](uint32_t i, const auto& left, const auto& right, auto& results) {
        constexpr int kCount = sizeof left / sizeof(T);
        const uint32_t mask = mask_bits<kCount>(args, i);
        // Computes at most four elements at a time: 16 elements of 64 bits would need too many registers.
        constexpr int kPart = kCount < 4 ? kCount : 4;
        UNROLL for (int begin = 0; begin < kCount; begin += kPart) {
          int64_t x[kPart], z[kPart];
          UNROLL for (int j = 0; j < kPart; ++j) {
            x[j] = widen(left[begin + j], is_signed);
            z[j] = widen(right[begin + j], is_signed);
          }
          compute<8 * static_cast<int>(sizeof(T))>(args, mask >> begin, x, z);
          UNROLL for (int j = 0; j < kPart; ++j) results[begin + j] = static_cast<T>(x[j]);
        }
      });
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

BITS_KERNELS(integer_elementwise, integer_elementwise<T>, kIntegerElementwiseThreads, IntegerElementwiseArgs,
             mask, a, b, y)
