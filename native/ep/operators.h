// The standard operators by family; operator.cpp joins them.
#pragma once

#include "ep/operator.h"
#include "gpu/gemm_plan.h"

namespace graphopt::ep {

void add_convolutions(std::vector<Operator>& table);
void add_elementwise(std::vector<Operator>& table);
void add_linear(std::vector<Operator>& table);
void add_movement(std::vector<Operator>& table);
void add_reductions(std::vector<Operator>& table);
void add_shape(std::vector<Operator>& table);

// The device's tensors of a node must all be float or all be float16: which T kernels need.
std::string refuse_mixed_floats(const abi::GraphNode& node, const std::vector<size_t>& host_inputs = {});

// From a negative axis, too. Throws Error when it is out of range.
size_t axis_of(int64_t axis, size_t rank);

// An attribute of a window, where it is given, has `count` numbers and none below `least`.
void require_sizes(size_t count, const std::vector<int64_t>& numbers, int64_t least);

// Y = A B, by the vendor's library where it is installed, else by a kernel of our own.
void multiply(Execution& e, const gpu::GemmProblem& p, const Tensor& a, const Tensor& b, void* y);

// y = x, repeated along its axes of size 1.
void broadcast(Execution& e, const void* x, const Shape& from, bool half, const Shape& to, void* y);

// Whether all pointers are multiples of 16.
bool aligned(std::initializer_list<const void*> pointers);

}  // namespace graphopt::ep
