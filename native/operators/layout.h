// Channels last: a tensor [N, C, H, W] stored as [N, H, W, C]. Kernels for this layout receive the shape [N, H, W, C].
// A region decides which tensors use this layout (runtime/provider/region.h).
#pragma once

#include <cstddef>
#include <memory>

#include "operators/kernel.h"

namespace graphopt {

constexpr size_t kLayoutRank = 4;

// How a node's kernels handle its tensors of rank 4.
enum class Layout {
  kFirst,    // kernels need channels first
  kAny,      // all axes are treated alike
  kFollows,  // there is a kernel for each layout; the node uses its input's layout
  kLast,     // the node uses channels last, even if its input must be converted
};

inline Shape to_channels_last(const Shape& s) { return {s[0], s[2], s[3], s[1]}; }
inline Shape to_channels_first(const Shape& s) { return {s[0], s[3], s[1], s[2]}; }
// Returns the position in [N, H, W, C] of an axis of [N, C, H, W].
inline size_t channels_last_axis(size_t axis) { return axis == 0 ? 0 : axis == 1 ? 3 : axis - 1; }

// Creates a kernel that converts tensors with 1 or 2 bytes per element from one layout to the other.
std::unique_ptr<Kernel> make_layout_change(gpu::Device& device, bool to_last);

// Creates a kernel that copies its input. A region omits the copy if input and output can share memory.
std::unique_ptr<Kernel> make_view(gpu::Device& device);

}  // namespace graphopt
