// Which nodes run together, as one region.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/provider/claims.h"

namespace graphopt::provider {

// A node of the graph, in topological order.
struct PartitionNode {
  std::vector<std::string> inputs, outputs;  // names of values; empty where one is left out
  bool member = false;                       // may be part of a region
  // May be computed on the host while a region is planned, in which all that read it must then be.
  bool planned = false;
  // Of the inputs: those whose values must be known while the region is planned.
  std::vector<std::string> on_host = {};
};

// Regions of two nodes or more, each in topological order. Between two nodes of a region every path stays
// inside, and no two regions wait for each other: all of them may be replaced by one node each. `outputs`: of the graph.
std::vector<std::vector<size_t>> find_regions(const std::vector<PartitionNode>& nodes,
                                              const std::vector<std::string>& outputs);

struct Regions {
  std::vector<std::vector<size_t>> members;
  std::vector<bool>
      planned;  // of each node of the graph, whether it is part of a region and computed with its plan
};

// Of a graph whose nodes were chosen (claims.h). Nodes that are computed with the plan of a region are refused no more.
Regions choose_regions(const Claims& claims, const std::vector<const NodeInGraph*>& nodes, const Body& body,
                       std::vector<std::string>& refusals);

}  // namespace graphopt::provider
