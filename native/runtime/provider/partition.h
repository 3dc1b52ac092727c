// Groups nodes into regions that run as one node.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/provider/claims.h"

namespace graphopt::provider {

// A node of the graph, in topological order.
struct PartitionNode {
  std::vector<std::string> inputs, outputs;  // names of values; empty for an omitted value
  bool member = false;                       // may be part of a region
  // May be computed on the host while a region is planned. All readers must then be in that region.
  bool computed_on_host = false;
  // Inputs that must be known while the region is planned.
  std::vector<std::string> on_host = {};
  // Inputs with the lengths of sequences (Registration::length_inputs).
  std::vector<std::string> lengths = {};
  bool reduces = false;  // its input has dimensions of unknown size, and more dimensions than its output
};

// Returns regions of two or more nodes, each in topological order. Each region can be replaced by one node: every path
// between two nodes of a region is inside the region, and no cycle connects regions. Nodes that only reduce a mask to
// lengths are not in the region of other nodes. `outputs`: names of the graph's outputs.
std::vector<std::vector<size_t>> find_regions(const std::vector<PartitionNode>& nodes,
                                              const std::vector<std::string>& outputs);

struct Regions {
  std::vector<std::vector<size_t>> members;
  // For each node of the graph, whether a region computes it on the host during planning.
  std::vector<bool> computed_on_host;
};

// Chooses the regions of a graph after choose() (claims.h). Clears the refusals of nodes that a region computes during
// planning.
Regions choose_regions(const Claims& claims, const std::vector<const NodeInGraph*>& nodes, const Body& body,
                       std::vector<std::string>& refusals);

}  // namespace graphopt::provider
