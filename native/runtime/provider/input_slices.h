// Finds inputs that are slices of a larger tensor, for kernels that read a slice in the tensor itself:
//
//   [Transpose] -> Gather of one index -> input
//   [Transpose] -> Slice or Split to size 1 -> Squeeze -> input
//   Slice or Split of the last axis into parts of equal size -> Reshapes, the last of which splits this axis -> input
//
// Example: Q, K and V as slices of the output of one linear layer. Nodes whose results have no other readers are not
// computed.
#pragma once

#include <functional>
#include <vector>

#include "runtime/provider/region_graph.h"
#include "runtime/provider/replacement.h"

namespace graphopt::provider {

// `slices` returns how many inputs of a node, from input 0 on, may be slices.
std::vector<Replacement> find_input_slices(const RegionGraph& graph,
                                           const std::function<size_t(const NodeInGraph&)>& slices);

}  // namespace graphopt::provider
