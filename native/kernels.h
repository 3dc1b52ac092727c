// Which kernels there are: one list for each device. register.cpp joins them.
#pragma once

#include <vector>

#include "abi/custom_op.h"

namespace graphopt {

// Every op of the domain, for float and for float16. A library that lacks the CPU kernel of a name that it
// registers would make the session fail although the model carries the op's body.
std::vector<abi::OpDescription> cpu_kernels();

// The part of a description that is the same on all devices. Op is one of the classes of ops/schema.h.
template <class Op>
abi::OpDescription describe(const Op& op, abi::ElementType type, const char* provider) {
  abi::OpDescription d;
  d.name = op.name();
  d.provider = provider;
  d.type = type;
  d.inputs = op.inputs();
  d.outputs = op.outputs();
  d.infer = [op](const abi::ShapeInference& node) { op.infer(node); };
  return d;
}

}  // namespace graphopt
