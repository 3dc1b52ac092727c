// Exposes an operator of this library to ONNX Runtime as a custom operator, and runs its nodes with the operator's
// Kernel.
#pragma once

#include <memory>
#include <vector>

#include "operators/table.h"
#include "runtime/abi/ort.h"
#include "runtime/abi/ort_ep.h"

namespace graphopt::runtime {

// One operator on one device for one element type. It must outlive the sessions that use it; the registration must
// outlive it.
class CustomOp final : public abi::OrtCustomOp {
 public:
  // `api24`: null for ONNX Runtime before 1.24.
  CustomOp(const abi::OrtApi* api, const abi::OrtApi24* api24, const Registration& registration,
           ElementType type);

  const abi::OrtApi* api;
  const abi::OrtApi24* api24;
  const Registration& registration;
  ElementType type;
};

// Returns a domain with these ops, for AddCustomOpDomain.
abi::OrtCustomOpDomain* make_domain(const abi::OrtApi* api, const char* name,
                                    const std::vector<std::unique_ptr<CustomOp>>& ops);

}  // namespace graphopt::runtime
