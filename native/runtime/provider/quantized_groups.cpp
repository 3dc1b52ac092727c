#include "runtime/provider/quantized_groups.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "gemm/args.h"
#include "operators/table.h"
#include "runtime/provider/byte_functions.h"
#include "runtime/provider/quantization.h"
#include "runtime/provider/sizes.h"
#include "runtime/provider/tails.h"

namespace graphopt::provider {
namespace {

using abi::GraphNode;

// An input of a new node: an input of a replaced node, or nothing.
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
  QuantizedNode(const Operator& type, const GraphNode& replaced, std::vector<Source> from,
                const GraphNode& output)
      : replaced_(replaced), from_(std::move(from)) {
    op = type.name;
    domain_ = type.domain;
    version = type.version;
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

  // Sets an attribute. It overrides an attribute of the replaced node.
  void set(const char* key, AttributeValue value) { attributes_[key] = std::move(value); }
  void set(const Activation& act) {
    set("activation", static_cast<int64_t>(act.kind));
    set("activation_a", act.a);
    set("activation_b", act.b);
  }
  void add_output(const GraphNode& output) {
    outputs.push_back(output.outputs[0]);
    output_names_.push_back(output.output_names()[0]);
  }
  // Adds an input with a constant table of bytes of the output's type.
  void add_table(const std::array<uint8_t, 256>& table) {
    table_ = table;
    inputs.push_back({true, outputs[0].type, Shape{static_cast<int64_t>(table.size())}});
    input_names_.push_back(output_names_[0] + ", table");
    constant_.push_back(true);
  }

  std::optional<Tensor> constant(size_t i) const override {
    if (i == from_.size() && i < inputs.size()) {
      Tensor tensor;
      tensor.type = inputs[i].type;
      tensor.shape = *inputs[i].shape;
      tensor.data = const_cast<uint8_t*>(table_.data());
      return tensor;
    }
    if (i >= from_.size() || !from_[i].present()) return std::nullopt;
    return from_[i].node->constant(from_[i].input);
  }
  std::optional<AttributeValue> find(const char* key, AttributeType type) const override {
    const auto own = attributes_.find(key);
    return own != attributes_.end() ? own->second : replaced_.find(key, type);
  }

 private:
  const GraphNode& replaced_;
  const std::vector<Source> from_;
  std::map<std::string, AttributeValue> attributes_;
  std::array<uint8_t, 256> table_ = {};
};

// A convolution with a quantized output, and a function of the quantized elements.
struct Convolution {
  const GraphNode* conv;
  const GraphNode* quantize;  // quantizes the output of the convolution and its activation
  Activation act;
  std::optional<ByteFunction> function;
  std::set<size_t> nodes;
};

// An Add node, an optional Relu, and the QuantizeLinear node of the result.
struct Sum {
  size_t add;  // index of the Add node
  bool relu;
  std::set<size_t> nodes;
};

constexpr float kLowest = -std::numeric_limits<float>::infinity();

class QuantizedGroupSearch {
 public:
  explicit QuantizedGroupSearch(const RegionGraph& graph)
      : nodes_(graph.nodes()), graph_(graph), sizes_(nodes_) {}

  // Returns the replacements that end with a QuantizeLinear node, the best one first.
  std::vector<Replacement> ending_with(size_t end) const {
    std::vector<Replacement> found;
    const GraphNode& quantize = nodes_[end];
    if (quantize.op != "QuantizeLinear" || !quantize.domain().empty() || !is_per_tensor(quantize) ||
        !is_byte(quantize.outputs[0].type)) {
      return found;
    }
    add_sum_of_convolution(found, end);
    if (const auto convolution = convolution_ending_with(end)) {
      add(found, convolution->nodes, convolution_node(*convolution, quantize), end);
    }
    if (const auto function = byte_function_ending_with(graph_, end)) {
      std::vector<Source> from = {{function->dequantize, kX}};
      auto node = make_node(microsoft("QLinearLookup"), quantize, std::move(from), quantize);
      node->add_table(function->table);
      add(found, function->nodes, std::move(node), end);
    }
    add_operator(found, end);
    return found;
  }

