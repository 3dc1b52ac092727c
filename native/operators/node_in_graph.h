// A node in its graph, before any session runs it.
#pragma once

#include <string>
#include <vector>

#include "operators/kernel.h"

namespace graphopt {

class NodeInGraph : public Node {
 public:
  const std::string& domain() const { return domain_; }
  // Names of the values; empty for an omitted one.
  const std::vector<std::string>& input_names() const { return input_names_; }
  const std::vector<std::string>& output_names() const { return output_names_; }
  bool is_constant(size_t i) const { return constant_[i]; }
  // Names of outer-scope values that its subgraphs read.
  const std::vector<std::string>& implicit_names() const { return implicit_names_; }
  // Whether the provider has claimed nodes in its subgraphs.
  bool has_claimed_subgraph_nodes() const { return has_claimed_subgraph_nodes_; }
  // Whether the runtime has already assigned the node to another provider.
  bool is_assigned_elsewhere() const { return is_assigned_elsewhere_; }

 protected:
  std::string domain_;
  std::vector<std::string> input_names_, output_names_, implicit_names_;
  bool has_claimed_subgraph_nodes_ = false, is_assigned_elsewhere_ = false;
  std::vector<bool> constant_;
};

}  // namespace graphopt
