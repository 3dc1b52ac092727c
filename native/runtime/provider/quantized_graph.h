// Queries of a graph in the QDQ format, shared by the searches for quantized operators and for functions of bytes.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/abi/graph.h"

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

class QuantizedGraph {
 public:
  // `outputs`: names of the region's outputs.
  QuantizedGraph(const std::vector<abi::GraphNode>& nodes, const std::vector<std::string>& outputs);

  const std::vector<abi::GraphNode>& nodes() const { return nodes_; }
  bool is_output(const std::string& value) const;
  // Returns the indices of the nodes that read a value.
  const std::vector<size_t>& readers(const std::string& value) const;
  // Returns the node that writes a value; nothing for inputs of the region and constants.
  std::optional<size_t> writer(const std::string& value) const;
  // Returns the node that writes a value, if the node has no other outputs and one node input reads the value.
  std::optional<size_t> private_writer(const std::string& value) const;
  // The same for a node with this operator.
  std::optional<size_t> private_writer(const std::string& value, const char* op) const;
  // Returns the per-tensor QuantizeLinear node that writes the input of a DequantizeLinear node, if nothing else reads
  // the values between them. Both have the same scale and zero point.
  std::optional<size_t> private_quantization(const std::string& dequantized) const;

 private:
  const std::vector<abi::GraphNode>& nodes_;
  const std::vector<std::string>& outputs_;
  std::map<std::string, size_t> writers_;
  std::map<std::string, std::vector<size_t>> readers_;
};

// Returns whether a DequantizeLinear node has the type, scale and zero point of a QuantizeLinear node.
bool is_same_quantization(const abi::GraphNode& dequantize, const abi::GraphNode& quantize);

}  // namespace graphopt::provider