  // Returns the replacement of a Split whose outputs are all quantized with the scale and zero point of its input.
  std::optional<Replacement> split_at(size_t i) const {
    const GraphNode& split = nodes_[i];
    if (split.op != "Split" || !split.domain().empty()) return std::nullopt;
    const GraphNode* x = per_tensor(split, 0);
    if (x == nullptr) return std::nullopt;
    std::vector<Source> from = {{x, kX}};
    for (size_t k = 1; k < split.inputs.size(); ++k) from.push_back({&split, k});
    Replacement replacement;
    std::vector<const GraphNode*> outputs;
    for (const std::string& value : split.output_names()) {
      const std::vector<size_t>& readers = graph_.readers(value);
      if (readers.size() != 1 || graph_.is_output(value)) return std::nullopt;
      const GraphNode& quantize = nodes_[readers[0]];
      if (quantize.op != "QuantizeLinear" || !is_per_tensor(quantize) ||
          !is_same_quantization(*x, quantize)) {
        return std::nullopt;
      }
      outputs.push_back(&quantize);
      replacement.nodes.push_back(readers[0]);
    }
    auto node = make_node({"Split", "", split.version}, split, std::move(from), *outputs[0]);
    for (size_t k = 1; k < outputs.size(); ++k) node->add_output(*outputs[k]);
    replacement.node = std::move(node);
    // Split is the last element: the new node gets its position, which is before all readers of the outputs.
    replacement.nodes.push_back(i);
    return replacement;
  }

