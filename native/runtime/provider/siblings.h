// Nodes of a region that one kernel computes together because they read the same tensor and differ in nothing
// but constants of one shape: the layers that make Q, K and V of one X.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/abi/graph.h"

namespace graphopt::provider {

// Their numbers, in order, two or more. `takes`: whether nodes of such a name have such a kernel. `outputs`:
// of the region, which siblings do not write.
using Siblings = std::vector<size_t>;
std::vector<Siblings> find_siblings(const std::vector<abi::GraphNode>& nodes,
                                    const std::vector<std::string>& outputs,
                                    const std::function<bool(const abi::GraphNode&)>& takes);

}  // namespace graphopt::provider
