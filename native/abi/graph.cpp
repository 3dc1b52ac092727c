#include "abi/graph.h"

#include <algorithm>
#include <memory>

namespace graphopt::abi {
namespace {

struct TypeAndShape {
  ElementType type = ElementType::kUndefined;
  std::optional<Shape> shape;
};

// A tensor of unknown rank looks like a scalar.
TypeAndShape read_type(const OrtApi* api, const OrtTypeInfo* info) {
  TypeAndShape result;
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  check(api, CastTypeInfoToTensorInfo(api, info, &tensor));
  if (tensor == nullptr) return result;
  check(api, GetTensorElementType(api, tensor, &result.type));
  size_t rank = 0;
  check(api, GetDimensionsCount(api, tensor, &rank));
  if (rank > Shape::kMaxRank) return result;
  Shape shape(rank);
  if (rank > 0) check(api, GetDimensions(api, tensor, shape.data(), rank));
  result.shape = shape;
  return result;
}

// Drops the status of a question whose answer may be no.
bool succeeded(const OrtApi* api, OrtStatus* status) {
  if (status == nullptr) return true;
  ReleaseStatus(api, status);
  return false;
}

}  // namespace

GraphNode::GraphNode(const OrtApi24* api, const OrtNode* node) : api_(api), node_(node) {
  const char* text = nullptr;
  check(api, Node_GetName(api, node, &text));
  name_ = text;
  check(api, Node_GetOperatorType(api, node, &text));
  op_ = text;
  check(api, Node_GetDomain(api, node, &text));
  domain_ = text;
  if (domain_ == "ai.onnx") domain_.clear();
  check(api, Node_GetSinceVersion(api, node, &since_version_));
  size_t n = 0;
  check(api, Node_GetNumInputs(api, node, &n));
  raw_inputs_.resize(n);
  check(api, Node_GetInputs(api, node, raw_inputs_.data(), n));
  for (const OrtValueInfo* value : raw_inputs_) inputs_.push_back(edge(value));
  check(api, Node_GetNumOutputs(api, node, &n));
  std::vector<const OrtValueInfo*> outputs(n);
  check(api, Node_GetOutputs(api, node, outputs.data(), n));
  for (const OrtValueInfo* value : outputs) outputs_.push_back(edge(value));
}

Edge GraphNode::edge(const OrtValueInfo* value) const {
  Edge e;
  if (value == nullptr) return e;
  const char* name = nullptr;
  check(api_, GetValueInfoName(api_, value, &name));
  e.name = name;
  const OrtTypeInfo* info = nullptr;
  check(api_, GetValueInfoTypeInfo(api_, value, &info));
  if (info != nullptr) {
    const TypeAndShape read = read_type(api_, info);
    e.type = read.type;
    e.shape = read.shape;
  }
  check(api_, ValueInfo_IsConstantInitializer(api_, value, &e.constant));
  return e;
}

std::optional<Tensor> GraphNode::constant_input(size_t i) const {
  if (!has_input(i) || !inputs_[i].constant) return std::nullopt;
  const OrtValue* value = nullptr;
  check(api_, ValueInfo_GetInitializerValue(api_, raw_inputs_[i], &value));
  if (value == nullptr) return std::nullopt;
  return read_tensor(api_, value);
}

const OrtOpAttr* GraphNode::attribute(const char* name) const {
  const OrtOpAttr* attribute = nullptr;
  return succeeded(api_, Node_GetAttributeByName(api_, node_, name, &attribute)) ? attribute : nullptr;
}

template <class T>
std::optional<T> GraphNode::find(const char* name, AttributeKind kind) const {
  const OrtOpAttr* a = attribute(name);
  if (a == nullptr) return std::nullopt;
  T value = 0;
  size_t size = 0;
  check(api_, ReadOpAttr(api_, a, kind, &value, sizeof value, &size));
  return value;
}

std::optional<float> GraphNode::find_float(const char* name) const {
  return find<float>(name, AttributeKind::kFloat);
}

std::optional<int64_t> GraphNode::find_int(const char* name) const {
  return find<int64_t>(name, AttributeKind::kInt);
}

std::optional<std::vector<int64_t>> GraphNode::find_ints(const char* name) const {
  const OrtOpAttr* a = attribute(name);
  if (a == nullptr) return std::nullopt;
  std::vector<int64_t> values(64);
  size_t bytes = 0;
  check(api_,
        ReadOpAttr(api_, a, AttributeKind::kInts, values.data(), values.size() * sizeof(int64_t), &bytes));
  values.resize(bytes / sizeof(int64_t));
  return values;
}

std::optional<std::string> GraphNode::find_string(const char* name) const {
  const OrtOpAttr* a = attribute(name);
  if (a == nullptr) return std::nullopt;
  std::string value(64, '\0');
  size_t bytes = 0;
  check(api_, ReadOpAttr(api_, a, AttributeKind::kString, value.data(), value.size(), &bytes));
  value.resize(bytes);
  while (!value.empty() && value.back() == '\0') value.pop_back();
  return value;
}

std::vector<GraphNode> graph_nodes(const OrtApi24* api, const OrtGraph* graph) {
  size_t n = 0;
  check(api, Graph_GetNumNodes(api, graph, &n));
  std::vector<const OrtNode*> raw(n);
  check(api, Graph_GetNodes(api, graph, raw.data(), n));
  std::vector<GraphNode> nodes;
  nodes.reserve(n);
  for (const OrtNode* node : raw) nodes.emplace_back(api, node);
  return nodes;
}

Tensor read_tensor(const OrtApi24* api, const OrtValue* value) {
  Tensor tensor;
  const int64_t* dims = nullptr;
  size_t rank = 0;
  check(api, GetTensorElementTypeAndShapeDataReference(api, value, &tensor.type, &dims, &rank));
  tensor.shape = Shape(rank);
  std::copy(dims, dims + rank, tensor.shape.data());
  check(api, GetTensorMutableData(api, const_cast<OrtValue*>(value), &tensor.data));
  return tensor;
}

}  // namespace graphopt::abi
