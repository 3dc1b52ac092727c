// The table of kernels, joined from those of all folders.
#pragma once

#include "device/device.h"
#include "operators/table.h"

namespace graphopt {

// Every operator of our domain, for float and, where its name does not end in Bf16, for float16. A library
// that lacks the CPU kernel of a name that it registers would make the session fail although the model carries
// the op's body.
Table cpu_kernels();

// What our own provider has kernels for on the device: our operators, and ONNX's.
Table provider_kernels(gpu::Device& device);
// The same table where there is no device: it says which nodes it takes, and creates no kernel.
Table provider_claims();

// What is computed on the host while a region is planned, for any device.
Table planning_kernels();

// Our operators for ONNX Runtime's ROCm provider: each kernel is for the device that is current
// when it is created (gpu::rocm_device). For the CPU provider when gpu::host_kernels() is set; empty when
// there is no such device.
Table rocm_kernels();

}  // namespace graphopt
