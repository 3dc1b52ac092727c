// Gather along one axis: y[outer, i, inner] = x[outer, index[i], inner].
//
// Bound by memory: what is taken is read once and written once; the element is the widest that the inner size
// allows. An index that is out of range gives zeros, where other devices can raise an error.
// scripts/gpu_bench.py sets it beside a copy.
#include "hip/platform.h"

namespace graphopt::hip {

constexpr int kGatherThreads = 256;

// x [outer, size, inner], y [outer, indices, inner]. Indices are int64_t, or int32_t when `narrow`; negative
// ones count from the end.
template <class T>
DEVICE void gather(const T* x, const void* index, T* y, uint32_t total, Divisor inner, Divisor indices,
                   uint32_t size, int32_t narrow, const T& zero) {
  const uint32_t i = static_cast<uint32_t>(block_x()) * kGatherThreads + static_cast<uint32_t>(thread_x());
  if (i >= total) return;
  const uint32_t row = divide(i, inner), column = i - row * inner.d;
  const uint32_t outer = divide(row, indices), which = row - outer * indices.d;
  int64_t at =
      narrow != 0 ? static_cast<const int32_t*>(index)[which] : static_cast<const int64_t*>(index)[which];
  at = at < 0 ? at + size : at;
  const bool inside = at >= 0 && at < static_cast<int64_t>(size);
  y[i] = inside ? x[(static_cast<size_t>(outer) * size + static_cast<size_t>(at)) * inner.d + column] : zero;
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define GATHER_KERNEL(T, suffix)                                                               \
  KERNEL(gather_##suffix, kGatherThreads,                                                      \
         (const T* x, const void* index, T* y, uint32_t total, Divisor inner, Divisor indices, \
          uint32_t size, int32_t narrow)) {                                                    \
    const T zero = {};                                                                         \
    gather(x, index, y, total, inner, indices, size, narrow, zero);                            \
  }

GATHER_KERNEL(uint16_t, b16)
GATHER_KERNEL(uint32_t, b32)
GATHER_KERNEL(Bits128, b128)
