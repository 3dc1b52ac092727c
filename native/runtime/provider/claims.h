// Which nodes of a graph the provider takes, and why not the others. No device is needed to say so: it is
// asked when a session is made (provider.cpp) and before there is one (forecast.h).
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "operators/node_in_graph.h"
#include "operators/table.h"

namespace graphopt::provider {

// What there are kernels for.
class Claims {
 public:
  // Throws Error when an operator is in the table twice.
  explicit Claims(Table table);
  Claims(const Claims&) = delete;
  Claims& operator=(const Claims&) = delete;

  const Table& table() const { return table_; }
  // Null when there is no kernel for the operator.
  const Registration* find(const NodeInGraph& node) const;
  // What computes the node on the host while a region is planned: values that shapes are made of. Null where nothing does.
  const Registration* find_planned(const NodeInGraph& node) const;
  // Why there is no kernel for the node; empty when there is one.
  std::string refuse(const NodeInGraph& node) const;
  // Whether the node reads input i, or writes output i, in host memory.
  bool host_input(const NodeInGraph& node, size_t i) const;
  bool host_output(const NodeInGraph& node, size_t i) const;

 private:
  const Table table_, planning_;
  std::map<std::pair<std::string, std::string>, const Registration*> by_name_;  // domain and operator
  std::map<std::string, const Registration*> planned_;                          // by operator
};

// Patterns of operators of ours that the environment variable GRAPHOPT_DISABLE switches off.
std::vector<std::string> disabled_everywhere();

struct ChoiceOptions {
  size_t min_nodes = 2;               // neighbouring nodes that are worth a copy to the device and back
  std::vector<std::string> disabled;  // patterns of operators of ours that are not taken
};

// The node whose body a graph is.
struct Body {
  std::string parent;                // its operator; empty for the main graph
  std::vector<std::string> outputs;  // names of the graph's
  // Of each of its nodes, whether the provider was given it before: the runtime asks again after it has put
  // definitions in the place of nodes that nobody took. May be empty.
  std::vector<bool> given = {};
};

// For each node of a graph, in topological order: why the provider leaves it to others; empty when it takes
// it. Bodies come before the graphs that they are in.
std::vector<std::string> choose(const Claims& claims, const std::vector<const NodeInGraph*>& nodes,
                                const Body& body, const ChoiceOptions& options);

}  // namespace graphopt::provider
