// Converts blocks of float or float16 tensors to and from float. For kernel files only (see cpu/isa.h).
#pragma once

#include <cstddef>
#include <cstring>

#include "cpu/microkernels/simd.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// Number of elements in a block: enough to hide call overhead, but few enough that several blocks fit into the
// first-level cache.
constexpr int64_t kBlock = 1024;

inline void to_float(const half* x, float* y, size_t n) {
  size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(y + i, load_as_float(x + i));
  for (; i < n; ++i) y[i] = static_cast<float>(x[i]);
}

inline void from_float(const float* x, half* y, size_t n) {
  size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(y + i, load(x + i));
  for (; i < n; ++i) y[i] = static_cast<half>(x[i]);
}

// Returns the n elements of x as floats: x itself, or their conversions in `buffer`.
inline const float* as_float(const float* x, float*, size_t) { return x; }
inline const float* as_float(const half* x, float* buffer, size_t n) {
  to_float(x, buffer, n);
  return buffer;
}

// Returns the array into which a caller computes floats before store() writes them to y: y itself, or the
// buffer.
inline float* target(float* y, float*) { return y; }
inline float* target(half*, float* buffer) { return buffer; }
inline void store(float*, const float*, size_t) {}
inline void store(half* y, const float* buffer, size_t n) { from_float(buffer, y, n); }

}  // namespace graphopt::cpu::GRAPHOPT_ISA
