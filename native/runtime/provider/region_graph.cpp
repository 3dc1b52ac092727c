#include "runtime/provider/region_graph.h"

namespace graphopt::provider {
namespace {

const std::vector<size_t> kNoReaders;

}  // namespace

RegionGraph::RegionGraph(const std::vector<abi::GraphNode>& nodes, const std::vector<std::string>& outputs)
    : nodes_(nodes), outputs_(outputs.begin(), outputs.end()) {
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const std::string& name : nodes[i].output_names()) {
      if (!name.empty()) writers_[name] = i;
    }
    for (const std::string& name : nodes[i].input_names()) {
      if (!name.empty()) readers_[name].push_back(i);
    }
  }
}

const std::vector<size_t>& RegionGraph::readers(const std::string& value) const {
  const auto found = readers_.find(value);
  return found != readers_.end() ? found->second : kNoReaders;
}

const std::vector<size_t>& RegionGraph::private_readers(const std::string& value) const {
  return is_output(value) ? kNoReaders : readers(value);
}

std::optional<size_t> RegionGraph::writer(const std::string& value) const {
  const auto found = writers_.find(value);
  return found != writers_.end() ? std::optional(found->second) : std::nullopt;
}

std::optional<size_t> RegionGraph::private_writer(const std::string& value) const {
  const std::optional<size_t> found = writer(value);
  if (!found || private_readers(value).size() != 1) return std::nullopt;
  return nodes_[*found].output_names().size() == 1 ? found : std::nullopt;
}

std::optional<size_t> RegionGraph::private_writer(const std::string& value, const char* op) const {
  const std::optional<size_t> found = private_writer(value);
  return found && nodes_[*found].op == op && nodes_[*found].domain().empty() ? found : std::nullopt;
}

}  // namespace graphopt::provider
