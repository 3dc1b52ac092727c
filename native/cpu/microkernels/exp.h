// e^x in float, and related functions. For kernel files only (see cpu/isa.h). The polynomials of e^x and 2^r are
// least-squares fits to minimal relative error, made for this library.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/microkernels/simd.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

inline float bits_to_float(int32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

inline int32_t float_to_bits(float f) {
  int32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  return bits;
}

// at_least returns the larger of two values, at_most the smaller. Both return NaN if x is NaN.
inline float at_least(float x, float low) { return low > x ? low : x; }
inline float at_most(float x, float high) { return high < x ? high : x; }
inline float magnitude(float x) { return x < 0.0f ? -x : x; }

// Returns e^x, but 0 below -87.7, where e^x is subnormal, and +inf above 88.4, although e^x is a float up to 88.7.
inline float fast_exp(float x) {
  x = at_most(at_least(x, -88.1f), 89.0f);
  // Adding 1.5 * 2^23 + 127 rounds x log2(e) to an integer and leaves the sum of this integer and the
  // exponent bias 127 in the low mantissa bits. For NaN this integer is arbitrary, but r is NaN.
  constexpr float kRound = 12582912.0f + 127.0f;
  const float shifted = x * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693145751953125f) - n * 1.42860682030941723e-6f;
  float p = 0.008312522433698177f;
  p = p * r + 0.041890162974596024f;
  p = p * r + 0.16667114198207855f;
  p = p * r + 0.499992311000824f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return p * bits_to_float(static_cast<int32_t>(static_cast<uint32_t>(float_to_bits(shifted)) << 23));
}

#if defined(__AVX512F__)

inline __m512 at_least(__m512 x, float low) { return _mm512_max_ps(_mm512_set1_ps(low), x); }
inline __m512 at_most(__m512 x, float high) { return _mm512_min_ps(_mm512_set1_ps(high), x); }
inline __m512 magnitude(__m512 x) { return _mm512_abs_ps(x); }

// Computes e^x of sixteen values as 2^n e^r with n a multiple of 1 / 32, in two thirds of the instructions of
// compiler-generated code. Two registers hold the 32 powers 2^(j / 32) (P. T. P. Tang, "Table-driven
// implementation of the exponential function in IEEE floating-point arithmetic", 1989). Relative error 2e-7 +
// |x| 3e-9; 0 below -104.
inline __m512 fast_exp(__m512 x) {
  alignas(64) static constexpr float kPowers[32] = {
      1.0f,       1.0218972f, 1.0442737f, 1.0671405f, 1.0905077f, 1.1143868f, 1.1387886f, 1.1637249f,
      1.1892071f, 1.2152474f, 1.2418578f, 1.269051f,  1.2968396f, 1.3252367f, 1.3542556f, 1.38391f,
      1.4142135f, 1.4451808f, 1.4768262f, 1.5091645f, 1.5422108f, 1.5759809f, 1.6104903f, 1.6457555f,
      1.6817929f, 1.7186193f, 1.7562522f, 1.7947091f, 1.8340081f, 1.8741677f, 1.9152066f, 1.9571441f};
  x = at_most(at_least(x, -104.5f), 89.0f);
  const __m512 round = _mm512_set1_ps(12582912.0f / 32.0f);
  const __m512 shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(1.44269504088896341f), round);
  const __m512 n = _mm512_sub_ps(shifted, round);
  const __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693147180559945309f), x);
  const __m512 rest = _mm512_mul_ps(r, _mm512_fmadd_ps(r, _mm512_set1_ps(0.5f), _mm512_set1_ps(1.0000147f)));
  const __m512 power = _mm512_permutex2var_ps(_mm512_load_ps(kPowers), _mm512_castps_si512(shifted),
                                              _mm512_load_ps(kPowers + 16));
  return _mm512_scalef_ps(_mm512_fmadd_ps(power, rest, power), n);  // scalef rounds n down
}

#endif

