#include "runtime/abi/graph.h"

namespace graphopt::abi {
namespace {

// Returns null if the value is not known to be a tensor.
const OrtTensorTypeAndShapeInfo* tensor_info(const OrtApi24* api, const OrtValueInfo* info) {
  const auto* type = get<const OrtTypeInfo*>(api, GetValueInfoTypeInfo, info);
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  if (type != nullptr) check(api, CastTypeInfoToTensorInfo(api, type, &tensor));
  return tensor;
}

Value read_value(const OrtApi24* api, const OrtValueInfo* info) {
  Value value;
  value.present = true;
  const OrtTensorTypeAndShapeInfo* tensor = tensor_info(api, info);
  if (tensor == nullptr) return value;
  check(api, GetTensorElementType(api, tensor, &value.type));
  const auto rank = get<size_t>(api, GetDimensionsCount, tensor);
  if (rank > Shape::kMaxRank) return value;
  value.shape.emplace(rank);
  if (rank > 0) check(api, GetDimensions(api, tensor, value.shape->data(), rank));
  return value;
}

// Appends the value (type and shape, where known) and its name.
void add(const OrtApi24* api, const OrtValueInfo* info, std::vector<Value>& values,
         std::vector<std::string>& names) {
  const char* name = "";
  if (info != nullptr) check(api, GetValueInfoName(api, info, &name));
  names.emplace_back(name);
  values.push_back(names.back().empty() ? Value() : read_value(api, info));
}

// Returns the provider to which the node is assigned; empty if there is none.
std::string_view provider_of(const OrtApi24* api, const OrtNode* node) {
  const auto* given = get<const char*>(api, Node_GetEpName, node);
  return given != nullptr ? given : "";
}

// Returns true if a node in a subgraph, at any depth, is assigned to the provider.
bool is_taken_inside(const OrtApi24* api, const OrtNode* node, std::string_view provider) {
  std::vector<const OrtGraph*> bodies(get<size_t>(api, Node_GetNumSubgraphs, node));
  if (bodies.empty()) return false;
  check(api, Node_GetSubgraphs(api, node, bodies.data(), bodies.size(), nullptr));
  for (const OrtGraph* body : bodies) {
    for (const OrtNode* inner : get_list<const OrtNode*>(api, Graph_GetNumNodes, Graph_GetNodes, body)) {
      if (provider_of(api, inner) == provider || is_taken_inside(api, inner, provider)) return true;
    }
  }
  return false;
}

}  // namespace

GraphNode::GraphNode(const OrtApi24* api, const OrtNode* node, std::string_view provider)
    : WithAttributes(api), api_(api), node_(node) {
  name = get<const char*>(api, Node_GetName, node);
  op = get<const char*>(api, Node_GetOperatorType, node);
  domain_ = get<const char*>(api, Node_GetDomain, node);
  if (domain_ == "ai.onnx") domain_.clear();
  version = get<int>(api, Node_GetSinceVersion, node);
  raw_inputs_ = node_inputs(api, node);
  for (const OrtValueInfo* value : raw_inputs_) {
    add(api, value, inputs, input_names_);
    bool is_constant = false;
    if (value != nullptr) check(api, ValueInfo_IsConstantInitializer(api, value, &is_constant));
    constant_.push_back(is_constant);
  }
  for (const OrtValueInfo* value : node_outputs(api, node)) add(api, value, outputs, output_names_);
  implicit_names_ = names_of(
      api, get_list<const OrtValueInfo*>(api, Node_GetNumImplicitInputs, Node_GetImplicitInputs, node));
  const std::string_view given = provider_of(api, node);
  is_assigned_here_ = given == provider;
  is_assigned_elsewhere_ = !given.empty() && !is_assigned_here_;
  has_claimed_subgraph_nodes_ = is_taken_inside(api, node, provider);
}

std::vector<std::string> GraphNode::symbols(size_t i) const {
  const OrtTensorTypeAndShapeInfo* tensor = tensor_info(api_, raw_inputs_[i]);
  size_t rank = 0;
  if (tensor != nullptr) check(api_, GetDimensionsCount(api_, tensor, &rank));
  std::vector<const char*> names(rank);
  if (rank > 0) check(api_, GetSymbolicDimensions(api_, tensor, names.data(), rank));
  std::vector<std::string> symbols;
  for (const char* name : names) symbols.emplace_back(name != nullptr ? name : "");
  return symbols;
}

std::optional<Tensor> GraphNode::constant(size_t i) const {
  if (!has_input(i) || !constant_[i]) return std::nullopt;
  const auto* value = get<const OrtValue*>(api_, ValueInfo_GetInitializerValue, raw_inputs_[i]);
  if (value == nullptr) return std::nullopt;
  std::optional<Tensor> tensor(std::in_place);
  read_tensor(api_, value, *tensor);
  return tensor;
}

const OrtOpAttr* GraphNode::attribute(const char* name) const {
  const OrtOpAttr* attribute = nullptr;
  return succeeded(api_, Node_GetAttributeByName(api_, node_, name, &attribute)) ? attribute : nullptr;
}

std::optional<Number> GraphNode::find_number(const char* name) const {
  const OrtOpAttr* found = attribute(name);
  OrtValue* value = nullptr;
  if (found == nullptr || !succeeded(api_, OpAttr_GetTensorAttributeAsOrtValue(api_, found, &value))) {
    return std::nullopt;
  }
  return take_number(api_, value, name);
}

std::vector<const OrtValueInfo*> node_inputs(const OrtApi24* api, const OrtNode* node) {
  return get_list<const OrtValueInfo*>(api, Node_GetNumInputs, Node_GetInputs, node);
}

std::vector<const OrtValueInfo*> node_outputs(const OrtApi24* api, const OrtNode* node) {
  return get_list<const OrtValueInfo*>(api, Node_GetNumOutputs, Node_GetOutputs, node);
}

std::vector<std::string> names_of(const OrtApi24* api, const std::vector<const OrtValueInfo*>& values) {
  std::vector<std::string> names;
  for (const OrtValueInfo* value : values) {
    const char* name = "";
    if (value != nullptr) check(api, GetValueInfoName(api, value, &name));
    names.emplace_back(name);
  }
  return names;
}

std::vector<GraphNode> graph_nodes(const OrtApi24* api, const OrtGraph* graph, std::string_view provider) {
  const auto raw = get_list<const OrtNode*>(api, Graph_GetNumNodes, Graph_GetNodes, graph);
  std::vector<GraphNode> nodes;
  nodes.reserve(raw.size());
  for (const OrtNode* node : raw) nodes.emplace_back(api, node, provider);
  return nodes;
}

std::vector<std::string> output_names(const OrtApi24* api, const OrtGraph* graph) {
  return names_of(api, get_list<const OrtValueInfo*>(api, Graph_GetNumOutputs, Graph_GetOutputs, graph));
}

std::string parent_operator(const OrtApi24* api, const OrtGraph* graph) {
  const auto* parent = get<const OrtNode*>(api, Graph_GetParentNode, graph);
  return parent != nullptr ? get<const char*>(api, Node_GetOperatorType, parent) : "";
}

}  // namespace graphopt::abi
