// Which kernels there are: one list for each device. register.cpp joins them.
#pragma once

#include <vector>

#include "abi/custom_op.h"

namespace graphopt {

// Every op of the domain, for float and for float16. A library that lacks the CPU kernel of a name that it
// registers would make the session fail although the model carries the op's body.
std::vector<abi::OpDescription> cpu_kernels();

// The same ops on the GPU of this machine; empty when there is none, or no device code for it.
//
// GRAPHOPT_HOST_KERNELS=PATH takes kernels compiled for the CPU (native/hip/host) instead, on the CPU
// provider: how this part is tested without a GPU. GRAPHOPT_SYNC=1 waits after each node, so that an error
// shows where it happens.
std::vector<abi::OpDescription> gpu_kernels();

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