// e^x for x <= 0. Relative error 2e-7 + |x| 1.4e-8 with FMA, 2e-7 + |x| 8e-8 without. The result is 0 where e^x is
// below the smallest normal float, and NaN for NaN.
#if defined(__AVX512F__)
// Element j has the bits of 2^(j / 32) minus j << 18, because exp_nonpositive adds t << 18, and j is in the
// low bits of t.
alignas(64) constexpr int32_t kPowers[2 * kWidth] = {
    0x3f800000, 0x3f7ecd87, 0x3f7daac3, 0x3f7c980f, 0x3f7b95c2, 0x3f7aa43a, 0x3f79c3d3, 0x3f78f4f0,
    0x3f7837f0, 0x3f778d3a, 0x3f76f532, 0x3f767043, 0x3f75fed7, 0x3f75a15b, 0x3f75583f, 0x3f7523f6,
    0x3f7504f3, 0x3f74fbaf, 0x3f7508a4, 0x3f752c4d, 0x3f75672a, 0x3f75b9be, 0x3f76248c, 0x3f76a81e,
    0x3f7744fd, 0x3f77fbb8, 0x3f78ccdf, 0x3f79b907, 0x3f7ac0c7, 0x3f7be4ba, 0x3f7d257d, 0x3f7e83b3,
};

// Computes e^x as 2^(n / 32) 2^r with |r| <= 1/64.
inline Vec exp_nonpositive(Vec x) {
  constexpr float kLog2e = 1.44269504088896341f;
  const Vec round = splat(393216.0f);  // 1.5 * 2^18: n is in the sum's low bits
  const Vec t = x * kLog2e + round;
  const Vec r = x * kLog2e - (t - round);
  const __m512i n = reinterpret_cast<__m512i>(t);
  const __m512i fraction =
      _mm512_permutex2var_epi32(_mm512_load_si512(kPowers), n, _mm512_load_si512(kPowers + kWidth));
  const Vec power = reinterpret_cast<Vec>(_mm512_add_epi32(fraction, _mm512_maskz_slli_epi32(0xffff, n, 18)));
  const Vec p = (splat(0.2402287f) * r + 0.69315734f) * r;
  const __mmask16 in_range = _mm512_cmp_ps_mask(x, splat(-87.3365f), _CMP_NLT_US);  // also true for NaN
  return _mm512_maskz_fmadd_ps(in_range, p, power, power);
}
#else
// Computes e^x as 2^n 2^r with |r| <= 1/2.
inline Vec exp_nonpositive(Vec x) {
  constexpr float kLog2e = 1.44269504088896341f;
  const Vec round = splat(12582912.0f);  // 1.5 * 2^23: the sum's low bits are the rounded integer
  const Vec shifted = x * kLog2e + round;
  const Vec n = shifted - round;
  const Vec r = x * kLog2e - n;
  Vec p = splat(0.00132647273f);
  p = p * r + 0.00967151299f;
  p = p * r + 0.0555073358f;
  p = p * r + 0.240222424f;
  p = p * r + 0.693147004f;
  p = p * r + 1.0f;
  // The exponent field of 2^n, modulo 2^32: the bits of 1.5 * 2^23 above it are shifted out.
  const IntVec scale = (reinterpret_cast<IntVec>(shifted) + 127) << 23;
  p = p * reinterpret_cast<Vec>(scale);
  return x < -87.3365f ? Vec{} : p;
}
#endif

// Cephes' tanhf: 2 ulp.
inline Vec tanh_of(Vec x) {
  const Vec z = x < 0.0f ? -x : x;
  const Vec e = exp_nonpositive(-2.0f * z);
  const Vec large = (1.0f - e) / (1.0f + e);
  const Vec x2 = x * x;
  Vec p = splat(-5.70498872745e-3f);
  p = p * x2 + 2.06390887954e-2f;
  p = p * x2 - 5.37397155531e-2f;
  p = p * x2 + 1.33314422036e-1f;
  p = p * x2 - 3.33332819422e-1f;
  const Vec small = p * x2 * x + x;
  return z >= 0.625f ? (x < 0.0f ? -large : large) : small;
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
