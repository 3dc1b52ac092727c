// The nodes of a region, and which of them write and read each value. Shared by the searches for nodes that one kernel
// can compute together.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/abi/graph.h"

namespace graphopt::provider {

class RegionGraph {
 public:
  // `outputs`: names of the region's outputs, which must be written. Refers to `nodes`.
  RegionGraph(const std::vector<abi::GraphNode>& nodes, const std::vector<std::string>& outputs);

  const std::vector<abi::GraphNode>& nodes() const { return nodes_; }
  bool is_output(const std::string& value) const { return outputs_.count(value) > 0; }
  // Returns the indices of the nodes that read a value, once for each input.
  const std::vector<size_t>& readers(const std::string& value) const;
  // The same for a value that is not an output of the region; none for an output.
  const std::vector<size_t>& private_readers(const std::string& value) const;
  // Returns the node that writes a value; nothing for inputs of the region and constants.
  std::optional<size_t> writer(const std::string& value) const;
  // Returns the node that writes a value, if the node has no other outputs and one node input reads the value.
  std::optional<size_t> private_writer(const std::string& value) const;
  // The same for a node with this operator.
  std::optional<size_t> private_writer(const std::string& value, const char* op) const;

 private:
  const std::vector<abi::GraphNode>& nodes_;
  std::set<std::string> outputs_;
  std::map<std::string, size_t> writers_;
  std::map<std::string, std::vector<size_t>> readers_;
};

}  // namespace graphopt::provider
