// Which nodes run together, as one region.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace graphopt::provider {

// A node of the graph, in topological order.
struct PartitionNode {
  std::vector<std::string> inputs, outputs;  // names of values; empty where one is left out
  bool member = false;                       // may be part of a region
};

// Regions of two nodes or more, each in topological order. Between two nodes of a region every path stays
// inside, and no two regions wait for each other: all of them may be replaced by one node each.
std::vector<std::vector<size_t>> find_regions(const std::vector<PartitionNode>& nodes);

}  // namespace graphopt::provider