  // Adds to `found` the DequantizeLinear nodes that only replaced nodes read.
  void add_dequantizations(std::vector<Replacement>& found) const {
    std::map<size_t, size_t> owner;  // replaced node -> index in `found`
    for (size_t r = 0; r < found.size(); ++r) {
      for (const size_t i : found[r].nodes) owner[i] = r;
    }
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].op != "DequantizeLinear" || !nodes_[i].domain().empty() || owner.count(i) > 0) continue;
      const std::string& value = nodes_[i].output_names()[0];
      const std::vector<size_t>& readers = graph_.readers(value);
      if (graph_.is_output(value) || readers.empty()) continue;
      const bool all =
          std::all_of(readers.begin(), readers.end(), [&](size_t r) { return owner.count(r) > 0; });
      if (!all) continue;
      auto& replaced = found[owner.at(readers.back())].nodes;
      replaced.insert(replaced.begin(), i);
    }
  }

 private:
  struct Group {
    const GraphNode& quantize;
    const GraphNode* head;
    Activation act;
  };

  static void add(std::vector<Replacement>& found, const std::set<size_t>& nodes,
                  std::unique_ptr<NodeInGraph> node, size_t end) {
    if (node == nullptr) return;
    Replacement replacement{{}, std::move(node)};
    for (const size_t i : nodes) {
      if (i != end) replacement.nodes.push_back(i);
    }
    replacement.nodes.push_back(end);
    found.push_back(std::move(replacement));
  }

  // Adds the replacement of an operator with an optional activation.
  void add_operator(std::vector<Replacement>& found, size_t end) const {
    std::set<size_t> nodes = {end};
    Group group{nodes_[end], nullptr, {}};
    std::optional<size_t> head = graph_.private_writer(group.quantize.input_names()[kX]);
    if (!head) return;
    if (const auto act = activation_of(nodes_[*head])) {
      if (const auto before = graph_.private_writer(nodes_[*head].input_names()[0])) {
        const std::string& op = nodes_[*before].op;
        if (op == "MatMul" || op == "Gemm" || (op == "Add" && act->kind == ActivationKind::kRelu)) {
          group.act = *act;
          nodes.insert(*head);
          head = before;
        }
      }
    }
    group.head = &nodes_[*head];
    nodes.insert(*head);
    if (group.head->domain().empty()) add(found, nodes, replacement_of(group), end);
  }

  // Returns the convolution that ends with a per-tensor QuantizeLinear node; nothing if there is none.
  std::optional<Convolution> convolution_ending_with(size_t end) const {
    if (auto found = plain_convolution_ending_with(end)) return found;
    auto function = byte_function_ending_with(graph_, end);
    if (!function) return std::nullopt;
    const std::optional<size_t> before = graph_.writer(function->argument);
    if (!before || graph_.is_output(function->argument) || !is_only_read_by(*function)) return std::nullopt;
    if (nodes_[*before].op != "QuantizeLinear" || !is_per_tensor(nodes_[*before])) return std::nullopt;
    // The epilogue has one element type before and after the function.
    if (nodes_[*before].outputs[0].type != nodes_[end].outputs[0].type) return std::nullopt;
    auto found = plain_convolution_ending_with(*before);
    if (!found) return std::nullopt;
    found->nodes.insert(function->nodes.begin(), function->nodes.end());
    found->function = std::move(function);
    return found;
  }

  // Returns true if no other node reads the argument of a function.
  bool is_only_read_by(const ByteFunction& function) const {
    const auto all_in = [](const std::vector<size_t>& readers, const std::set<size_t>& nodes) {
      return std::all_of(readers.begin(), readers.end(), [&](size_t r) { return nodes.count(r) > 0; });
    };
    const auto reads = [&](size_t i) {
      const std::string& value = nodes_[i].output_names()[0];
      return !graph_.is_output(value) && all_in(graph_.readers(value), function.nodes);
    };
    return all_in(graph_.readers(function.argument), function.dequantizations) &&
           std::all_of(function.dequantizations.begin(), function.dequantizations.end(), reads);
  }

  std::optional<Convolution> plain_convolution_ending_with(size_t end) const {
    Convolution found{nullptr, &nodes_[end], {}, {}, {end}};
    std::optional<size_t> head = graph_.private_writer(nodes_[end].input_names()[kX]);
    if (head) {
      if (const auto act = activation_of(nodes_[*head])) {
        found.act = *act;
        found.nodes.insert(*head);
        head = graph_.private_writer(nodes_[*head].input_names()[0]);
      }
    }
    if (!head || nodes_[*head].op != "Conv" || !nodes_[*head].domain().empty()) return std::nullopt;
    found.conv = &nodes_[*head];
    found.nodes.insert(*head);
    return found;
  }

  // Returns QLinearConv with the scale and zero point of convolution.quantize. `output`: the node that writes the
  // output. `residual`: a DequantizeLinear node of a tensor like the output, or null.
  std::unique_ptr<QuantizedNode> convolution_node(const Convolution& convolution, const GraphNode& output,
                                                  const GraphNode* residual = nullptr) const {
    std::vector<Source> from = conv_inputs(*convolution.conv, *convolution.quantize);
    if (from.empty()) return nullptr;
    if (residual != nullptr || convolution.function) from.push_back({residual, kX});
    auto node = make_node(microsoft("QLinearConv"), *convolution.conv, std::move(from), output);
    node->set(convolution.act);
    if (convolution.function) node->add_table(convolution.function->table);
    return node;
  }

  std::optional<Sum> sum_ending_with(size_t end) const {
    std::optional<size_t> add = graph_.private_writer(nodes_[end].input_names()[kX]);
    if (!add) return std::nullopt;
    Sum sum{*add, false, {end, *add}};
    if (nodes_[*add].op == "Relu" && nodes_[*add].domain().empty()) {
      add = graph_.private_writer(nodes_[*add].input_names()[0]);
      if (!add) return std::nullopt;
      sum.relu = true;
      sum.add = *add;
      sum.nodes.insert(*add);
    }
    const GraphNode& node = nodes_[*add];
    const bool is_sum = node.op == "Add" && node.domain().empty() && sizes_.have_equal_shapes(node);
    return is_sum ? std::optional(sum) : std::nullopt;
  }

  // Adds replacements that fuse a sum into a convolution. The convolution's result may be quantized before the sum. If
  // both summands are convolutions, the later one is preferred, because the other result is then available.
  void add_sum_of_convolution(std::vector<Replacement>& found, size_t end) const {
    const std::optional<Sum> sum = sum_ending_with(end);
    if (!sum) return;
    const GraphNode &add = nodes_[sum->add], &quantize = nodes_[end];
    const size_t last = graph_.writer(add.input_names()[0]) < graph_.writer(add.input_names()[1]) ? 1 : 0;
    for (const size_t side : {last, 1 - last}) {
      const GraphNode* residual = per_tensor(add, 1 - side);
      if (residual == nullptr || residual->inputs[kX].type != quantize.outputs[0].type) continue;
      const Quantization y(quantize), r(*residual);
      const float right = r.scale / y.scale;
      const std::string& value = add.input_names()[side];
      std::optional<Convolution> convolution;
      float left = 1, shift = y.zero - right * r.zero;
      const std::optional<size_t> before = private_quantization(graph_, value);
      if (before) {
        convolution = convolution_ending_with(*before);
        const Quantization x(nodes_[*before]);
        if (x.is_signed != y.is_signed) continue;
        left = x.scale / y.scale;
        shift = y.zero - (left * x.zero + right * r.zero);
      } else if (const auto conv = graph_.private_writer(value, "Conv")) {
        convolution = {&nodes_[*conv], &quantize, {}, {}, {*conv}};
      }
      if (!convolution) continue;
      auto node = convolution_node(*convolution, quantize, residual);
      if (node == nullptr) continue;
      using hip::IntegerResidual;
      const auto kind = before ? IntegerResidual::kToRounded : IntegerResidual::kToExact;
      node->set("sum_kind", static_cast<int64_t>(kind));
      node->set("sum_left", left);
      node->set("sum_right", right);
      node->set("sum_shift", shift);
      node->set("sum_least", sum->relu ? y.zero : kLowest);
      std::set<size_t> nodes = sum->nodes;
      nodes.insert(convolution->nodes.begin(), convolution->nodes.end());
      QuantizedGroupSearch::add(found, nodes, std::move(node), end);
    }
  }

  // Returns the DequantizeLinear node of 8-bit elements that writes an input; null if there is none.
  const GraphNode* dequantization(const GraphNode& node, size_t i,
                                  ElementType type = ElementType::kUndefined) const {
    if (!node.has_input(i)) return nullptr;
    const std::optional<size_t> writer = graph_.writer(node.input_names()[i]);
    if (!writer) return nullptr;
    const GraphNode& from = nodes_[*writer];
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
    if (op == "MatMul") return matmul(group);
    if (op == "Gemm") return gemm(group);
    if (op == "Add" || op == "Mul") return binary(group);
    if (op == "GlobalAveragePool" || (op == "ReduceMean" && reduces_pixels(*group.head))) {
      return unary("QLinearGlobalAveragePool", group);
    }
    if (op == "AveragePool") return unary("QLinearAveragePool", group);
    if (op == "Concat") return concat(group);
    if (op == "Softmax") return softmax(group);
    for (const char* moves : {"MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Resize",
                              "Slice", "Expand", "Tile", "DepthToSpace", "SpaceToDepth"}) {
      if (op == moves) return moved(group);
    }
    return nullptr;
  }

  // Append the three inputs of a DequantizeLinear node, or the scale and zero point of a QuantizeLinear node.
  static void add_all(std::vector<Source>& to, const GraphNode& from) {
    for (size_t i = kX; i <= kZero; ++i) to.push_back({&from, i});
  }
  static void add_quantization(std::vector<Source>& to, const GraphNode& from) {
    for (size_t i = kScale; i <= kZero; ++i) to.push_back({&from, i});
  }

  static std::unique_ptr<QuantizedNode> make_node(const Operator& op, const GraphNode& replaced,
                                                  std::vector<Source> from, const GraphNode& output) {
    return std::make_unique<QuantizedNode>(op, replaced, std::move(from), output);
  }
  static std::unique_ptr<NodeInGraph> make_node(const Operator& op, const Group& group,
                                                std::vector<Source> from) {
    auto node = make_node(op, *group.head, std::move(from), group.quantize);
    node->set(group.act);
    return node;
  }

  // Returns true for constant weights with one scale, or one scale for each index of `axis`. `symmetric`: zero points
  // must be 0, or 128 for unsigned elements.
  static bool are_weights(const GraphNode& w, int64_t axis, bool symmetric) {
    if (!w.is_constant(kX) || w.get_int("block_size", 0) != 0) return false;
    const std::optional<Tensor> x = w.constant(kX);
    const size_t scales = constant_floats(w, kScale).size();
    const auto rank = static_cast<int64_t>(x ? x->shape.rank() : 0);
    if (rank < 2) return false;
    if (axis < 0) axis += rank;
    const int64_t given = w.get_int("axis", 1);
    const bool along = (given < 0 ? given + rank : given) == axis;
    if (scales != 1 && !(along && static_cast<int64_t>(scales) == x->shape[static_cast<size_t>(axis)]))
      return false;
    const uint8_t center = x->type == ElementType::kUint8 ? 128 : 0;
    if (!w.has_input(kZero)) return !symmetric || center == 0;
    if (!w.is_constant(kZero)) return false;
    const std::optional<Tensor> zero = w.constant(kZero);
    if (!zero || zero->type != x->type || zero->shape.elements() != static_cast<int64_t>(scales))
      return false;
    const auto* first = zero->as<const uint8_t>();
    return !symmetric || std::all_of(first, first + scales, [center](uint8_t z) { return z == center; });
  }

  // Sets the source of an int32 bias. Its scales must be the scales of X times the scales of W. Returns false for any
  // other bias.
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
    const std::vector<float> scales = constant_floats(*b, kScale), of_x = constant_floats(x, kScale),
                             of_w = constant_floats(w, kScale);
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

  // Returns the inputs of QLinearConv; none if it cannot compute the convolution.
  std::vector<Source> conv_inputs(const GraphNode& conv, const GraphNode& quantize) const {
    const GraphNode *x = per_tensor(conv, 0), *w = dequantization(conv, 1);
    if (x == nullptr || w == nullptr || !are_weights(*w, 0, true)) return {};
    Source bias;
    if (!bias_of(conv, 2, *x, *w, bias)) return {};
    std::vector<Source> from;
    add_all(from, *x);
    add_all(from, *w);
    add_quantization(from, quantize);
    from.push_back(bias);
    return from;
  }

  std::unique_ptr<NodeInGraph> matmul(const Group& group) const {
    const GraphNode *a = per_tensor(*group.head, 0), *b = dequantization(*group.head, 1);
    if (a == nullptr || b == nullptr || !(is_per_tensor(*b) || are_weights(*b, -1, false))) return nullptr;
    std::vector<Source> from;
    add_all(from, *a);
    add_all(from, *b);
    add_quantization(from, group.quantize);
    return make_node({"QLinearMatMul", "", 10}, group, std::move(from));
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
    return make_node(microsoft("QGemm"), group, std::move(from));
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
    return make_node(microsoft(group.head->op == "Add" ? "QLinearAdd" : "QLinearMul"), group,
                     std::move(from));
  }

  // Returns whether the axes of a reduction are all axes except batch and channels.
  static bool reduces_pixels(const GraphNode& node) {
    if (!node.inputs[kX].shape) return false;
    const auto rank = static_cast<int64_t>(node.inputs[kX].shape->rank());
    std::vector<int64_t> axes = node.get_ints("axes", {});
    if (node.has_input(1)) {
      const std::optional<Tensor> given = node.is_constant(1) ? node.constant(1) : std::nullopt;
      if (!given) return false;
      const auto* first = given->as<const int64_t>();
      axes.assign(first, first + given->shape.elements());
    }
    std::set<int64_t> reduced;
    for (const int64_t axis : axes) reduced.insert(axis < 0 ? axis + rank : axis);
    return rank > 2 && static_cast<int64_t>(reduced.size()) == rank - 2 && *reduced.begin() == 2 &&
           *reduced.rbegin() == rank - 1;
  }

  std::unique_ptr<NodeInGraph> unary(const char* op, const Group& group) const {
    const GraphNode* x = per_tensor(*group.head, 0);
    if (x == nullptr || x->inputs[kX].type != group.quantize.outputs[0].type) return nullptr;
    std::vector<Source> from;
    add_all(from, *x);
    add_quantization(from, group.quantize);
    return make_node(microsoft(op), group, std::move(from));
  }

  // Inputs with the quantization of the output are not requantized.
  std::unique_ptr<NodeInGraph> concat(const Group& group) const {
    std::vector<Source> from, moved;
    add_quantization(from, group.quantize);
    constexpr size_t kBits = 62;
    int64_t equal = 0;
    for (size_t i = 0; i < group.head->inputs.size(); ++i) {
      const GraphNode* x = per_tensor(*group.head, i);
      if (x == nullptr || x->inputs[kX].type != group.quantize.outputs[0].type) return nullptr;
      add_all(from, *x);
      moved.push_back({x, kX});
      if (i < kBits && is_same_quantization(*x, group.quantize)) equal |= int64_t{1} << i;
    }
    if (moved.size() <= kBits && equal == (int64_t{1} << moved.size()) - 1) {
      return make_node({"Concat", "", group.head->version}, group, std::move(moved));
    }
    auto node = make_node(microsoft("QLinearConcat"), *group.head, std::move(from), group.quantize);
    node->set("equal", equal);
    return node;
  }

  std::unique_ptr<NodeInGraph> softmax(const Group& group) const {
    const GraphNode* x = per_tensor(*group.head, 0);
    if (x == nullptr || x->inputs[kX].type != group.quantize.outputs[0].type) return nullptr;
    std::vector<Source> from;
    add_all(from, *x);
    add_quantization(from, group.quantize);
    auto node = make_node(microsoft("QLinearSoftmax"), *group.head, std::move(from), group.quantize);
    node->set("opset", static_cast<int64_t>(group.head->version));
    return node;
  }

  // Returns the same operator on integers, for an operator that only moves elements.
  std::unique_ptr<NodeInGraph> moved(const Group& group) const {
    const GraphNode* x = per_tensor(*group.head, 0);
    if (x == nullptr || !is_same_quantization(*x, group.quantize)) return nullptr;
    // This mode of Resize writes extrapolation_value, a real number, outside of X.
    if (group.head->get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize") return nullptr;
    std::vector<Source> from = {{x, kX}};
    for (size_t i = 1; i < group.head->inputs.size(); ++i) from.push_back({group.head, i});
    return make_node({group.head->op.c_str(), "", group.head->version}, group, std::move(from));
  }

  const std::vector<GraphNode>& nodes_;
  const RegionGraph& graph_;
  const Sizes sizes_;
};

}  // namespace

std::vector<Replacement> find_quantized_groups(const RegionGraph& graph,
                                               const std::function<bool(const NodeInGraph&)>& has_kernel) {
  const QuantizedGroupSearch search(graph);
  std::vector<Replacement> found;
  std::set<size_t> replaced;
  // Starts at the last node, because a node that ends a replacement may be inside a larger one.
  for (size_t i = graph.nodes().size(); i-- > 0;) {
    if (replaced.count(i) > 0) continue;
    std::vector<Replacement> candidates = search.ending_with(i);
    if (auto split = search.split_at(i)) candidates.push_back(std::move(*split));
    for (Replacement& replacement : candidates) {
      const std::vector<size_t>& of = replacement.nodes;
      if (std::any_of(of.begin(), of.end(), [&](size_t k) { return replaced.count(k) > 0; })) continue;
      if (!has_kernel(*replacement.node)) continue;
      replaced.insert(of.begin(), of.end());
      found.push_back(std::move(replacement));
      break;
    }
  }
  search.add_dequantizations(found);
  return found;
}

}  // namespace graphopt::provider
