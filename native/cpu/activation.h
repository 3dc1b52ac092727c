// Activations in float, written so that the compiler turns loops over them into vector code. For kernel files
// only (see cpu/isa.h). NaN in gives NaN out. Relative error about 2e-7 where not said otherwise; the
// polynomials are our own least-squares fits to minimal relative error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "ops/activation.h"

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

// e^x: 0 below -87.7 and +inf above 88.4, a little before float itself ends.
inline float fast_exp(float x) {
  x = -88.1f > x ? -88.1f : x;
  x = 89.0f < x ? 89.0f : x;
  // Adding 1.5 * 2^23 + 127 rounds to an integer and leaves that, with the exponent's bias, in the low
  // mantissa bits. A NaN gives any integer here and stays NaN in r.
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

// The same for sixteen, in two thirds of the instructions: 2^n e^r with n a multiple of 1 / 32, whose
// fractions' powers lie in two registers (P. T. P. Tang, "Table-driven implementation of the exponential
// function in IEEE floating-point arithmetic", 1989). Relative error 2e-7 + |x| 3e-9.
inline __m512 fast_exp(__m512 x) {
  alignas(64) static constexpr float kPowers[32] = {
      1.0f,       1.0218972f, 1.0442737f, 1.0671405f, 1.0905077f, 1.1143868f, 1.1387886f, 1.1637249f,
      1.1892071f, 1.2152474f, 1.2418578f, 1.269051f,  1.2968396f, 1.3252367f, 1.3542556f, 1.38391f,
      1.4142135f, 1.4451808f, 1.4768262f, 1.5091645f, 1.5422108f, 1.5759809f, 1.6104903f, 1.6457555f,
      1.6817929f, 1.7186193f, 1.7562522f, 1.7947091f, 1.8340081f, 1.8741677f, 1.9152066f, 1.9571441f};
  x = _mm512_max_ps(_mm512_set1_ps(-88.1f), x);  // a NaN is the second operand, which both hand on
  x = _mm512_min_ps(_mm512_set1_ps(89.0f), x);
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

inline float fast_sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

inline float fast_tanh(float x) {
  const float z = x < 0.0f ? -x : x;
  const float t = x * x;
  float p = -0.005704974289983511f;
  p = p * t + 0.020639074966311455f;
  p = p * t - 0.05373971164226532f;
  p = p * t + 0.13331441581249237f;
  p = p * t - 0.3333328068256378f;
  const float small = x + x * t * p;
  const float big = 1.0f - 2.0f / (fast_exp(2.0f * z) + 1.0f);
  return z < 0.625f ? small : (x < 0.0f ? -big : big);
}

// erfc(z) for z >= 0: e^(-z^2) times a polynomial in 1 / (1 + 0.4 z). Relative error 2e-7 + z^2 6e-8.
inline float fast_erfc_positive(float z) {
  const float t = 1.0f / (1.0f + 0.4f * z);
  float p = 0.045968879014253616f;
  p = p * t - 0.1630624383687973f;
  p = p * t + 0.13050445914268494f;
  p = p * t + 0.035426799207925797f;
  p = p * t + 0.11547399312257767f;
  p = p * t + 0.17847789824008942f;
  p = p * t + 0.20561090111732483f;
  p = p * t + 0.22593669593334198f;
  p = p * t + 0.22566290199756622f;
  return p * t * fast_exp(-z * z);
}

template <ActivationKind kKind>
inline float activate(float x, [[maybe_unused]] float a, [[maybe_unused]] float b) {
  if constexpr (kKind == ActivationKind::kRelu) {
    return x < 0.0f ? 0.0f : x;
  } else if constexpr (kKind == ActivationKind::kLeakyRelu) {
    return x < 0.0f ? a * x : x;
  } else if constexpr (kKind == ActivationKind::kClip) {
    x = x < a ? a : x;
    return x > b ? b : x;
  } else if constexpr (kKind == ActivationKind::kSigmoid) {
    return fast_sigmoid(x);
  } else if constexpr (kKind == ActivationKind::kSilu) {
    return x / (1.0f + fast_exp(-x));
  } else if constexpr (kKind == ActivationKind::kHardSigmoid) {
    x = a * x + b;
    x = x > 1.0f ? 1.0f : x;
    return x < 0.0f ? 0.0f : x;
  } else if constexpr (kKind == ActivationKind::kHardSwish) {
    float gate = x * (1.0f / 6.0f) + 0.5f;
    gate = gate > 1.0f ? 1.0f : gate;
    gate = gate < 0.0f ? 0.0f : gate;
    return x * gate;
  } else if constexpr (kKind == ActivationKind::kTanh) {
    return fast_tanh(x);
  } else if constexpr (kKind == ActivationKind::kGelu) {
    // 1 + erf(z) is erfc(-z): no cancellation in the negative tail.
    const float z = x * 0.70710678118654752440f;
    const float tail = fast_erfc_positive(z < 0.0f ? -z : z);
    return 0.5f * x * (x < 0.0f ? tail : 2.0f - tail);
  } else if constexpr (kKind == ActivationKind::kGeluTanh) {
    // 0.5 (1 + tanh(u)) is sigmoid(2 u).
    const float u = 1.59576912160573071176f * (x * (1.0f + 0.044715f * (x * x)));
    return x / (1.0f + fast_exp(-u));
  } else if constexpr (kKind == ActivationKind::kMish) {
    // tanh(ln(1 + e)) is e (e + 2) / (e (e + 2) + 2); above 20 that is 1.
    const float e = fast_exp(x > 20.0f ? 20.0f : x);
    const float n = e * (e + 2.0f);
    return x * (n / (n + 2.0f));
  } else {
    return x;
  }
}

#if defined(__AVX512F__)

// Silu, Sigmoid and GeluTanh are a numerator over 1 + e^-u.
template <ActivationKind kKind>
inline __m512 activate_gate(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  __m512 u = x;
  if constexpr (kKind == ActivationKind::kGeluTanh) {
    const __m512 cubic = _mm512_fmadd_ps(_mm512_set1_ps(0.044715f), _mm512_mul_ps(x, x), one);
    u = _mm512_mul_ps(_mm512_set1_ps(1.59576912160573071176f), _mm512_mul_ps(x, cubic));
  }
  const __m512 e = fast_exp(_mm512_xor_ps(u, _mm512_set1_ps(-0.0f)));
  return _mm512_div_ps(kKind == ActivationKind::kSigmoid ? one : x, _mm512_add_ps(one, e));
}

template <ActivationKind kKind>
void activate_gates(float* x, float* y, size_t n) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) _mm512_storeu_ps(y + i, activate_gate<kKind>(_mm512_loadu_ps(x + i)));
  const auto rest = static_cast<__mmask16>((1u << (n - i)) - 1);
  _mm512_mask_storeu_ps(y + i, rest, activate_gate<kKind>(_mm512_maskz_loadu_ps(rest, x + i)));
}

