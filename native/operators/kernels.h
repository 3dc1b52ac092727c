// The table of all kernels.
#pragma once

#include "device/device.h"
#include "operators/table.h"

namespace graphopt {

// Returns a CPU kernel of every com.graphopt operator for float and, if the operator's name does not end in Bf16, for
// float16. Every registered name must have a CPU kernel. If one had none, sessions with such a node on the CPU would
// fail, although the model contains the function body.
Table cpu_kernels();

// Returns the provider's kernels for the device: com.graphopt and ONNX operators.
Table provider_kernels(gpu::Device& device);
// Returns the same table without a device: it decides which nodes are claimed, but cannot create kernels.
Table provider_claims();

// Returns the kernels that compute on the host while a region is planned, for any device.
Table planning_kernels();

// Returns the GPU kernels of com.graphopt operators for ONNX Runtime's ROCm provider. Each kernel is for the device
// that is current when the kernel is created (gpu::rocm_device). If gpu::host_kernels() is set, the kernels are for
// the CPU provider. The table is empty if there is no usable ROCm device.
Table rocm_kernels();

}  // namespace graphopt
