// Kernels for values that shapes are made of: sizes, axes, scales, and what is computed from them. They lie in the
// host's memory, inputs and outputs, and are known as soon as the shapes are: a region computes them while it is
// planned, so plan may read what its inputs hold.
//
// Of ONNX's operators, for whole numbers of 32 and 64 bits, float and bool. What is rounded is rounded as ONNX
// Runtime's CPU provider does; sums and products of floats over axes, whose order is not defined, have no kernel.
#pragma once

#include <string>
#include <vector>

#include "operators/kernel_bases.h"

namespace graphopt {

// The newest opset that the kernels were written for.
constexpr int kNewestArithmetic = 28;

void add_arithmetic_of_numbers(Kernels& kernels);  // numbers.cpp
void add_arithmetic_of_places(Kernels& kernels);   // places.cpp

// Why a node is refused with an input or output of another type.
std::string refuse_unless_arithmetic(const Node& node);

// Output 0 of a call, in host memory.
void set_host_output(Call& call, const Shape& shape, ElementType type);

// Calls body with the offsets that `strides` have at each element of a shape, from the first to the last one.
template <class Body>
void walk(const Shape& shape, const std::vector<std::vector<int64_t>>& strides, std::vector<int64_t> offsets,
          const Body& body) {
  std::vector<int64_t> at(shape.rank());
  for (int64_t i = 0; i < shape.elements(); ++i) {
    body(offsets);
    for (size_t d = shape.rank(); d-- > 0;) {
      const bool carry = ++at[d] == shape[d];
      for (size_t t = 0; t < strides.size(); ++t) offsets[t] += strides[t][d] * (carry ? 1 - shape[d] : 1);
      if (!carry) break;
      at[d] = 0;
    }
  }
}

}  // namespace graphopt
