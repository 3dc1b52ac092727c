// Splits a reduction with few outputs into two steps, which gives the GPU enough work-items.
#pragma once

#include <algorithm>
#include <cstdint>

namespace graphopt::gpu {

// Returns into how many slices a first step divides the axis R to reduce x [outer, R, inner]; 1 if a single step
// suffices. For each of the outer * inner outputs, a single step has `threads` work-items if inner is 1, else one.
// Slice s has the elements s, s + slices, s + 2 slices, ..., so neighbouring work-items read neighbouring elements. A
// slice has at least 16 elements.
inline int64_t choose_slices(int64_t outer, int64_t R, int64_t inner, int64_t threads) {
  constexpr int64_t kEnoughWorkItems = int64_t{1} << 16;  // an H200 runs 270,000 at once, a small GPU 40,000
  const int64_t items = outer * inner * (inner == 1 ? threads : 1);
  if (items == 0 || items >= kEnoughWorkItems || R < (inner == 1 ? 8192 : 64)) return 1;
  return std::clamp<int64_t>(2 * kEnoughWorkItems / (outer * inner), 1, R / 16);
}

}  // namespace graphopt::gpu
