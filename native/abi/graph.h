// Nodes as a plugin execution provider sees them in the graph, when it says which it takes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "abi/kernel.h"
#include "abi/ort_ep.h"

namespace graphopt::abi {

// An edge of the graph. An edge that is left out has no name.
struct Edge {
  std::string name;
  ElementType type = ElementType::kUndefined;  // kUndefined: no tensor, or of a type that we don't know
  std::optional<Shape> shape;                  // -1 where a dim is not known
  bool constant = false;
};

// A node of the graph during GetCapability.
class GraphNode final : public Attributes {
 public:
  GraphNode(const OrtApi24* api, const OrtNode* node);

  const OrtNode* raw() const { return node_; }
  const std::string& name() const { return name_; }
  const std::string& op() const { return op_; }
  const std::string& domain() const { return domain_; }
  int since_version() const { return since_version_; }
  const std::vector<Edge>& inputs() const { return inputs_; }
  const std::vector<Edge>& outputs() const { return outputs_; }
  bool has_input(size_t i) const { return i < inputs_.size() && !inputs_[i].name.empty(); }
  // The value of a constant input, in host memory; nothing when it may change.
  std::optional<Tensor> constant_input(size_t i) const;

  std::optional<float> find_float(const char* name) const override;
  std::optional<int64_t> find_int(const char* name) const override;
  std::optional<std::vector<int64_t>> find_ints(const char* name) const override;
  std::optional<std::string> find_string(const char* name) const override;

 private:
  Edge edge(const OrtValueInfo* value) const;
  // Null when the node has no such attribute.
  const OrtOpAttr* attribute(const char* name) const;
  template <class T>
  std::optional<T> find(const char* name, AttributeKind kind) const;

  const OrtApi24* api_;
  const OrtNode* node_;
  std::string name_, op_, domain_;
  int since_version_ = 0;
  std::vector<const OrtValueInfo*> raw_inputs_;
  std::vector<Edge> inputs_, outputs_;
};

std::vector<GraphNode> graph_nodes(const OrtApi24* api, const OrtGraph* graph);

// A tensor, read without allocations.
Tensor read_tensor(const OrtApi24* api, const OrtValue* value);

}  // namespace graphopt::abi
