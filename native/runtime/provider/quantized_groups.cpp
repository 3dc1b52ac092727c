#include "runtime/provider/quantized_groups.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>

#include "operators/table.h"
#include "runtime/provider/tails.h"

namespace graphopt::provider {
namespace {

using abi::GraphNode;

// Inputs of DequantizeLinear and QuantizeLinear.
enum : size_t { kX, kScale, kZero };

// An input of a new node: an input of a replaced one, or nothing.
struct Source {
  const GraphNode* node = nullptr;
  size_t input = 0;

  bool present() const { return node != nullptr && node->has_input(input); }
};

struct Operator {
  const char *name, *domain;
  int version;
};
Operator microsoft(const char* name) { return {name, kMicrosoft, 1}; }

class QuantizedNode final : public NodeInGraph {
 public:
  // `replaced`: the node with the attributes; `output`: the node that writes the output.
  QuantizedNode(const Operator& made, const GraphNode& replaced, std::vector<Source> from,
                const GraphNode& output, const Activation& act)
      : replaced_(replaced), from_(std::move(from)), act_(act) {
    op = made.name;
    domain_ = made.domain;
    version = made.version;
    name = replaced.name;
    outputs = {output.outputs[0]};
    output_names_ = {output.output_names()[0]};
    for (const Source& source : from_) {
      const bool present = source.present();
      inputs.push_back(present ? source.node->inputs[source.input] : Value());
      input_names_.push_back(present ? source.node->input_names()[source.input] : "");
      constant_.push_back(present && source.node->is_constant(source.input));
    }
  }

  std::optional<Tensor> constant(size_t i) const override {
    if (i >= from_.size() || !from_[i].present()) return std::nullopt;
    return from_[i].node->constant(from_[i].input);
  }
  std::optional<AttributeValue> find(const char* key, AttributeType type) const override {
    const std::string attribute = key;
    if (attribute == "activation") return static_cast<int64_t>(act_.kind);
    if (attribute == "activation_a") return act_.a;
    if (attribute == "activation_b") return act_.b;
    return replaced_.find(key, type);
  }

 private:
  const GraphNode& replaced_;
  const std::vector<Source> from_;
  const Activation act_;
};

// Returns the values of a constant float tensor; empty if the input is something else.
std::vector<float> floats(const GraphNode& node, size_t i) {
  if (!node.has_input(i) || !node.is_constant(i) || node.inputs[i].type != ElementType::kFloat) return {};
  const std::optional<Tensor> value = node.constant(i);
  if (!value) return {};
  const auto* first = value->as<const float>();
  return {first, first + value->shape.elements()};
}

// Returns true for a node of 8-bit integers with a constant scale and zero point for all elements.
bool is_per_tensor(const GraphNode& node) {
  if (floats(node, kScale).size() != 1 || node.get_int("block_size", 0) != 0) return false;
  if (!node.has_input(kZero)) return true;
  if (!node.is_constant(kZero)) return false;
  const std::optional<Tensor> zero = node.constant(kZero);
  return zero && is_byte(zero->type) && zero->shape.elements() == 1;
}

bool is_equal(const GraphNode& a, const GraphNode& b, size_t i) {
  if (a.has_input(i) != b.has_input(i)) return false;
  if (!a.has_input(i) || a.input_names()[i] == b.input_names()[i]) return true;
  const std::optional<Tensor> left = a.constant(i), right = b.constant(i);
  return left && right && left->type == right->type && left->bytes() == right->bytes() &&
         std::memcmp(left->data, right->data, left->bytes()) == 0;
}

class Search {
 public:
  Search(const std::vector<GraphNode>& nodes, const std::vector<std::string>& outputs)
      : nodes_(nodes), outputs_(outputs) {
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (const std::string& name : nodes[i].output_names()) {
        if (!name.empty()) writers_[name] = i;
      }
      for (const std::string& name : nodes[i].input_names()) {
        if (!name.empty()) readers_[name].push_back(i);
      }
    }
  }

