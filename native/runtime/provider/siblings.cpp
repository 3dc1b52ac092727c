#include "runtime/provider/siblings.h"

#include <map>
#include <optional>
#include <sstream>

namespace graphopt::provider {
namespace {

using abi::GraphNode;

// Returns the key that siblings share; nothing for a node that cannot have siblings.
std::optional<std::string> sibling_key(const RegionGraph& graph, const GraphNode& node) {
  if (node.output_names().size() != 1 || node.inputs.size() < 2 || node.input_names()[0].empty()) {
    return std::nullopt;
  }
  if (graph.is_output(node.output_names()[0])) return std::nullopt;
  std::ostringstream key;
  key << node.domain() << ' ' << node.op << ' ' << static_cast<int>(node.type());
  for (size_t i = 1; i < node.inputs.size(); ++i) {
    if (!node.has_input(i) || !node.is_constant(i)) return std::nullopt;
    const std::optional<Tensor> value = node.constant(i);
    if (!value) return std::nullopt;
    key << ' ' << static_cast<int>(value->type) << value->shape.text();
  }
  key << ' ' << node.input_names()[0];
  return key.str();
}

}  // namespace

std::vector<Siblings> find_siblings(const RegionGraph& graph,
                                    const std::function<bool(const GraphNode&)>& has_kernel) {
  const std::vector<GraphNode>& nodes = graph.nodes();
  std::map<std::string, Siblings> groups;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!has_kernel(nodes[i])) continue;
    if (const auto key = sibling_key(graph, nodes[i])) groups[*key].push_back(i);
  }
  std::vector<Siblings> found;
  for (auto& [key, members] : groups) {
    if (members.size() > 1) found.push_back(std::move(members));
  }
  return found;
}

}  // namespace graphopt::provider
