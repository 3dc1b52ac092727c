// If, Loop and Scan. The runtime's own kernels execute the subgraphs. Registered for this provider, they keep the
// values of the subgraphs on the device; only the condition and the trip count are copied to the host.
#pragma once

#include <string>

#include "device/device.h"
#include "operators/table.h"
#include "runtime/abi/ort_ep.h"

namespace graphopt::provider {

bool is_control_flow(const std::string& domain, const std::string& op);

// Adds registrations for these operators. `create` is empty, because the runtime creates their kernels.
Table with_control_flow(Table table);

// Returns the runtime's kernel for such a node; the caller owns it.
abi::OrtKernelImpl* create_control_flow(const abi::OrtApi24* api, const abi::OrtKernelInfo* info,
                                        gpu::Device& device, const std::string& op);

}  // namespace graphopt::provider
