// Channels last: a tensor [N, C, H, W] that lies in memory as [N, H, W, C]. Kernels for such tensors see the
// latter as its shape. A region decides which tensors do (runtime/provider/region.h).
#pragma once

#include <cstddef>
#include <memory>

#include "operators/kernel.h"

namespace graphopt {

constexpr size_t kLayoutRank = 4;

// What a node's kernels do with its tensors of rank 4.
enum class Layout {
  kFirst,    // they want channels first
  kAny,      // they treat all axes alike
  kFollows,  // there is one for each layout, and neither is worth a copy
  kLast,     // channels last is worth copies
};

inline Shape to_channels_last(const Shape& s) { return {s[0], s[2], s[3], s[1]}; }
inline Shape to_channels_first(const Shape& s) { return {s[0], s[3], s[1], s[2]}; }
// Where an axis of [N, C, H, W] stands in [N, H, W, C].
inline size_t channels_last_axis(size_t axis) { return axis == 0 ? 0 : axis == 1 ? 3 : axis - 1; }

// From one layout to the other, in float16.
std::unique_ptr<Kernel> make_layout_change(gpu::Device& device, bool to_last);

}  // namespace graphopt
