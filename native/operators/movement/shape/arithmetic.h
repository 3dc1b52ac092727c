// Kernels for values that shapes depend on: sizes, axes, scales, and functions of these. Inputs and outputs are in host
// memory. A region runs these kernels while it is planned, so `plan` may read the elements of the inputs.
//
// The kernels implement ONNX operators for integers of 32 and 64 bits, float and bool. They round as ONNX
// Runtime's CPU provider does. Sums and products of floats over axes have no kernel because their order is
// undefined.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "operators/kernel_bases.h"

namespace graphopt {

// The newest opset that the kernels were written for.
constexpr int kNewestArithmetic = 28;

void add_host_arithmetic(Kernels& kernels);  // host_arithmetic.cpp
void add_host_copies(Kernels& kernels);      // host_copies.cpp

// Returns the reason to refuse a node; "" if all inputs and outputs are int32, int64, float or bool.
std::string refuse_unless_arithmetic(const Node& node);

// Output 0 of a call: shape, type, and the function that writes its elements.
struct HostValue {
  Shape shape;
  ElementType type;
  std::function<void(const Tensor& y)> write;
};
// Computes output 0. Throws Error if the inputs are invalid.
using HostFunction = std::function<HostValue(const Call& call)>;

class HostKernel final : public Kernel {
 public:
  explicit HostKernel(HostFunction function) : function_(std::move(function)) {}
  void plan(Call& call) const override;
  bool run(Call& call) const override;

 private:
  HostFunction function_;
};

// Adds a kernel for operator versions from `first` on. `function` is a HostFunction, or creates one for a
// node.
template <class Function>
Registration& add_host(Kernels& kernels, const char* name, int first, Function function) {
  return kernels.add_arithmetic(name, first, kNewestArithmetic, [function](const Node& node) {
    if constexpr (std::is_invocable_v<Function, const Node&>) {
      return std::make_unique<HostKernel>(function(node));
    } else {
      return std::make_unique<HostKernel>(function);
    }
  });
}

// Calls body(offsets) for each element of a shape in row-major order. There is one offset for each of the
// `strides`; the parameter `offsets` gives their values at the first element.
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
