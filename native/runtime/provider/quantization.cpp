#include "runtime/provider/quantization.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace graphopt::provider {

using abi::GraphNode;

namespace {

// Returns true if inputs i of two nodes are the same value or equal constants, or if both omit it.
bool are_equal_inputs(const GraphNode& a, const GraphNode& b, size_t i) {
  if (a.has_input(i) != b.has_input(i)) return false;
  if (!a.has_input(i) || a.input_names()[i] == b.input_names()[i]) return true;
  const std::optional<Tensor> left = a.constant(i), right = b.constant(i);
  return left && right && left->type == right->type && left->bytes() == right->bytes() &&
         std::memcmp(left->data, right->data, left->bytes()) == 0;
}

}  // namespace

std::vector<float> constant_floats(const NodeInGraph& node, size_t i) {
  if (!node.has_input(i) || !node.is_constant(i) || node.inputs[i].type != ElementType::kFloat) return {};
  const std::optional<Tensor> value = node.constant(i);
  if (!value) return {};
  const auto* first = value->as<const float>();
  return {first, first + value->shape.elements()};
}

bool is_per_tensor(const NodeInGraph& node) {
  if (constant_floats(node, kScale).size() != 1 || node.get_int("block_size", 0) != 0) return false;
  if (!node.has_input(kZero)) return true;
  if (!node.is_constant(kZero)) return false;
  const std::optional<Tensor> zero = node.constant(kZero);
  return zero && is_byte(zero->type) && zero->shape.elements() == 1;
}

Quantization::Quantization(const GraphNode& node)
    : scale(constant_floats(node, kScale)[0]),
      zero(0),
      is_signed((node.op == "QuantizeLinear" ? node.outputs[0] : node.inputs[kX]).type ==
                ElementType::kInt8) {
  if (!node.has_input(kZero)) return;
  const std::optional<Tensor> given = node.constant(kZero);
  zero = is_signed ? static_cast<float>(*given->as<const int8_t>())
                   : static_cast<float>(*given->as<const uint8_t>());
}

float Quantization::dequantize(uint8_t byte) const {
  const float value = is_signed ? static_cast<float>(static_cast<int8_t>(byte)) : static_cast<float>(byte);
  return (value - zero) * scale;
}

uint8_t Quantization::quantize(float x) const {
  const float low = is_signed ? -128.0f : 0.0f, rounded = std::nearbyintf(x / scale) + zero;
  const float limited = std::isnan(rounded) ? zero : std::clamp(rounded, low, low + 255.0f);
  return static_cast<uint8_t>(static_cast<int>(limited));
}

bool is_same_quantization(const GraphNode& dequantize, const GraphNode& quantize) {
  return dequantize.inputs[kX].type == quantize.outputs[0].type &&
         are_equal_inputs(dequantize, quantize, kScale) && are_equal_inputs(dequantize, quantize, kZero);
}

std::optional<size_t> private_quantization(const RegionGraph& graph, const std::string& dequantized) {
  const std::vector<GraphNode>& nodes = graph.nodes();
  const std::optional<size_t> from = graph.private_writer(dequantized, "DequantizeLinear");
  if (!from || !is_per_tensor(nodes[*from])) return std::nullopt;
  const std::optional<size_t> found = graph.private_writer(nodes[*from].input_names()[kX], "QuantizeLinear");
  if (!found || !is_per_tensor(nodes[*found]) || !is_byte(nodes[*found].outputs[0].type)) return std::nullopt;
  return is_same_quantization(nodes[*from], nodes[*found]) ? found : std::nullopt;
}

}  // namespace graphopt::provider
