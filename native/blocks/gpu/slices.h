// Splits a reduction with few outputs into two steps, which gives the GPU enough work-items.
#pragma once

#include <algorithm>
#include <cstdint>

namespace graphopt::gpu {

// Returns the number of slices for a first step that reduces x [outer, R, inner] over R; 1 if one step has
// enough work-items. A step has `threads` work-items for each row if inner is 1, else one for each column.
// Slice s has the elements s, s + slices, ..., at least 16: neighbouring work-items then read neighbouring
// elements.
inline int64_t choose_slices(int64_t outer, int64_t R, int64_t inner, int64_t threads) {
  constexpr int64_t kEnoughWorkItems = int64_t{1} << 16;  // at once, an H200 runs 270,000, a small GPU 40,000
  const int64_t items = outer * inner * (inner == 1 ? threads : 1);
  if (items == 0 || items >= kEnoughWorkItems || R < (inner == 1 ? 8192 : 64)) return 1;
  return std::clamp<int64_t>(2 * kEnoughWorkItems / (outer * inner), 1, R / 16);
}

}  // namespace graphopt::gpu
