// Finds matrix multiplications with weights that are quantized by blocks, and replaces each by one MatMulNBits node:
//
//   DequantizeLinear (constant inputs, blocks along K) -> [Transpose] -> MatMul, FusedMatMul or Gemm
//
// ONNX Runtime's quantizer (QDQ format), optimum and Quark write this pattern. MatMulNBits reads the quantized weights
// themselves, so there is no dequantized copy of them.
#pragma once

#include <functional>
#include <vector>

#include "runtime/provider/region_graph.h"
#include "runtime/provider/replacement.h"

namespace graphopt::provider {

// `has_kernel` returns whether there is a kernel for a MatMulNBits node.
std::vector<Replacement> find_packed_matmuls(const RegionGraph& graph,
                                             const std::function<bool(const NodeInGraph&)>& has_kernel);

}  // namespace graphopt::provider
