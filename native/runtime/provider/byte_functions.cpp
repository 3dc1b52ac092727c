#include "runtime/provider/byte_functions.h"

#include <algorithm>

#include "cpu/parallel.h"
#include "operators/elementwise/activation/op.h"
#include "runtime/provider/tails.h"

namespace graphopt::provider {
namespace {

using abi::GraphNode;
using Values = std::array<float, 256>;

// The calling thread.
class OneThread final : public cpu::Parallel {
 public:
  size_t workers() const override { return 1; }

 protected:
  void run_workers(void (*fn)(void* user, size_t worker), void* user) override { fn(user, 0); }
};

// Evaluates values of the graph for all 256 values of an 8-bit element of the argument.
class Evaluation {
 public:
  explicit Evaluation(const RegionGraph& graph) : graph_(graph) {}

  ByteFunction found = {};

  // Returns the values of input i of a node. The results of the evaluated nodes must have no other reader.
  std::optional<Values> input(const GraphNode& node, size_t i) {
    if (!node.has_input(i)) return std::nullopt;
    if (node.inputs.size() == 2) {
      if (const auto number = scalar(node, i)) return filled(*number);
    }
    const std::string& name = node.input_names()[i];
    const std::optional<size_t> writer = graph_.writer(name);
    if (!writer) return std::nullopt;
    const GraphNode& from = graph_.nodes()[*writer];
    if (from.op == "DequantizeLinear" && from.domain().empty()) return dequantized(*writer);
    if (!graph_.private_writer(name) || !from.domain().empty()) return std::nullopt;
    std::optional<Values> values = computed(from);
    if (values) found.nodes.insert(*writer);
    return values;
  }

  // Returns the values that a QuantizeLinear node writes.
  std::optional<std::array<uint8_t, 256>> quantized(size_t node) {
    const std::optional<Values> x = input(graph_.nodes()[node], kX);
    if (!x) return std::nullopt;
    found.nodes.insert(node);
    const Quantization q(graph_.nodes()[node]);
    std::array<uint8_t, 256> bytes;
    std::transform(x->begin(), x->end(), bytes.begin(), [&q](float value) { return q.quantize(value); });
    return bytes;
  }

 private:
  static Values filled(float number) {
    Values values;
    values.fill(number);
    return values;
  }

  // Returns the value of a constant input with one element. Its rank must not increase the rank of the result. The
  // constant may be quantized.
  std::optional<float> scalar(const GraphNode& node, size_t i) const {
    const auto& other = node.inputs[i == 0 ? 1 : 0].shape;
    const size_t max_rank = other ? std::min<size_t>(other->rank(), 1) : 0;
    const auto one_element = [max_rank](const GraphNode& of, size_t k) -> std::optional<Tensor> {
      if (!of.is_constant(k)) return std::nullopt;
      const std::optional<Tensor> value = of.constant(k);
      return value && value->shape.elements() == 1 && value->shape.rank() <= max_rank ? value : std::nullopt;
    };
    if (const auto value = one_element(node, i)) {
      return value->type == ElementType::kFloat ? std::optional(*value->as<const float>()) : std::nullopt;
    }
    const std::optional<size_t> writer = graph_.writer(node.input_names()[i]);
    if (!writer) return std::nullopt;
    const GraphNode& from = graph_.nodes()[*writer];
    if (from.op != "DequantizeLinear" || !is_per_tensor(from) || !is_byte(from.inputs[kX].type)) {
      return std::nullopt;
    }
    const auto value = one_element(from, kX);
    return value ? std::optional(Quantization(from).dequantize(*value->as<const uint8_t>())) : std::nullopt;
  }

  std::optional<Values> dequantized(size_t node) {
    const GraphNode& from = graph_.nodes()[node];
    if (!is_per_tensor(from) || !is_byte(from.inputs[kX].type)) return std::nullopt;
    const Quantization q(from);
    const auto values_of = [&q](const auto& bytes) {
      Values values;
      std::transform(bytes.begin(), bytes.end(), values.begin(), [&q](uint8_t x) { return q.dequantize(x); });
      return values;
    };
    if (const auto before = private_quantization(graph_, from.output_names()[0])) {
      Evaluation deeper(*this);
      if (const auto bytes = deeper.quantized(*before)) {
        found = deeper.found;
        found.nodes.insert(node);
        return values_of(*bytes);
      }
    }
    const std::string& argument = from.input_names()[kX];
    if (!found.argument.empty() && found.argument != argument) return std::nullopt;
    found.argument = argument;
    found.dequantize = &from;
    found.dequantizations.insert(node);
    std::array<uint8_t, 256> bytes;
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i);
    return values_of(bytes);
  }

  std::optional<Values> computed(const GraphNode& node) {
    if (const auto act = activation_of(node)) {
      std::optional<Values> x = input(node, 0);
      if (!x) return std::nullopt;
      OneThread thread;
      const ActivationProblem p = {Shape{static_cast<int64_t>(x->size())}, *act};
      cpu::activation(p, x->data(), x->data(), thread);
      return x;
    }
    const std::string& op = node.op;
    if (op != "Add" && op != "Sub" && op != "Mul" && op != "Div") return std::nullopt;
    std::optional<Values> a = input(node, 0);
    const std::optional<Values> b = a ? input(node, 1) : std::nullopt;
    if (!b) return std::nullopt;
    for (size_t i = 0; i < a->size(); ++i) {
      float &x = (*a)[i], y = (*b)[i];
      x = op == "Add" ? x + y : op == "Sub" ? x - y : op == "Mul" ? x * y : x / y;
    }
    return a;
  }

  const RegionGraph& graph_;
};

}  // namespace

std::optional<ByteFunction> byte_function_ending_with(const RegionGraph& graph, size_t end) {
  Evaluation evaluation(graph);
  const auto table = evaluation.quantized(end);
  if (!table || evaluation.found.argument.empty()) return std::nullopt;
  evaluation.found.table = *table;
  return std::move(evaluation.found);
}

}  // namespace graphopt::provider
