#include "runtime/provider/forecast.h"

#include <algorithm>
#include <cstring>

#include "operators/kernels.h"
#include "runtime/provider/control_flow.h"
#include "runtime/provider/partition.h"
#include "runtime/provider/random.h"

namespace graphopt::provider::forecast {
namespace {

std::vector<std::string> texts(const char* const* all) {
  std::vector<std::string> found;
  for (; *all != nullptr; ++all) found.emplace_back(*all);
  return found;
}

class ForecastNode final : public NodeInGraph {
 public:
  explicit ForecastNode(const forecast::Node& node) : attributes_(node.attributes) {
    op = node.op;
    domain_ = node.domain;
    version = node.version;
    for (const forecast::Value* v = node.inputs; v->name != nullptr; ++v) {
      add(*v, inputs, input_names_);
      constant_.push_back(v->is_constant != 0);
      data_.push_back(v->data);
    }
    for (const forecast::Value* v = node.outputs; v->name != nullptr; ++v) add(*v, outputs, output_names_);
    implicit_names_ = texts(node.implicit);
    has_claimed_subgraph_nodes_ = node.has_claimed_subgraph_nodes != 0;
    is_assigned_elsewhere_ = node.is_assigned_elsewhere != 0;
  }

  std::optional<Tensor> constant(size_t i) const override {
    if (!has_input(i) || data_[i] == nullptr || !inputs[i].shape) return std::nullopt;
    Tensor tensor;
    tensor.data = const_cast<void*>(data_[i]);
    tensor.type = inputs[i].type;
    tensor.shape = *inputs[i].shape;
    return tensor;
  }
  std::optional<AttributeValue> find(const char* name, AttributeType type) const override {
    const Attribute* a = find_attribute(name, type);
    if (a == nullptr) return std::nullopt;
    switch (type) {
      case AttributeType::kFloat:
        return a->f;
      case AttributeType::kInt:
        return a->i;
      case AttributeType::kInts:
        return std::vector<int64_t>(a->ints, a->ints + a->count);
      case AttributeType::kString:
        return std::string(a->s);
      case AttributeType::kStrings:
        break;
    }
    std::vector<std::string> all;
    const char* next = a->s;
    for (int64_t i = 0; i < static_cast<int64_t>(a->count); ++i) next += all.emplace_back(next).size() + 1;
    return all;
  }

 private:
  static void add(const forecast::Value& v, std::vector<graphopt::Value>& values,
                  std::vector<std::string>& names) {
    names.emplace_back(v.name);
    graphopt::Value& value = values.emplace_back();
    value.present = *v.name != '\0';
    value.type = static_cast<ElementType>(v.type);
    if (v.rank < 0 || static_cast<size_t>(v.rank) > Shape::kMaxRank) return;
    value.shape.emplace(static_cast<size_t>(v.rank));
    std::copy(v.dims, v.dims + v.rank, value.shape->data());
  }
  const Attribute* find_attribute(const char* name, AttributeType type) const {
    constexpr int32_t kKinds[] = {1, 2, 7, 3, 8};  // AttributeProto's types, by AttributeType
    const int32_t kind = kKinds[static_cast<size_t>(type)];
    for (const Attribute* a = attributes_; a->name != nullptr; ++a) {
      if (a->kind == kind && std::strcmp(a->name, name) == 0) return a;
    }
    return nullptr;
  }

  const Attribute* attributes_;
  std::vector<const void*> data_;
};

std::vector<std::string> refusals_of(const Graph& graph, size_t min_nodes, forecast::Group* groups) {
  static const Claims& claims = *new Claims(with_random(with_control_flow(provider_claims()), nullptr));
  std::vector<ForecastNode> owned(graph.nodes, graph.nodes + graph.count);
  std::vector<const NodeInGraph*> in_graph;
  for (const ForecastNode& node : owned) in_graph.push_back(&node);
  ChoiceOptions options;
  options.min_nodes = min_nodes;
  options.disabled = disabled_everywhere();
  const Body body = {graph.parent, texts(graph.outputs)};
  std::vector<std::string> refusals = choose(claims, in_graph, body, options);
  choose_regions(claims, in_graph, body, refusals);
  for (const provider::Group& found : groups_of(claims, in_graph, body, refusals)) {
    *groups++ = {static_cast<int32_t>(found.nodes.size()), found.time.device, found.time.cpu};
  }
  return refusals;
}

}  // namespace
}  // namespace graphopt::provider::forecast

// Predicts which nodes of a graph the provider refuses. Call it for subgraphs before the graphs that contain them.
//
// Returns 0, or 1 after a failure; reasons[0] then has the error. reasons[i] is empty if the provider claims node i.
// The texts are valid until the calling thread's next call. `groups` has one entry for each node, all zero at the call;
// the first entries receive the groups.
extern "C" __attribute__((visibility("default"))) int GraphoptForecastGraph(
    const graphopt::provider::forecast::Graph* graph, size_t min_nodes, const char** reasons,
    graphopt::provider::forecast::Group* groups) {
  thread_local std::vector<std::string> texts;
  try {
    texts = graphopt::provider::forecast::refusals_of(*graph, min_nodes, groups);
    for (size_t i = 0; i < graph->count; ++i) reasons[i] = texts[i].c_str();
    return 0;
  } catch (const std::exception& e) {
    texts = {e.what()};
    if (graph->count > 0) reasons[0] = texts[0].c_str();
    return 1;
  }
}
