// Element-wise nodes between DequantizeLinear and QuantizeLinear as a table: a function of one quantized tensor of
// 8-bit elements. The intermediate results of these nodes may be quantized and dequantized again.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "runtime/provider/quantization.h"

namespace graphopt::provider {

struct ByteFunction {
  std::string argument;              // name of the quantized tensor
  const abi::GraphNode* dequantize;  // a DequantizeLinear node of the argument
  std::set<size_t> nodes;            // the evaluated nodes; the last one is QuantizeLinear
  std::set<size_t> dequantizations;  // all DequantizeLinear nodes of the argument
  std::array<uint8_t, 256> table;    // table[b] is the result for an argument with the bits b
};

// Returns the function that ends with a per-tensor QuantizeLinear node, with as many nodes as possible; nothing if that
// node depends on anything but one quantized tensor and constants.
std::optional<ByteFunction> byte_function_ending_with(const RegionGraph& graph, size_t end);

}  // namespace graphopt::provider
