// Runs one node: binds the runtime's tensors and memory to a Call and executes the kernel.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "operators/kernel.h"
#include "runtime/abi/kernel.h"
#include "runtime/plan_cache.h"
#include "runtime/workers.h"

namespace graphopt::runtime {

// A kernel and the state of its node.
struct BoundKernel {
  std::unique_ptr<Kernel> kernel;
  std::string node;
  size_t inputs = 0, outputs = 0;
  std::vector<size_t> host_inputs;  // inputs in host memory, for device kernels
  int only = -1;                    // index of the required implementation (Call::only); -1: any
  std::shared_ptr<const gpu::LibraryChoices> libraries = {};  // Call::libraries
  std::shared_ptr<gpu::Measured> measured = {};               // Call::measured
  std::unique_ptr<PlanCache> plans = std::make_unique<PlanCache>();
  std::unique_ptr<Workers> workers = std::make_unique<Workers>();
};

void run_node(const BoundKernel& bound, const abi::Context& context, const abi::HostMemory& memory);

// Formats the inputs of a call for messages, with a space before each and "-" for an absent one:
// " float[2,3] - int64[1]".
std::string input_shapes(const abi::Context& context);

}  // namespace graphopt::runtime
