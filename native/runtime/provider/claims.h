// Decides which nodes of a graph the provider claims, with a reason for each refused node. Needs no device, because it
// runs both when a session is created (provider.cpp) and before there is one (forecast.h).
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "operators/node_in_graph.h"
#include "operators/table.h"
#include "runtime/provider/estimates.h"

namespace graphopt::provider {

// The provider's kernels by operator.
class Claims {
 public:
  // Throws Error if the table has an operator twice.
  explicit Claims(Table table);
  Claims(const Claims&) = delete;
  Claims& operator=(const Claims&) = delete;

  const Table& table() const { return table_; }
  // Returns null if there is no kernel for the operator.
  const Registration* find(const NodeInGraph& node) const;
  // Returns the kernel that computes the node on the host while a region is planned, for values computed from shapes;
  // null if there is none.
  const Registration* find_host_kernel(const NodeInGraph& node) const;
  // Returns the reason why there is no kernel for the node; empty if there is one.
  std::string refuse(const NodeInGraph& node) const;
  // Returns true if the node reads input i, or writes output i, in host memory.
  bool host_input(const NodeInGraph& node, size_t i) const;
  bool host_output(const NodeInGraph& node, size_t i) const;

 private:
  const Table table_, planning_;
  std::map<std::pair<std::string, std::string>, const Registration*> by_name_;  // domain and operator
  std::map<std::string, const Registration*> host_kernels_;                     // by operator
};

// Returns the operator patterns in the environment variable GRAPHOPT_DISABLE.
std::vector<std::string> disabled_everywhere();

struct ChoiceOptions {
  // The minimum size of a group of connected nodes on the device. 0: a group is on the device if its estimated time
  // there, with copies, is below its time on the CPU (estimates.h).
  size_t min_nodes = 0;
  std::vector<std::string> disabled;  // patterns of com.graphopt operators that are not claimed
};

// Describes a graph whose nodes are claimed or refused: the main graph or a subgraph of a node.
struct Body {
  std::string parent;                // operator that has the graph as a subgraph; empty for the main graph
  std::vector<std::string> outputs;  // names of the graph's outputs
  // For each node, whether it was already assigned to the provider. The runtime calls GetCapability again after it has
  // inlined the functions of unclaimed nodes. May be empty.
  std::vector<bool> assigned = {};
};

// Connected nodes that the provider claims, and the sums of their estimated times.
struct Group {
  std::vector<size_t> nodes;
  Estimate time;      // time.device includes the copies of inputs and outputs
  double copies = 0;  // seconds of these copies
  // Whether it has nodes that are already assigned to the provider, or that have claimed subgraph nodes.
  bool fixed = false;
};

// Returns the groups of the nodes that are not refused.
std::vector<Group> groups_of(const Claims& claims, const std::vector<const NodeInGraph*>& nodes,
                             const Body& body, const std::vector<std::string>& refusals);

// Returns, for each node of a graph in topological order, why the provider refuses it; empty if it claims the node.
// Call this for subgraphs before the graphs that contain them.
std::vector<std::string> choose(const Claims& claims, const std::vector<const NodeInGraph*>& nodes,
                                const Body& body, const ChoiceOptions& options);

}  // namespace graphopt::provider
