// Finds operators between DequantizeLinear and QuantizeLinear (the QDQ format of ONNX Runtime's quantizer), and
// replaces each by one operator on 8-bit integers:
//
//   DequantizeLinear (each input) -> operator -> [activation] -> QuantizeLinear
//
// Conv becomes QLinearConv, Gemm QGemm, MatMul QLinearMatMul, Add QLinearAdd and Mul QLinearMul. Pools, means over all
// pixels, and operators that only move elements, become operators on integers. Element-wise functions of one tensor become
// QLinearLookup(x, table), which ONNX Runtime does not have (byte_functions.h). The attributes activation, activation_a
// and activation_b of the new nodes are members of Activation.
//
// QLinearConv also fuses such a function of its output, and then the sum with a residual:
//
//   Conv -> [activation] -> QuantizeLinear -> [function] -> DequantizeLinear -> Add -> [Relu] -> QuantizeLinear
//
// The residual is its input 9, and the table its input 10; the attributes sum_kind, sum_left, sum_right, sum_shift and
// sum_least are members of hip::IntegerSum. The sum may also follow the convolution without a quantization between.
#pragma once

#include <functional>
#include <vector>

#include "runtime/provider/region_graph.h"
#include "runtime/provider/replacement.h"

namespace graphopt::provider {

// `has_kernel` returns whether there is a kernel for a node. A DequantizeLinear node is replaced, too, if only replaced
// nodes read it.
std::vector<Replacement> find_quantized_groups(const RegionGraph& graph,
                                               const std::function<bool(const NodeInGraph&)>& has_kernel);

}  // namespace graphopt::provider
