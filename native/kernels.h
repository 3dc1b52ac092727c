// Which kernels of our domain there are: one table for each device. register.cpp joins them.
#pragma once

#include "gpu/device.h"
#include "operators/table.h"

namespace graphopt {

constexpr const char* kDomain = "com.graphopt";

// Every op of the domain but LinearOp's, for float and for float16. A library that lacks the CPU kernel of a
// name that it registers would make the session fail although the model carries the op's body; a name that it
// does not register runs by its body, and our own provider (ep/) takes its nodes all the same.
Table cpu_kernels();

// The ops that have a GPU kernel, for a provider that runs on `device`.
Table gpu_kernels(const char* provider, gpu::Device& device);

// The same but LinearOp's for ONNX Runtime's ROCm provider: each kernel is for the device that is current
// when it is created (gpu::rocm_device). For the CPU provider when gpu::host_kernels() is set; empty when
// there is no such device.
Table rocm_kernels();

// The part of a registration that is the same on all devices. Op is one of the classes of ops/schema.h.
template <class Op>
Registration describe(const Op& op) {
  Registration r;
  r.name = op.name();
  r.domain = kDomain;
  r.types = {ElementType::kFloat, ElementType::kHalf};
  r.inputs = op.inputs();
  r.outputs = op.outputs();
  r.infer = [op](const abi::ShapeInference& node) { op.infer(node); };
  return r;
}

}  // namespace graphopt
