// The standard operators by family; operator.h joins them.
#pragma once

#include "ep/operator.h"

namespace graphopt::ep {

void add_elementwise(std::vector<Operator>& table);
void add_shape(std::vector<Operator>& table);

// All of the device's tensors of a node are float, or all are float16: which T kernels need.
std::string refuse_mixed_floats(const abi::GraphNode& node, const std::vector<size_t>& host_inputs = {});

}  // namespace graphopt::ep
