#include "runtime/abi/graph.h"

namespace graphopt::abi {
namespace {

// Null where it is not known to be a tensor.
const OrtTensorTypeAndShapeInfo* tensor_info(const OrtApi24* api, const OrtValueInfo* info) {
  const OrtTypeInfo* type = nullptr;
  check(api, GetValueInfoTypeInfo(api, info, &type));
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
  size_t rank = 0;
  check(api, GetDimensionsCount(api, tensor, &rank));
  if (rank > Shape::kMaxRank) return value;
  value.shape.emplace(rank);
  if (rank > 0) check(api, GetDimensions(api, tensor, value.shape->data(), rank));
  return value;
}

// Adds what is known of a value, and its name.
void add(const OrtApi24* api, const OrtValueInfo* info, std::vector<Value>& values,
         std::vector<std::string>& names) {
  const char* name = "";
  if (info != nullptr) check(api, GetValueInfoName(api, info, &name));
  names.emplace_back(name);
  values.push_back(names.back().empty() ? Value() : read_value(api, info));
}

// Empty where it was given to none.
std::string_view provider_of(const OrtApi24* api, const OrtNode* node) {
  const char* given = nullptr;
  check(api, Node_GetEpName(api, node, &given));
  return given != nullptr ? given : "";
}

// Whether a node in one of the bodies, or in theirs, was given to this provider.
bool is_taken_inside(const OrtApi24* api, const OrtNode* node, std::string_view provider) {
  size_t n = 0;
  check(api, Node_GetNumSubgraphs(api, node, &n));
  if (n == 0) return false;
  std::vector<const OrtGraph*> bodies(n);
  check(api, Node_GetSubgraphs(api, node, bodies.data(), n, nullptr));
  for (const OrtGraph* body : bodies) {
    check(api, Graph_GetNumNodes(api, body, &n));
    std::vector<const OrtNode*> nodes(n);
    check(api, Graph_GetNodes(api, body, nodes.data(), n));
    for (const OrtNode* inner : nodes) {
      if (provider_of(api, inner) == provider || is_taken_inside(api, inner, provider)) return true;
    }
  }
  return false;
}

}  // namespace

GraphNode::GraphNode(const OrtApi24* api, const OrtNode* node, std::string_view provider)
    : WithAttributes(api), api_(api), node_(node) {
  const char* text = nullptr;
  check(api, Node_GetName(api, node, &text));
  name = text;
  check(api, Node_GetOperatorType(api, node, &text));
  op = text;
  check(api, Node_GetDomain(api, node, &text));
  domain_ = text;
  if (domain_ == "ai.onnx") domain_.clear();
  check(api, Node_GetSinceVersion(api, node, &version));
  size_t n = 0;
  check(api, Node_GetNumInputs(api, node, &n));
  raw_inputs_.resize(n);
  check(api, Node_GetInputs(api, node, raw_inputs_.data(), n));
  for (const OrtValueInfo* value : raw_inputs_) {
    add(api, value, inputs, input_names_);
    bool is_constant = false;
    if (value != nullptr) check(api, ValueInfo_IsConstantInitializer(api, value, &is_constant));
    constant_.push_back(is_constant);
  }
  check(api, Node_GetNumOutputs(api, node, &n));
  std::vector<const OrtValueInfo*> values(n);
  check(api, Node_GetOutputs(api, node, values.data(), n));
  for (const OrtValueInfo* value : values) add(api, value, outputs, output_names_);
  check(api, Node_GetNumImplicitInputs(api, node, &n));
  values.resize(n);
  if (n > 0) check(api, Node_GetImplicitInputs(api, node, values.data(), n));
  implicit_names_ = names_of(api, values);
  const std::string_view given = provider_of(api, node);
  is_given_ = given == provider;
  is_elsewhere_ = !given.empty() && !is_given_;
  works_inside_ = is_taken_inside(api, node, provider);
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
  const OrtValue* value = nullptr;
  check(api_, ValueInfo_GetInitializerValue(api_, raw_inputs_[i], &value));
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
  size_t n = 0;
  check(api, Graph_GetNumNodes(api, graph, &n));
  std::vector<const OrtNode*> raw(n);
  check(api, Graph_GetNodes(api, graph, raw.data(), n));
  std::vector<GraphNode> nodes;
  nodes.reserve(n);
  for (const OrtNode* node : raw) nodes.emplace_back(api, node, provider);
  return nodes;
}

std::vector<std::string> output_names(const OrtApi24* api, const OrtGraph* graph) {
  size_t n = 0;
  check(api, Graph_GetNumOutputs(api, graph, &n));
  std::vector<const OrtValueInfo*> values(n);
  check(api, Graph_GetOutputs(api, graph, values.data(), n));
  return names_of(api, values);
}

std::string parent_operator(const OrtApi24* api, const OrtGraph* graph) {
  const OrtNode* parent = nullptr;
  check(api, Graph_GetParentNode(api, graph, &parent));
  if (parent == nullptr) return "";
  const char* op = "";
  check(api, Node_GetOperatorType(api, parent, &op));
  return op;
}

}  // namespace graphopt::abi
