// Functions of one quantized tensor of 8-bit elements, as tables: element-wise nodes between DequantizeLinear and
// QuantizeLinear, which may be quantized between each other.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "runtime/provider/quantized_graph.h"

namespace graphopt::provider {

struct ByteFunction {
  std::string argument;              // name of the quantized tensor
  const abi::GraphNode* dequantize;  // a DequantizeLinear node of the argument
  std::set<size_t> nodes;            // the evaluated nodes; the last one is QuantizeLinear
  std::set<size_t> dequantizations;  // all DequantizeLinear nodes of the argument
  std::array<uint8_t, 256> table;    // an element for the bits of each element of the argument
};

// Returns the function that ends with a per-tensor QuantizeLinear node, with as many nodes as possible; nothing if that
// node depends on something else than one quantized tensor and constants.
std::optional<ByteFunction> byte_function_ending_with(const QuantizedGraph& graph, size_t end);

}  // namespace graphopt::provider
