// Finds nodes that one kernel computes together. The kernel of the first node, the head, can fuse the nodes
// after it: the sum with a tensor of the same shape, then an activation, or PRelu with a slope for each
// channel. No other node may read the values between these nodes.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "operators/tail.h"
#include "runtime/provider/region_graph.h"

namespace graphopt::provider {

struct Fusion {
  size_t head = 0;             // the node with the kernel that computes the fusion
  std::vector<size_t> others;  // in order; the output of the last one is the fusion's output
  Tail tail;
  size_t sum = 0, residual = 0;  // the node of the sum, and the index of its other input
  size_t prelu = 0;              // the node with the slopes as input 1
};

// Returns the activation that a node applies to its first input; nothing if the node is not an activation.
std::optional<Activation> activation_of(const abi::GraphNode& node);

// `can_fuse_tail`: whether the node's kernel can fuse a tail.
std::vector<Fusion> find_tails(const RegionGraph& graph,
                               const std::function<bool(const abi::GraphNode&)>& can_fuse_tail);

}  // namespace graphopt::provider
