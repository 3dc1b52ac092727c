// The standard operators by family; operator.cpp joins them.
#pragma once

#include "ep/operator.h"

namespace graphopt::ep {

void add_convolutions(std::vector<Operator>& table);
void add_elementwise(std::vector<Operator>& table);
void add_linear(std::vector<Operator>& table);
void add_movement(std::vector<Operator>& table);
void add_reductions(std::vector<Operator>& table);
void add_shape(std::vector<Operator>& table);

// The device's tensors of a node must all be float or all be float16: which T kernels need.
std::string refuse_mixed_floats(const abi::GraphNode& node, const std::vector<size_t>& host_inputs = {});

// From a negative axis, too. Throws abi::Error when it is out of range.
size_t axis_of(int64_t axis, size_t rank);

// An attribute of a window, where it is given, has `count` numbers and none below `least`.
void require_sizes(size_t count, const std::vector<int64_t>& numbers, int64_t least);

// Whether all pointers are multiples of 16.
bool aligned(std::initializer_list<const void*> pointers);

}  // namespace graphopt::ep
