// Queries of DequantizeLinear and QuantizeLinear nodes, shared by the searches for quantized operators and for functions
// of bytes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/provider/region_graph.h"

namespace graphopt::provider {

// Inputs of DequantizeLinear and QuantizeLinear.
enum QuantizationInput : size_t { kX, kScale, kZero };

// Returns the values of a constant float tensor; empty if the input is something else.
std::vector<float> constant_floats(const NodeInGraph& node, size_t i);

// Returns true for DequantizeLinear or QuantizeLinear of 8-bit integers with a constant scale and zero point for all
// elements.
bool is_per_tensor(const NodeInGraph& node);

// The scale and zero point of such a node.
struct Quantization {
  float scale, zero;
  bool is_signed;

  explicit Quantization(const abi::GraphNode& node);
  float dequantize(uint8_t byte) const;
  // Rounds to even and saturates.
  uint8_t quantize(float x) const;
};

// Returns whether a DequantizeLinear node has the type, scale and zero point of a QuantizeLinear node.
bool is_same_quantization(const abi::GraphNode& dequantize, const abi::GraphNode& quantize);

// Returns the per-tensor QuantizeLinear node that writes the input of a DequantizeLinear node, if nothing else reads the
// values between them. Both have the same scale and zero point. `dequantized`: the output of the DequantizeLinear node.
std::optional<size_t> private_quantization(const RegionGraph& graph, const std::string& dequantized);

}  // namespace graphopt::provider
