// How what has too few rows or columns for a GPU is joined in several steps.
#pragma once

#include <algorithm>
#include <cstdint>

namespace graphopt::gpu {

// In how many slices x [outer, R, inner] is joined over R in a step before the last; 1: there are enough
// work-items without one, which are `threads` for each row (inner is 1), or one for each column. A slice has
// every slices-th element, at least 16 of them, so that neighbouring work-items read neighbours.
inline int64_t slices_of(int64_t outer, int64_t R, int64_t inner, int64_t threads) {
  constexpr int64_t kEnough = int64_t{1} << 16;  // an H200 has places for 270,000, a small GPU for 40,000
  const int64_t items = outer * inner * (inner == 1 ? threads : 1);
  if (items == 0 || items >= kEnough || R < (inner == 1 ? 8192 : 64)) return 1;
  return std::clamp<int64_t>(2 * kEnough / (outer * inner), 1, R / 16);
}

}  // namespace graphopt::gpu
