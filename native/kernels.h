// Which kernels there are: one list for each device. register.cpp joins them.
#pragma once

#include <vector>

#include "abi/custom_op.h"
#include "gpu/device.h"

namespace graphopt {

// Every op of the domain but LinearOp's, for float and for float16. A library that lacks the CPU kernel of a
// name that it registers would make the session fail although the model carries the op's body; a name that it
// does not register runs by its body, and our own provider (ep/) takes its nodes all the same.
std::vector<abi::OpDescription> cpu_kernels();

// The ops that have a GPU kernel, for a provider that runs on `device`.
std::vector<abi::OpDescription> gpu_kernels(const char* provider, gpu::Device& device);

// The same but LinearOp's for ONNX Runtime's ROCm provider: each kernel is for the device that is current
// when it is created (gpu::rocm_device). For the CPU provider when gpu::host_kernels() is set; empty when
// there is no such device.
std::vector<abi::OpDescription> rocm_kernels();

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