  // Returns the replacement that ends with a QuantizeLinear node; nothing if there is none.
  std::optional<Replacement> ending_with(size_t end) {
    const GraphNode& quantize = nodes_[end];
    if (quantize.op != "QuantizeLinear" || !quantize.domain().empty() || !is_per_tensor(quantize) ||
        !is_byte(quantize.outputs[0].type)) {
      return std::nullopt;
    }
    Group group{{end}, quantize, nullptr, {}};
    std::optional<size_t> head = private_writer(quantize.input_names()[kX]);
    if (!head) return std::nullopt;
    if (const auto act = activation_of(nodes_[*head])) {
      if (const auto before = private_writer(nodes_[*head].input_names()[0])) {
        const std::string& op = nodes_[*before].op;
        if (op == "Conv" || op == "MatMul" || op == "Gemm" ||
            (op == "Add" && act->kind == ActivationKind::kRelu)) {
          group.act = *act;
          group.nodes.push_back(*head);
          head = before;
        }
      }
    }
    group.head = &nodes_[*head];
    group.nodes.push_back(*head);
    if (!group.head->domain().empty()) return std::nullopt;
    auto node = replacement_of(group);
    if (!node) return std::nullopt;
    std::reverse(group.nodes.begin(), group.nodes.end());
    return Replacement{group.nodes, std::move(node)};
  }

