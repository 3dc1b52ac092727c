// The nodes of a graph that the runtime passes to a plugin execution provider in GetCapability.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "operators/node_in_graph.h"
#include "runtime/abi/attributes.h"
#include "runtime/abi/kernel.h"
#include "runtime/abi/ort_ep.h"

namespace graphopt::abi {

// A node of the graph during GetCapability. A tensor of unknown rank looks like a scalar.
class GraphNode final : public WithAttributes<NodeInGraph> {
 public:
  // `provider`: name of this library's provider, for has_claimed_subgraph_nodes and is_assigned_here.
  GraphNode(const OrtApi24* api, const OrtNode* node, std::string_view provider);

  const OrtNode* raw() const { return node_; }
  // Whether the node was already assigned to the provider.
  bool is_assigned_here() const { return is_assigned_here_; }

  // Names of the symbolic dims of input i, which must be present; "" for a dim without a name.
  std::vector<std::string> symbols(size_t i) const;
  // Returns the constant in host memory.
  std::optional<Tensor> constant(size_t i) const override;
  std::optional<Number> find_number(const char* name) const override;

 private:
  const OrtOpAttr* attribute(const char* name) const override;

  const OrtApi24* api_;
  const OrtNode* node_;
  bool is_assigned_here_ = false;
  std::vector<const OrtValueInfo*> raw_inputs_;
};

std::vector<const OrtValueInfo*> node_inputs(const OrtApi24* api, const OrtNode* node);
std::vector<const OrtValueInfo*> node_outputs(const OrtApi24* api, const OrtNode* node);
// The name of an omitted value is empty.
std::vector<std::string> names_of(const OrtApi24* api, const std::vector<const OrtValueInfo*>& values);

std::vector<GraphNode> graph_nodes(const OrtApi24* api, const OrtGraph* graph, std::string_view provider);

// output_names returns the names of the graph's outputs. parent_operator returns the operator that has the graph as a
// subgraph; empty for the main graph.
std::vector<std::string> output_names(const OrtApi24* api, const OrtGraph* graph);
std::string parent_operator(const OrtApi24* api, const OrtGraph* graph);

}  // namespace graphopt::abi
