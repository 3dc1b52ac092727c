// Activations in float. For kernel files only (see cpu/isa.h). The type V is a vector of sixteen floats with AVX-512,
// because fast_exp of such a vector (exp.h) has a third fewer instructions than compiler-generated code. Otherwise V is
// float, in loops that the compiler vectorizes. The result for NaN is NaN. The relative error is about 2e-7 unless
// stated. The polynomials are least-squares fits to minimal relative error, made for this library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/microkernels/exp.h"
#include "cpu/microkernels/simd.h"
#include "operators/activation.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// Computes tanh(x) as x times a quotient of polynomials in x^2, which needs neither e^x nor a special case
// for small x. Relative error 3e-7.
template <class V>
inline V fast_tanh(V x) {
  x = at_most(at_least(x, -9.02f), 9.02f);
  const V t = x * x;
  V p = 1.33191413e-08f * t + 2.05835368e-05f;
  p = p * t + 0.00349403825f;
  p = p * t + 0.133797213f;
  p = p * t + 1.0f;
  V q = 7.76204956e-07f * t + 0.000328309863f;
  q = q * t + 0.0258710869f;
  q = q * t + 0.467130363f;
  q = q * t + 1.0f;
  return at_most(at_least(x * p / q, -1.0f), 1.0f);
}

// Computes the normal distribution's upper tail erfc(z / sqrt(2)) / 2 for z >= 0 as e^(-z^2 / 2) times a quotient of
// polynomials in z. Polynomials in 1 / (1 + z) would have to wait for a division. Relative error 6e-7 + z^2 6e-8.
template <class V>
inline V fast_normal_tail(V z) {
  z = at_most(z, 15.0f);  // e^(-z^2 / 2) is 0 for z >= 15
  V p = 0.0170475785f * z + 0.119531251f;
  p = p * z + 0.361970603f;
  p = p * z + 0.499999821f;
  V q = 0.0427369438f * z + 0.299417764f;
  q = q * z + 0.953437984f;
  q = q * z + 1.52180696f;
  q = q * z + 1.0f;
  return p * fast_exp(-0.5f * (z * z)) / q;
}

template <ActivationKind kKind, class V>
inline V activate(V x, [[maybe_unused]] float a, [[maybe_unused]] float b) {
  if constexpr (kKind == ActivationKind::kRelu) {
    return at_least(x, 0.0f);
  } else if constexpr (kKind == ActivationKind::kLeakyRelu) {
    return x < 0.0f ? a * x : x;
  } else if constexpr (kKind == ActivationKind::kClip) {
    return at_most(at_least(x, a), b);
  } else if constexpr (kKind == ActivationKind::kSigmoid) {
    return 1.0f / (1.0f + fast_exp(-x));
  } else if constexpr (kKind == ActivationKind::kSilu) {
    return x / (1.0f + fast_exp(-x));
  } else if constexpr (kKind == ActivationKind::kHardSigmoid) {
    return at_least(at_most(a * x + b, 1.0f), 0.0f);
  } else if constexpr (kKind == ActivationKind::kHardSwish) {
    return x * at_least(at_most(x * (1.0f / 6.0f) + 0.5f, 1.0f), 0.0f);
  } else if constexpr (kKind == ActivationKind::kTanh) {
    return fast_tanh(x);
  } else if constexpr (kKind == ActivationKind::kGelu) {
    // Uses 1 + erf(z) = erfc(-z), which has no cancellation in the negative tail.
    const V tail = fast_normal_tail(magnitude(x));
    return x * (x < 0.0f ? tail : 1.0f - tail);
  } else if constexpr (kKind == ActivationKind::kGeluTanh) {
    // 0.5 (1 + tanh(u / 2)) is sigmoid(u).
    const V u = 1.59576912160573071176f * (x * (1.0f + 0.044715f * (x * x)));
    return x / (1.0f + fast_exp(-u));
  } else if constexpr (kKind == ActivationKind::kMish) {
    // tanh(ln(1 + e)) is e (e + 2) / (e (e + 2) + 2); above 20 this rounds to 1.
    const V e = fast_exp(at_most(x, 20.0f));
    const V n = e * (e + 2.0f);
    return x * (n / (n + 2.0f));
  } else {
    return x;
  }
}

// Computes y[i] = act(at(read)) for i < n. at(read) returns the value to activate. It reads arrays p by read(p), which
// returns p[i], or a vector of 16 elements from p[i] on. y may be one of these arrays.
template <ActivationKind kKind, class At>
inline void activate_each(const Activation& act, float* y, int64_t n, const At& at) {
  const float a = act.a, b = act.b;
#if defined(__AVX512F__)
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    _mm512_storeu_ps(y + i,
                     activate<kKind>(at([&](const float* p) { return _mm512_loadu_ps(p + i); }), a, b));
  }
  if (i == n) return;
  const auto rest = static_cast<__mmask16>((1u << (n - i)) - 1);
  const __m512 x = at([&](const float* p) { return _mm512_maskz_loadu_ps(rest, p + i); });
  _mm512_mask_storeu_ps(y + i, rest, activate<kKind>(x, a, b));
#else
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = activate<kKind>(at([&](const float* p) { return p[i]; }), a, b);
#endif
}

template <ActivationKind kKind>
using Kind = std::integral_constant<ActivationKind, kKind>;

// Calls f(Kind<kind>()): turns an activation known at run time into one known at compile time.
template <class F>
auto with_kind(ActivationKind kind, const F& f) {
  switch (kind) {
#define GRAPHOPT_KIND(name, a, b) \
  case ActivationKind::k##name:   \
    return f(Kind<ActivationKind::k##name>());
    GRAPHOPT_ACTIVATIONS(GRAPHOPT_KIND)
#undef GRAPHOPT_KIND
  }
  return f(Kind<ActivationKind::kNone>());
}

// Computes y[i] = act(x[i]); y may be x. Meant for blocks in the first-level cache. All kernels share one
// copy of this function, in activation.cpp.
void activate_block(const Activation& act, const float* x, float* y, size_t n);

// The part of an activation that GEMM kernels apply to sums in registers: a slope for negative values, then bounds.
struct Bounds {
  // Whether slope and bounds are the complete activation: true for None, Relu, LeakyRelu and Clip.
  bool is_complete = true;
  float slope = 1.0f;
  float low = -std::numeric_limits<float>::infinity(), high = std::numeric_limits<float>::infinity();

  Bounds() = default;
  explicit Bounds(const Activation& act) {
    const ActivationKind kind = act.kind;
    is_complete = kind == ActivationKind::kNone || kind == ActivationKind::kRelu ||
                  kind == ActivationKind::kLeakyRelu || kind == ActivationKind::kClip;
    if (kind == ActivationKind::kLeakyRelu) slope = act.a;
    if (kind == ActivationKind::kRelu) low = 0.0f;
    if (kind == ActivationKind::kClip) {
      low = act.a;
      high = act.b;
    }
  }

  // Returns true if clamp() computes the complete activation.
  bool clamps() const { return is_complete && slope == 1.0f; }

  Vec operator()(Vec v) const { return clamp(slope != 1.0f ? apply_slope(v) : v); }
  // The two parts of operator().
  Vec apply_slope(Vec v) const { return v < Vec{} ? v * slope : v; }
  Vec clamp(Vec v) const { return smaller(splat(high), larger(splat(low), v)); }  // keeps NaN
};

}  // namespace graphopt::cpu::GRAPHOPT_ISA
