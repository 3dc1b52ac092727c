// Nodes of a region that one kernel computes together: one that has a kernel for what follows it, the sum
// with another tensor of its shape, and an activation or PRelu with a slope for each channel. Nobody else may read what
// lies between them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "operators/tail.h"
#include "runtime/abi/graph.h"

namespace graphopt::provider {

struct Fusion {
  size_t head = 0;             // the node whose kernel it is
  std::vector<size_t> others;  // in order; what the last one writes is what they come to
  Tail tail;
  size_t sum = 0, residual = 0;  // the other tensor of the sum: an input of this node
  size_t prelu = 0;              // whose input 1 are the slopes
};

// `takes_tail`: whether a node has such a kernel. `outputs`: of the region, which all must be written.
std::vector<Fusion> find_tails(const std::vector<abi::GraphNode>& nodes,
                               const std::vector<std::string>& outputs,
                               const std::function<bool(const abi::GraphNode&)>& takes_tail);

}  // namespace graphopt::provider
