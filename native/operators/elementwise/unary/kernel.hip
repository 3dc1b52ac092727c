// Functions of one element. Memory-bound: each work-item reads 16 bytes once and writes 16 bytes once.
#include "device/platform.h"
#include "operators/elementwise/unary/args.h"

namespace graphopt::hip {

DEVICE float magnitude_of(float x) { return x < 0 ? -x : x; }

// Rounds to the nearest integer, ties to even: a float of 2^23 or more has no fraction bits.
DEVICE float round_even(float x) {
  const float magnitude = magnitude_of(x);
  if (!(magnitude < 8388608.0f)) return x;
  const float rounded = (magnitude + 8388608.0f) - 8388608.0f;
  return x < 0 ? -rounded : rounded;
}

DEVICE float floor_exact(float x) {
  const float rounded = round_even(x);
  return rounded > x ? rounded - 1.0f : rounded;
}

DEVICE float ceil_exact(float x) {
  const float rounded = round_even(x);
  return rounded < x ? rounded + 1.0f : rounded;
}

// Returns r, within pi/4 of 0, with x = k pi/2 + r for an integer k, and adds k to `quarters`. Valid for any
// finite x of magnitude 8192 and more. Source: M. Payne and R. Hanek, "Radian Reduction for Trigonometric
// Functions", 1983. x is a 24-bit integer times a power of two. Of 2/pi times this power, only the 96 bits with values
// from 2 to 2^-94 matter: higher bits contribute full turns, and lower bits contribute less than 2^-70. Needs no
// double, which is slow on most GPUs.
DEVICE float reduced_large(float x, int32_t& quarters) {
  // 32 zero bits, then the fraction bits of 2/pi.
  constexpr uint32_t kTwoOverPi[8] = {0,           0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                      0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t mantissa = (bits & 0x7fffffu) | 0x800000u;
  // Index in kTwoOverPi of the first of these 96 bits (`window`). It is not negative, because the exponent of
  // the mantissa's last bit is at least -10.
  const uint32_t at = (bits >> 23 & 0xffu) - 150u + 30u;
  const uint32_t word = at / 32, shift = at % 32;
  uint32_t part[4] = {};
  UNROLL for (uint32_t i = 0; i < 8; ++i) {  // arrays that a variable indexes are not kept in registers
    UNROLL for (uint32_t k = 0; k < 4; ++k) part[k] = i == word + k ? kTwoOverPi[i] : part[k];
  }
  uint32_t window[3];
  UNROLL for (int k = 0; k < 3; ++k) {
    window[k] = static_cast<uint32_t>((static_cast<uint64_t>(part[k]) << 32 | part[k + 1]) << shift >> 32);
  }
  const uint64_t low = static_cast<uint64_t>(mantissa) * window[2];
  const uint64_t middle = static_cast<uint64_t>(mantissa) * window[1] + (low >> 32);
  const uint64_t high = static_cast<uint64_t>(mantissa) * window[0] + (middle >> 32);
  // The product in quarter turns, times 2^62.
  const uint64_t product = high << 32 | (middle & 0xffffffffu);
  const auto rest = static_cast<int64_t>(product << 2);  // from -1/2 to 1/2, times 2^64
  const auto k = static_cast<int32_t>(product >> 62) + (rest < 0 ? 1 : 0);
  const float r = static_cast<float>(rest) * 8.5153040e-20f;  // pi/2 / 2^64
  quarters += x < 0 ? -k : k;
  return x < 0 ? -r : r;
}

// The sine of x + quarters pi/2. For small x, k pi/2 is subtracted, with pi/2 split into three parts. The first two
// parts have few digits, so their products with k are exact (Cody and Waite, "Software Manual for the Elementary
// Functions", 1980). The remainder is within pi/4 of 0.
DEVICE float sine(float x, int32_t quarters) {
  float r;
  if (magnitude_of(x) < 8192.0f) {
    const float k = round_even(x * 0.63661977f);
    r = ((x - k * 1.5703125f) - k * 4.8375129699707e-4f) - k * 7.5497899487686e-8f;
    quarters += static_cast<int32_t>(k);
  } else {
    if (!(magnitude_of(x) <= 3.40282347e+38f)) return x - x;
    r = reduced_large(x, quarters);
  }
  const float r2 = r * r;
  float y = 0.0083333333f + r2 * (-0.00019841270f + r2 * 2.7557319e-06f);
  y = r + r * (r2 * (-0.16666667f + r2 * y));
  if ((quarters & 1) != 0) {
    y = -0.0013888889f + r2 * (2.4801587e-05f + r2 * -2.7557319e-07f);
    y = 1.0f + r2 * (-0.5f + r2 * (0.041666667f + r2 * y));
  }
  return (quarters & 2) != 0 ? -y : y;
}

// atan x = pi/2 - atan(1/x) = pi/4 + atan((x - 1) / (x + 1)). The reduced argument is within tan(pi/8) of 0,
// where each term of the series is at most 0.17 times the previous one.
DEVICE float arc_tangent(float x) {
  const float size = magnitude_of(x);
  const bool steep = size > 2.4142136f, middle = size > 0.41421357f;
  const float r = steep ? -1.0f / size : middle ? (size - 1.0f) / (size + 1.0f) : size;
  const float from = steep ? 1.5707964f : middle ? 0.78539819f : 0.0f;
  const float r2 = r * r;
  float y = -1.0f / 15 + r2 * (1.0f / 17);
  y = 1.0f / 9 + r2 * (-1.0f / 11 + r2 * (1.0f / 13 + r2 * y));
  y = -1.0f / 3 + r2 * (1.0f / 5 + r2 * (-1.0f / 7 + r2 * y));
  y = from + (r + r * (r2 * y));
  return x < 0 ? -y : x > 0 ? y : x;
}

DEVICE float unary_one(UnaryOp op, float alpha, float x) {
  switch (op) {
    case UnaryOp::kSin:
      return sine(x, 0);
    case UnaryOp::kCos:
      return sine(x, 1);
    case UnaryOp::kTan:
      return sine(x, 0) / sine(x, 1);
    case UnaryOp::kAtan:
      return arc_tangent(x);
    case UnaryOp::kSign:
      return x > 0 ? 1.0f : x < 0 ? -1.0f : x;
    case UnaryOp::kCeil:
      return ceil_exact(x);
    case UnaryOp::kFloor:
      return floor_exact(x);
    case UnaryOp::kRound:
      return round_even(x);
    case UnaryOp::kSoftsign:
      return x / (1.0f + magnitude_of(x));
    case UnaryOp::kQuickGelu:
      return x / (1.0f + exp_fast(-alpha * x));
    default:
      return x > alpha ? x : 0.0f;
  }
}

template <class T>
DEVICE void unary(const UnaryArgs& args) {
  const T* x = args.x;
  T* y = args.y;
  constexpr int kSize = Pack<T>::kSize;
  const uint32_t i = work_item(kUnaryThreads) * kSize;
  if (args.vectors != 0 && i + kSize <= args.total) {
    Pack<T> pack = load_pack(x + i);
    // Unrolled, since arrays that a loop variable indexes are not kept in registers.
    UNROLL for (int j = 0; j < kSize; ++j) {
      pack.v[j] = from_float<T>(unary_one(args.op, args.alpha, to_float(pack.v[j])));
    }
    store_pack(y + i, pack);
    return;
  }
  NO_UNROLL for (uint32_t j = i; j < i + kSize && j < args.total; ++j) {
    y[j] = from_float<T>(unary_one(args.op, args.alpha, to_float(x[j])));
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(unary, unary<T>, kUnaryThreads, UnaryArgs, x, y)
