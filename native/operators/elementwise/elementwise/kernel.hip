// Element-wise operators of one to three inputs with numpy broadcasting, in float32.
//
// Bound by memory: inputs are read once and Y is written once, for 1 to 30 FLOPs per element. A work-item
// accesses 16 bytes per instruction wherever the innermost axis allows it. The host merges axes that are
// contiguous in all inputs (operators/elementwise/elementwise/plan.cpp); most nodes then have one axis.
// scripts/gpu_bench.py compares Add with a copy.
#include "blocks/gpu/activation.h"
#include "blocks/gpu/operands.h"
#include "device/platform.h"
#include "operators/elementwise/elementwise/args.h"
#include "operators/elementwise/elementwise/operations.h"

namespace graphopt::hip {

DEVICE float absolute(float x) { return x < 0 ? -x : x; }

// Returns x to the power of y. Zeros, infinities and NaN give the results of pow in C. For the exponents -1,
// 0, 0.5, 1, 2 and 3 the only error is that of the multiplications, the square root or the division.
DEVICE float power(float x, float y) {
  if (y == 2.0f) return x * x;
  if (y == 3.0f) return x * x * x;
  if (y == 1.0f) return x;
  if (y == 0.0f) return 1.0f;
  if (y == 0.5f && x > 0) return sqrt_exact(x);
  if (y == -1.0f) return 1.0f / x;
  if (x == 1.0f) return 1.0f;
  const float abs_x = absolute(x);
  const float magnitude = abs_x == 1.0f            ? 1.0f
                          : abs_x == 0.0f && y > 0 ? 0.0f
                                                   : exp2_fast(y * log2_fast(abs_x));
  if (bit_cast<uint32_t>(x) >> 31 == 0) return magnitude;
  const float truncated = absolute(y) < 8388608.0f ? static_cast<float>(static_cast<int32_t>(y)) : y;
  if (truncated != y) return abs_x == 0.0f || abs_x == infinity() ? magnitude : (x - x) / (x - x);
  const bool odd = absolute(y) < 16777216.0f && (static_cast<int32_t>(y) & 1) != 0;
  return odd ? -magnitude : magnitude;
}

// log(1 + t) for t from -1/3 to 1 as 2 atanh(t / (2 + t)): this preserves the digits of small results, which
// 1 + t would round away.
DEVICE float log_one_plus(float t) {
  const float s = t * rcp_fast(2.0f + t), s2 = s * s;
  float p = 0.076923077f + s2 * 0.066666667f;
  p = 0.11111111f + s2 * (0.090909091f + s2 * p);
  p = 0.33333333f + s2 * (0.2f + s2 * (0.14285714f + s2 * p));
  return 2.0f * (s + s * (s2 * p));
}

// e^x - 1 for x < 0. Near 0 a Taylor polynomial preserves the digits that the subtraction would cancel.
DEVICE float exp_minus_one(float x) {
  float p = 0.0013888889f + x * 0.0001984127f;
  p = 0.041666667f + x * (0.0083333333f + x * p);
  p = 0.5f + x * (0.16666667f + x * p);
  return x > -0.5f ? x + x * (x * p) : exp_fast(x) - 1.0f;
}

// The exact remainder of x / y with the sign of x. x and y are integers of 24 bits times powers of two; a
// long division takes 40 binary digits of the quotient at a time.
DEVICE float remainder_towards_zero(float x, float y) {
  constexpr uint32_t kSign = 0x80000000;
  const uint32_t sign = bit_cast<uint32_t>(x) & kSign;
  const uint32_t a = bit_cast<uint32_t>(x) & ~kSign, b = bit_cast<uint32_t>(y) & ~kSign;
  constexpr uint32_t kInfinite = 0x7f800000, kOne = 0x800000;  // kOne: the implicit bit of the mantissa
  if (b == 0 || b > kInfinite || a >= kInfinite) return (x - x) / (y - y);
  if (a < b) return x;
  const auto mantissa = [](uint32_t bits) { return (bits & (kOne - 1)) | (bits < kOne ? 0 : kOne); };
  const auto exponent = [](uint32_t bits) { return bits < kOne ? 1 : static_cast<int32_t>(bits >> 23); };
  const uint32_t divisor = mantissa(b);
  uint32_t rest = mantissa(a) % divisor;
  NO_UNROLL for (int32_t left = exponent(a) - exponent(b); left > 0 && rest != 0; left -= 40) {
    rest = static_cast<uint32_t>((static_cast<uint64_t>(rest) << min_int(left, 40)) % divisor);
  }
  if (rest == 0) return bit_cast<float>(sign);
  // Converts to float: shifts the leading bit to kOne, or less far if the exponent would fall below 1 (subnormal).
  const int32_t missing = 150 - static_cast<int32_t>(bit_cast<uint32_t>(static_cast<float>(rest)) >> 23);
  const int32_t up = min_int(missing, exponent(b) - 1);
  const uint32_t moved = rest << up;
  const uint32_t found =
      moved < kOne ? moved : (moved & (kOne - 1)) | static_cast<uint32_t>(exponent(b) - up) << 23;
  return bit_cast<float>(found | sign);
}

// x[j] = op(x[j], z[j]). The operation is the same for all work-items, so a work-item branches once for its kCount
// values. kWhereOp selects x[j] if bit j of the mask is set, else z[j].
template <int kCount>
DEVICE void apply(const ElementwiseArgs& args, uint32_t mask, float (&x)[kCount], const float (&z)[kCount]) {
  const float p = args.p;
  switch (args.op) {
    ELEMENTWISE_CASE(x, kErfOp, erf_fast(v))
    ELEMENTWISE_CASE(x, kSoftplusOp, (v > 0 ? v : 0.0f) + log_one_plus(exp_fast(-absolute(v))))
    ELEMENTWISE_CASE(x, kExpOp, exp_fast(v))
    ELEMENTWISE_CASE(x, kLogOp,
                     absolute(v - 1.0f) < 0.33f ? log_one_plus(v - 1.0f) : 0.69314718f * log2_fast(v))
    ELEMENTWISE_CASE(x, kSqrtOp, sqrt_exact(v))
    ELEMENTWISE_CASE(x, kReciprocalOp, 1.0f / v)
    ELEMENTWISE_CASE(x, kNegOp, -v)
    ELEMENTWISE_CASE(x, kAbsOp, absolute(v))
    ELEMENTWISE_CASE(x, kEluOp, v < 0 ? p * exp_minus_one(v) : v)
    ELEMENTWISE_CASE(x, kAddOp, v + w)
    ELEMENTWISE_CASE(x, kSubOp, v - w)
    ELEMENTWISE_CASE(x, kMulOp, v * w)
    ELEMENTWISE_CASE(x, kDivOp, v / w)
    ELEMENTWISE_CASE(x, kPowOp, power(v, w))
    ELEMENTWISE_CASE(x, kMaxOp, v > w || v != v ? v : w)
    ELEMENTWISE_CASE(x, kMinOp, v < w || v != v ? v : w)
    ELEMENTWISE_CASE(x, kPReluOp, v < 0 ? v * w : v)
    ELEMENTWISE_CASE(x, kWhereOp, (mask >> j & 1) != 0 ? v : w)
    case kFmodOp:  // long code: computing one value after the other saves registers
      UNROLL for (int j = 0; j < kCount; ++j) {
        x[j] = remainder_towards_zero(x[j], z[j]);
        keep_order();
      }
      break;
    default:
      if (args.op < kActivationCount) {
        activate(Activation{static_cast<ActivationKind>(args.op), args.p, args.q}, x);
      }
  }
}

template <class T>
DEVICE void elementwise(const ElementwiseArgs& args) {
  map_operands<kElementwiseThreads, T, T>(
      args, [&](uint32_t i, const auto& left, const auto& right, auto& results) {
        constexpr int kCount = sizeof left / sizeof(T);
        float x[kCount], z[kCount];
        UNROLL for (int j = 0; j < kCount; ++j) {
          x[j] = to_float(left[j]);
          z[j] = to_float(right[j]);
        }
        apply(args, mask_bits<kCount>(args, i), x, z);
        UNROLL for (int j = 0; j < kCount; ++j) results[j] = from_float<T>(x[j]);
      });
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(elementwise, elementwise<T>, kElementwiseThreads, ElementwiseArgs, mask, a, b, y)
