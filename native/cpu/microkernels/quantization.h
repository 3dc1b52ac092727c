// Quantization to bytes with one scale for a tensor, as in DynamicQuantizeLinear. For kernel files only (cpu/isa.h).
#pragma once

#include <algorithm>

#include "cpu/microkernels/byte_gemm.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// The number of elements of X whose range one work item computes.
constexpr int64_t kRangeElements = 1 << 14;

struct Range {
  float least = 0.0f, most = 0.0f;  // the range contains 0
};

inline Range range_of(const float* x, int64_t n) {
  Vec least = {}, most = {};
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const Vec v = load(x + i);
    least = smaller(least, v);
    most = larger(most, v);
  }
  const Vec rest = load_range(x + i, 0, n - i);
  least = smaller(least, rest);
  most = larger(most, rest);
  Range range;
  for (int64_t lane = 0; lane < L; ++lane) {
    range.least = std::min(range.least, static_cast<float>(least[lane]));
    range.most = std::max(range.most, static_cast<float>(most[lane]));
  }
  return range;
}

// The scale and the zero point, computed as in ONNX Runtime's DynamicQuantizeLinear.
struct Quantization {
  float scale, inverse;
  int32_t zero;

  Quantization(const Range* ranges, int64_t count) {
    Range all;
    for (int64_t i = 0; i < count; ++i) {
      all.least = std::min(all.least, ranges[i].least);
      all.most = std::max(all.most, ranges[i].most);
    }
    scale = all.most == all.least ? 1.0f : (all.most - all.least) / 255.0f;
    inverse = 1.0f / scale;
    const float exact = std::min(std::max(0.0f - all.least / scale, 0.0f), 255.0f);
    zero = integers(near(splat(exact)))[0];
  }
  // Returns x / scale, rounded to the nearest integer, ties to even, plus the zero point, in 0 .. 255.
  IntVec operator()(Vec x) const {
    // x / scale is at most 255 in magnitude. x * inverse has an error below 2^-14, which changes the nearest integer
    // only near a tie. A division takes several times as long.
    const Vec product = x * inverse;
    Vec sum = near(product);
    const Vec distance = product - (sum - kNear);
    if (any_at_least(larger(distance, -distance), 0.5f - 0x1p-13f)) sum = near(x / scale);
    const IntVec q = integers(sum) + zero, most = IntVec{} + 255;
    const IntVec floored = q > IntVec{} ? q : IntVec{};
    return floored < most ? floored : most;
  }

  // Returns the same minus the zero point.
  IntVec centred(Vec x) const { return (*this)(x)-zero; }

 private:
  // Adding 1.5 2^23 rounds a float below 2^22 in magnitude to an integer, which is in the low bits of the sum.
  static constexpr float kNear = 0x1.8p23f;
  static Vec near(Vec x) { return x + kNear; }
  static IntVec integers(Vec sum) { return (IntVec)sum - 0x4b400000; }
};

}  // namespace graphopt::cpu::GRAPHOPT_ISA
