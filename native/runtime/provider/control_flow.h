// If, Loop and Scan. The runtime's own kernels walk through the bodies; registered as ours they leave what the
// bodies read and write on the device, and only the condition and the number of trips come to the host.
#pragma once

#include <string>

#include "device/device.h"
#include "operators/table.h"
#include "runtime/abi/ort_ep.h"

namespace graphopt::provider {

bool is_control_flow(const std::string& domain, const std::string& op);

// Adds what the provider claims of them. They have no kernel of ours: `create` is empty.
Table with_control_flow(Table table);

// The runtime's kernel for such a node, which then belongs to the caller.
abi::OrtKernelImpl* create_control_flow(const abi::OrtApi24* api, const abi::OrtKernelInfo* info,
                                        gpu::Device& device, const std::string& op);

}  // namespace graphopt::provider
