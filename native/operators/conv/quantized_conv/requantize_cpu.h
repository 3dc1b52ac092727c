// Requantization of int32 sums to bytes of Y. For kernel files only (see cpu/isa.h).
#pragma once

#include <cmath>

#include "cpu/microkernels/bytes.h"
#include "operators/conv/quantized_conv/op.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// Adding 1.5 2^23 rounds a float below 2^22 in magnitude to the nearest integer, ties to even. The low bits of kNear
// are zero, and the low bits of the sum are the integer.
constexpr float kNear = 0x1.8p23f;

// The parameters of the columns of Y, in the order of the packed weights, and the limits of all results.
//   y = round(clamp((sum + offset) factor + addend, least, most)) + zero
struct Requantization {
  const int32_t* offsets;  // - x_zero sum(w)
  const float *factors, *addends;
  float least, most;  // limits before zero is added
  int32_t zero;       // zero point of Y, in Y's type
};

// The same for one vector of columns, in registers. A store of bytes may alias the parameters: without this copy, a
// loop that stores bytes would load them again.
struct VectorRequantization {
  Vec factor, addend, least, most;
  IntVec zero;

  VectorRequantization(const Requantization& r, int64_t column)
      : factor(load(r.factors + column)),
        addend(load(r.addends + column)),
        least(splat(r.least)),
        most(splat(r.most)),
        zero(IntVec{} + r.zero) {}
  // Returns integers whose low bytes are the bytes of Y.
  IntVec operator()(Words sum) const {
    const Vec v = __builtin_convertvector((IntVec)sum, Vec) * factor + addend;
    return (IntVec)(smaller(larger(v, least), most) + kNear) + zero;
  }
};

// The limits of rounded results before the zero point is added: the range of a byte, and the activation.
struct Limits {
  float least, most;

  Limits(const Activation& act, const ConvQuantization& q)
      : least(static_cast<float>(-q.y_zero)), most(static_cast<float>(255 - q.y_zero)) {
    const auto limit = [&](float x) {
      return std::min(std::max(std::nearbyint(x / q.y_scale), least), most);
    };
    const float low = limit(act.a), high = limit(act.b);
    if (act.kind == ActivationKind::kRelu) least = std::max(least, 0.0f);
    if (act.kind == ActivationKind::kClip) least = low, most = high;
  }
};

// Stores the low bytes of all elements or, with kPart, of the first n.
template <bool kPart>
inline void store_bytes(uint8_t* y, IntVec v, int64_t n) {
  const Bytes bytes = low_bytes(v);
  if constexpr (kPart) {
    for (int64_t i = 0; i < std::min<int64_t>(n, kWidth); ++i) y[i] = bytes[i];
  } else {
    *reinterpret_cast<UnalignedBytes*>(y) = bytes;
  }
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