  // Adds the DequantizeLinear nodes to `found` that only replaced nodes read.
  void add_dequantizations(std::vector<Replacement>& found) {
    std::map<size_t, size_t> owner;  // replaced node -> index in `found`
    for (size_t r = 0; r < found.size(); ++r) {
      for (const size_t i : found[r].nodes) owner[i] = r;
    }
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].op != "DequantizeLinear" || !nodes_[i].domain().empty()) continue;
      const std::string& value = nodes_[i].output_names()[0];
      if (is_output(value) || readers_.count(value) == 0) continue;
      const std::vector<size_t>& readers = readers_.at(value);
      const bool all =
          std::all_of(readers.begin(), readers.end(), [&](size_t r) { return owner.count(r) > 0; });
      if (!all) continue;
      auto& replaced = found[owner.at(readers.back())].nodes;
      replaced.insert(replaced.begin(), i);
    }
  }

 private:
  struct Group {
    std::vector<size_t> nodes;  // from the last one
    const GraphNode& quantize;
    const GraphNode* head;
    Activation act;
  };

  bool is_output(const std::string& value) const {
    return std::find(outputs_.begin(), outputs_.end(), value) != outputs_.end();
  }
  // Returns the node that writes a value which only one node reads.
  std::optional<size_t> private_writer(const std::string& value) const {
    const auto writer = writers_.find(value);
    if (writer == writers_.end() || is_output(value) || readers_.at(value).size() != 1) return std::nullopt;
    if (nodes_[writer->second].output_names().size() != 1) return std::nullopt;
    return writer->second;
  }
  // Returns the DequantizeLinear node of 8-bit elements that writes an input; null if there is none.
  const GraphNode* dequantization(const GraphNode& node, size_t i,
                                  ElementType type = ElementType::kUndefined) const {
    if (!node.has_input(i)) return nullptr;
    const auto writer = writers_.find(node.input_names()[i]);
    if (writer == writers_.end()) return nullptr;
    const GraphNode& from = nodes_[writer->second];
    if (from.op != "DequantizeLinear" || !from.domain().empty()) return nullptr;
    const ElementType is = from.inputs[kX].type;
    return (type == ElementType::kUndefined ? is_byte(is) : is == type) ? &from : nullptr;
  }
  const GraphNode* per_tensor(const GraphNode& node, size_t i) const {
    const GraphNode* from = dequantization(node, i);
    return from != nullptr && is_per_tensor(*from) ? from : nullptr;
  }

  std::unique_ptr<NodeInGraph> replacement_of(const Group& group) const {
    const std::string& op = group.head->op;
    if (op == "Conv") return conv(group);
    if (op == "MatMul") return matmul(group);
    if (op == "Gemm") return gemm(group);
    if (op == "Add" || op == "Mul") return binary(group);
    if (op == "GlobalAveragePool") return unary("QLinearGlobalAveragePool", group);
    if (op == "AveragePool") return unary("QLinearAveragePool", group);
    if (op == "LeakyRelu") return unary("QLinearLeakyRelu", group);
    if (op == "Sigmoid") return unary("QLinearSigmoid", group);
    for (const char* moves : {"MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze"}) {
      if (op == moves) return moved(group);
    }
    return nullptr;
  }

  // The three inputs of a node of DequantizeLinear, or the scale and zero point of the output.
  static void add_all(std::vector<Source>& to, const GraphNode& from) {
    for (size_t i = kX; i <= kZero; ++i) to.push_back({&from, i});
  }
  static void add_quantization(std::vector<Source>& to, const GraphNode& from) {
    for (size_t i = kScale; i <= kZero; ++i) to.push_back({&from, i});
  }

  static std::unique_ptr<NodeInGraph> made(const Operator& op, const Group& group, std::vector<Source> from) {
    return std::make_unique<QuantizedNode>(op, *group.head, std::move(from), group.quantize, group.act);
  }

  // Returns true for constant weights with a scale for all elements, or for each index of `axis`. `symmetric`: zero
  // points must be 0, for unsigned elements 128.
  static bool are_weights(const GraphNode& w, int64_t axis, bool symmetric) {
    if (!w.is_constant(kX) || w.get_int("block_size", 0) != 0) return false;
    const std::optional<Tensor> x = w.constant(kX);
    const size_t scales = floats(w, kScale).size();
    const auto rank = static_cast<int64_t>(x ? x->shape.rank() : 0);
    if (rank < 2) return false;
    if (axis < 0) axis += rank;
    const int64_t given = w.get_int("axis", 1);
    const bool along = (given < 0 ? given + rank : given) == axis;
    if (scales != 1 && !(along && static_cast<int64_t>(scales) == x->shape[static_cast<size_t>(axis)]))
      return false;
    const uint8_t none = x->type == ElementType::kUint8 ? 128 : 0;
    if (!w.has_input(kZero)) return !symmetric || none == 0;
    if (!w.is_constant(kZero)) return false;
    const std::optional<Tensor> zero = w.constant(kZero);
    if (!zero || zero->type != x->type || zero->shape.elements() != static_cast<int64_t>(scales))
      return false;
    const auto* first = zero->as<const uint8_t>();
    return !symmetric || std::all_of(first, first + scales, [none](uint8_t z) { return z == none; });
  }

  // Sets the source of an int32 bias, whose scales must be the products of those of X and W. Returns false for another
  // bias.
  bool bias_of(const GraphNode& node, size_t i, const GraphNode& x, const GraphNode& w, Source& bias) const {
    if (!node.has_input(i)) return true;
    const GraphNode* b = dequantization(node, i, ElementType::kInt32);
    if (b == nullptr || !b->is_constant(kX)) return false;
    if (b->has_input(kZero)) {
      const std::optional<Tensor> zero = b->is_constant(kZero) ? b->constant(kZero) : std::nullopt;
      if (!zero || zero->type != ElementType::kInt32) return false;
      const auto* first = zero->as<const int32_t>();
      if (std::any_of(first, first + zero->shape.elements(), [](int32_t z) { return z != 0; })) return false;
    }
    const std::vector<float> scales = floats(*b, kScale), of_x = floats(x, kScale), of_w = floats(w, kScale);
    if (scales.empty() || (scales.size() != 1 && scales.size() != of_w.size())) return false;
    for (size_t k = 0; k < std::max(scales.size(), of_w.size()); ++k) {
      const float wanted = of_x[0] * of_w[of_w.size() == 1 ? 0 : k];
      constexpr float kTolerance = 1e-5f;
      if (std::fabs(scales[scales.size() == 1 ? 0 : k] - wanted) > kTolerance * std::fabs(wanted))
        return false;
    }
    bias = {b, kX};
    return true;
  }

  std::unique_ptr<NodeInGraph> conv(const Group& group) const {
    const GraphNode *x = per_tensor(*group.head, 0), *w = dequantization(*group.head, 1);
    if (x == nullptr || w == nullptr || !are_weights(*w, 0, true)) return nullptr;
    const std::optional<Tensor> filters = w->constant(kX);
    const int64_t groups = group.head->get_int("group", 1);
    // Without kernels for other groups on matrix units, floats are faster.
    if (groups != 1 && (filters->shape[1] != 1 || filters->shape[0] != groups)) return nullptr;
    Source bias;
    if (!bias_of(*group.head, 2, *x, *w, bias)) return nullptr;
    std::vector<Source> from;
    add_all(from, *x);
    add_all(from, *w);
    add_quantization(from, group.quantize);
    from.push_back(bias);
    return made(microsoft("QLinearConv"), group, std::move(from));
  }

  std::unique_ptr<NodeInGraph> matmul(const Group& group) const {
    const GraphNode *a = per_tensor(*group.head, 0), *b = dequantization(*group.head, 1);
    if (a == nullptr || b == nullptr || !(is_per_tensor(*b) || are_weights(*b, -1, false))) return nullptr;
    std::vector<Source> from;
    add_all(from, *a);
    add_all(from, *b);
    add_quantization(from, group.quantize);
    return made({"QLinearMatMul", "", 10}, group, std::move(from));
  }

  std::unique_ptr<NodeInGraph> gemm(const Group& group) const {
    const GraphNode& head = *group.head;
    const GraphNode *a = per_tensor(head, 0), *b = dequantization(head, 1);
    if (a == nullptr || b == nullptr || !are_weights(*b, head.get_bool("transB") ? 0 : 1, false))
      return nullptr;
    Source bias;
    const bool factors = head.get_float("alpha", 1.0f) != 1.0f || head.get_float("beta", 1.0f) != 1.0f;
    if (factors || !bias_of(head, 2, *a, *b, bias)) return nullptr;
    std::vector<Source> from;
    add_all(from, *a);
    add_all(from, *b);
    from.push_back(bias);
    add_quantization(from, group.quantize);
    return made(microsoft("QGemm"), group, std::move(from));
  }

  std::unique_ptr<NodeInGraph> binary(const Group& group) const {
    const GraphNode *a = per_tensor(*group.head, 0), *b = per_tensor(*group.head, 1);
    const ElementType type = group.quantize.outputs[0].type;
    if (a == nullptr || b == nullptr || a->inputs[kX].type != type || b->inputs[kX].type != type)
      return nullptr;
    std::vector<Source> from;
    add_all(from, *a);
    add_all(from, *b);
    add_quantization(from, group.quantize);
    return made(microsoft(group.head->op == "Add" ? "QLinearAdd" : "QLinearMul"), group, std::move(from));
  }

  std::unique_ptr<NodeInGraph> unary(const char* op, const Group& group) const {
    const GraphNode* x = per_tensor(*group.head, 0);
    if (x == nullptr || x->inputs[kX].type != group.quantize.outputs[0].type) return nullptr;
    std::vector<Source> from;
    add_all(from, *x);
    add_quantization(from, group.quantize);
    return made(microsoft(op), group, std::move(from));
  }

  // An operator that does not change elements.
  std::unique_ptr<NodeInGraph> moved(const Group& group) const {
    const GraphNode* x = per_tensor(*group.head, 0);
    if (x == nullptr || x->inputs[kX].type != group.quantize.outputs[0].type) return nullptr;
    if (!is_equal(*x, group.quantize, kScale) || !is_equal(*x, group.quantize, kZero)) return nullptr;
    std::vector<Source> from = {{x, kX}};
    for (size_t i = 1; i < group.head->inputs.size(); ++i) from.push_back({group.head, i});
    return made({group.head->op.c_str(), "", group.head->version}, group, std::move(from));
  }

  const std::vector<GraphNode>& nodes_;
  const std::vector<std::string>& outputs_;
  std::map<std::string, size_t> writers_;
  std::map<std::string, std::vector<size_t>> readers_;
};

}  // namespace

std::vector<Replacement> find_quantized_groups(const std::vector<GraphNode>& nodes,
                                               const std::vector<std::string>& outputs,
                                               const std::function<bool(const NodeInGraph&)>& takes) {
  Search search(nodes, outputs);
  std::vector<Replacement> found;
  for (size_t i = 0; i < nodes.size(); ++i) {
    auto replacement = search.ending_with(i);
    if (replacement && takes(*replacement->node)) found.push_back(std::move(*replacement));
  }
  search.add_dequantizations(found);
  return found;
}

}  // namespace graphopt::provider
