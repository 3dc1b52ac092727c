// Which kernels of our domain there are: one table for each device. register.cpp joins them.
#pragma once

#include "device/device.h"
#include "operators/table.h"

namespace graphopt {

constexpr const char* kDomain = "com.graphopt";

// Every op of the domain but LinearOp's, for float and for float16. A library that lacks the CPU kernel of a
// name that it registers would make the session fail although the model carries the op's body; a name that it
// does not register runs by its body, and our own provider takes its nodes all the same.
Table cpu_kernels();

// The ops that have a GPU kernel, for a provider that runs on `device`.
Table gpu_kernels(const char* provider, gpu::Device& device);

// The same but LinearOp's for ONNX Runtime's ROCm provider: each kernel is for the device that is current
// when it is created (gpu::rocm_device). For the CPU provider when gpu::host_kernels() is set; empty when
// there is no such device.
Table rocm_kernels();

// The part of a registration that is the same on all devices. Op is the class of a room's op.h, which reads a
// node's attributes, turns the shapes of its inputs into a kernel's Problem (or throws Error with the
// reason), and infers the shapes of its outputs:
//   static std::vector<Op> all()                  one for each name, attributes not read yet
//   std::string name() const
//   std::vector<Operand> inputs() const
//   size_t outputs() const
//   void read(const Node&)                        throws Error
//   Problem problem(const Shapes& inputs) const   throws Error; the attributes must have been read
//   Shape output(const Shapes& inputs) const      all outputs of an op have the same shape
//   void infer(const abi::ShapeInference&) const
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