#endif

template <ActivationKind kKind>
void activate_loop(const Activation& act, float* x, float* y, size_t n) {
#if defined(__AVX512F__)
  if constexpr (kKind == ActivationKind::kSigmoid || kKind == ActivationKind::kSilu ||
                kKind == ActivationKind::kGeluTanh) {
    return activate_gates<kKind>(x, y, n);
  }
#endif
  const float a = act.a;
  const float b = act.b;
#pragma omp simd
  for (size_t i = 0; i < n; ++i) y[i] = activate<kKind>(x[i], a, b);
}

template <ActivationKind kKind>
using Kind = std::integral_constant<ActivationKind, kKind>;

// f(Kind<kind>()): where an activation that is known at run time becomes one that is known when compiling.
template <class F>
auto with_kind(ActivationKind kind, const F& f) {
  switch (kind) {
    case ActivationKind::kNone:
      break;
    case ActivationKind::kRelu:
      return f(Kind<ActivationKind::kRelu>());
    case ActivationKind::kLeakyRelu:
      return f(Kind<ActivationKind::kLeakyRelu>());
    case ActivationKind::kClip:
      return f(Kind<ActivationKind::kClip>());
    case ActivationKind::kSigmoid:
      return f(Kind<ActivationKind::kSigmoid>());
    case ActivationKind::kSilu:
      return f(Kind<ActivationKind::kSilu>());
    case ActivationKind::kHardSigmoid:
      return f(Kind<ActivationKind::kHardSigmoid>());
    case ActivationKind::kHardSwish:
      return f(Kind<ActivationKind::kHardSwish>());
    case ActivationKind::kTanh:
      return f(Kind<ActivationKind::kTanh>());
    case ActivationKind::kGelu:
      return f(Kind<ActivationKind::kGelu>());
    case ActivationKind::kGeluTanh:
      return f(Kind<ActivationKind::kGeluTanh>());
    case ActivationKind::kMish:
      return f(Kind<ActivationKind::kMish>());
  }
  return f(Kind<ActivationKind::kNone>());
}

// y[i] = act(x[i]); y may be x. Meant for blocks that are in the first-level cache. (x is not const because
// GCC 12 then takes the caller's buffers for uninitialised.)
inline void activate_block(const Activation& act, float* x, float* y, size_t n) {
  with_kind(act.kind, [&](auto kind) {
    if constexpr (kind == ActivationKind::kNone) {
      if (y != x) std::memcpy(y, x, n * sizeof(float));
    } else {
      activate_loop<kind>(act, x, y, n);
    }
  });
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
